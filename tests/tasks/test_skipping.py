"""`trainer.skip` in words, and where it leaves nothing to train on."""

import pytest

from penstock.errors import ConfigError
from penstock.order.plan import Plan
from penstock.order.samplers import Sequential
from penstock.order.skipped import Skipped
from penstock.order.streams import StreamOrder, StreamPlan
from penstock.tasks import opening


def plan(*ranges):
    """Five steps an epoch."""
    made = Plan(Sequential(20), 4)
    made.skipped = Skipped.of(list(ranges))
    return made


@pytest.mark.parametrize(
    ("ranges", "epochs", "count"),
    [
        ([[0, 1], [0, 3]], 3, ", 2 batches"),
        ([[0, 1], [0, 2]], 3, ", 1 batch"),
        ([[0, 3], [2, 1]], 3, ", 8 batches"),
        ([[0, 3], [2, 1]], 2, ", 7 batches"),
        ([[3, 0], [4, 0]], 3, ", where this run has no batch"),
        ([[0, 7], [0, 9]], 3, ", where this run has no batch"),
        ([[0, 0], [300, 0]], 300, ", 1,500 batches"),
    ],
)
def test_a_range_in_words(ranges, epochs, count):
    start, stop = Skipped.of(ranges).ranges[0]
    found = opening.describe(plan(ranges), epochs)
    assert found == f"from {start} to before {stop}{count}"
    assert opening.describe(plan(), epochs) == ""
    two = opening.describe(plan(ranges, [[900, 0], [900, 1]]), epochs)
    assert two.startswith(f"{found}; from ")


def test_ranges_of_a_stream_have_no_count():
    stream = StreamPlan(StreamOrder(0), 4)
    stream.skipped = Skipped.of([[0, 1], [0, 3]])
    (start, stop) = stream.skipped.ranges[0]
    assert opening.describe(stream, 3) == f"from {start} to before {stop}"
    opening.check(stream, 1)


@pytest.mark.parametrize(
    ("ranges", "epochs", "refused"),
    [
        ([], 0, False),
        ([[[0, 0], [0, 5]]], 1, True),
        ([[[0, 0], [0, 4]]], 1, False),
        ([[[0, 1], [0, 5]]], 1, False),
        ([[[0, 0], [1, 0]]], 2, False),
        ([[[0, 0], [2, 0]]], 2, True),
    ],
)
def test_something_has_to_be_left(ranges, epochs, refused):
    if not refused:
        opening.check(plan(*ranges), epochs)
        return
    with pytest.raises(ConfigError, match=f"trainer.max_epochs={epochs}; leave some"):
        opening.check(plan(*ranges), epochs)
