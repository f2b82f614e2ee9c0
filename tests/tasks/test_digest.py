"""The lines of `task=digest` for batches that are there, left out or never come."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from penstock.order.address import Skipped
from penstock.tasks import digest


class Loader:
    """Gives batches of two samples at some steps of an epoch."""

    def __init__(self, steps):
        self.steps = steps

    def epoch(self, epoch):
        for step in self.steps:
            yield SimpleNamespace(request=SimpleNamespace(address=(epoch, step), valid=2))


def lines(monkeypatch, made, steps, asked=None, skip=None, size=1):
    plan = SimpleNamespace(limit=lambda epoch: steps, skipped=Skipped.of(skip))
    hashing = []

    @contextmanager
    def loader(hashed):
        hashing.append(hashed)
        yield Loader(made)

    split = SimpleNamespace(plan=plan, loader=loader)
    parts = SimpleNamespace(train=split)
    monkeypatch.setattr(digest, "DataParts", lambda config, world: parts)
    monkeypatch.setattr(digest, "row_hashes", lambda batch: [str(batch.request.address[1])])
    monkeypatch.setattr(digest, "hash_of_rows", lambda rows: "+".join(rows))
    config = SimpleNamespace(split="train", epoch=3, steps=asked)
    group = SimpleNamespace(world=None, gather=lambda share: [share] * size)
    result = list(digest.lines(config, group))
    assert hashing == [True]
    return result


@pytest.mark.parametrize(
    ("made", "steps", "asked", "skip", "expected"),
    [
        (range(3), 3, None, None, ["3 0 2 0", "3 1 2 1", "3 2 2 2"]),
        (range(3), 3, 2, None, ["3 0 2 0", "3 1 2 1"]),
        (range(3), 3, 5, None, ["3 0 2 0", "3 1 2 1", "3 2 2 2"]),
        (range(2), None, None, None, ["3 0 2 0", "3 1 2 1"]),
        (range(9), None, 1, None, ["3 0 2 0"]),
        ([], None, 2, None, []),
        ([0, 2], 3, None, [[3, 1], [3, 2]], ["3 0 2 0", "3 1 skipped", "3 2 2 2"]),
        ([2], 3, None, [[3, 0], [3, 2]], ["3 0 skipped", "3 1 skipped", "3 2 2 2"]),
        ([0, 3], 4, 2, [[3, 1], [3, 3]], ["3 0 2 0", "3 1 skipped"]),
        ([0], 3, None, [[3, 1], [3, 2]], ["3 0 2 0", "3 1 skipped"]),
        ([0], 3, None, [[3, 1], [4, 0]], ["3 0 2 0", "3 1 skipped", "3 2 skipped"]),
        ([], 2, None, [[3, 0], [4, 0]], ["3 0 skipped", "3 1 skipped"]),
    ],
)
def test_lines(made, steps, asked, skip, expected, monkeypatch):
    assert lines(monkeypatch, made, steps, asked, skip) == expected


def test_samples_of_all_ranks_count(monkeypatch):
    assert lines(monkeypatch, [0], 1, size=3) == ["3 0 6 0+0+0"]
