"""Rules on samplers, called one by one: what lies at a border is allowed."""

import pytest
from torch.utils.data import BatchSampler, DistributedSampler, WeightedRandomSampler

from penstock.config import order_rules
from penstock.order.composed import Repeated
from penstock.order.samplers import Bucket, Identity, Random, Weighted
from tests.config.unchecked import BY_BUCKET, NUMBERS, RANDOM, holds, messages
from tests.own_parts import Numbers, Stream

pytestmark = pytest.mark.usefixtures("alone")


class ByLabel:
    """A sampler as another library has it."""

    column_arguments = ("column", "weights")

    def __init__(self, column=None, weights=None):
        """Takes two columns."""


@pytest.mark.parametrize(
    ("node", "problems"),
    [
        ({}, []),
        ({"column": "label"}, []),
        (
            {"column": "lable"},
            [("sampler.column", "'lable' (did you mean 'label'?); it has label, ")],
        ),
        ({"column": "lable", "weights": "length"}, []),
        ({"column": "lable", "weights": None}, ["sampler.column"]),
        ({"column": 3}, []),
        ({"weights": [1, 2]}, []),
        ({"weights": "x"}, [("sampler.weights", "Numbers has no metadata column 'x'; it has")]),
    ],
)
def test_columns_that_a_sampler_reads(node, problems):
    parts = {"sampler": ByLabel, "dataset": Numbers}
    values = {"sampler": node, "dataset": NUMBERS}
    holds(messages(order_rules.columns, values, parts), *problems)
    for less in ({**parts, "sampler": Random}, {**parts, "dataset": Stream}, {"sampler": ByLabel}):
        assert messages(order_rules.columns, values, less) == []
    two = {"dataset.val": Numbers, "sampler": ByLabel}
    assert messages(order_rules.columns, {**values, "dataset": {"val": NUMBERS}}, two) == []


@pytest.mark.parametrize(
    ("tail", "sampler", "size", "problems"),
    [
        ("keep", Identity, None, []),
        ("pad", Random, 8, []),
        ("drop", Random, 8, []),
        ("drop", Random, None, [("batch.tail", "drop is for batches, but batch.size=null")]),
        ("pad", Bucket, 8, [("batch.tail", "pad cannot fill Bucket's batches")]),
        ("drop", Bucket, 8, []),
        ("drop", Identity, 8, [("batch.tail", "drop has nothing to drop: Identity")]),
        ("pad", BatchSampler, 8, [("batch.tail", "pad cannot fill BatchSampler's")]),
        ("pad", None, 8, []),
    ],
)
def test_tails(tail, sampler, size, problems):
    values = {"batch.tail": tail, "batch.size": size}
    holds(messages(order_rules.tail, values, {"sampler": sampler}), *problems)


def test_a_sampler_that_shares_out_itself():
    for sampler in (Random, None, WeightedRandomSampler):
        assert messages(order_rules.distributed_sampler, {}, {"sampler": sampler}) == []
    found = messages(order_rules.distributed_sampler, {}, {"sampler": DistributedSampler})
    holds(found, ("sampler._target_", "a second time"))


@pytest.mark.parametrize(
    ("order", "sampler", "problems"),
    [
        (None, Repeated, []),
        (RANDOM, Repeated, []),
        (RANDOM, Random, []),  # it takes no order, which is told elsewhere
        ("random", Repeated, [("sampler.order", "got 'random', expected an order")]),
        ({"seed": 1}, Repeated, ["sampler.order"]),
        (BY_BUCKET, Repeated, [("sampler.order", "Bucket forms batches of its own")]),
        (
            {"_target_": "penstock.order.composed.Repeated", "order": BY_BUCKET},
            Repeated,
            ["sampler.order.order"],
        ),
        (
            {"_target_": "penstock.order.streams.StreamOrder"},
            Repeated,
            [("sampler.order", "StreamOrder is the order of a stream, which has no rows")],
        ),
    ],
)
def test_orders_inside_of_samplers(order, sampler, problems):
    values = {"sampler": {"order": order}}
    holds(messages(order_rules.nested_order, values, {"sampler": sampler}), *problems)
    assert messages(order_rules.nested_order, values) == []


@pytest.mark.parametrize(
    ("times", "size", "ways"),
    [
        (2, 8, None),
        (3, 8, "6 or 9"),
        (8, 3, "8"),
        (1, 8, None),
        (0, 8, None),
        (-3, 8, None),
        ("3", 8, None),
        (3, None, None),
    ],
)
def test_repetitions_of_rows_stay_in_a_batch(times, size, ways):
    values = {"sampler": {"times": times}, "batch.size": size}
    found = messages(order_rules.repetitions, values, {"sampler": Repeated})
    holds(found, *([("sampler.times", f"take batch.size={ways}")] if ways else []))
    assert messages(order_rules.repetitions, values, {"sampler": Weighted}) == []
