"""The lines of `task=digest` for batches that are there, left out or never come."""

import hashlib
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


@pytest.mark.parametrize("terminal", [None, False, True])
def test_a_terminal_sees_how_far_it_is_by_the_lines(terminal, monkeypatch):
    shown = []
    out = None if terminal is None else SimpleNamespace(isatty=lambda: terminal)
    monkeypatch.setattr(digest, "sys", SimpleNamespace(stdout=out))
    monkeypatch.setattr(digest, "watched", lambda items, *words: shown.append(words) or items)
    assert len(lines(monkeypatch, [0, 2], 3, skip=[[3, 1], [3, 2]])) == 3
    assert shown == ([] if terminal else [(2, "hashing batches of train")])


@pytest.mark.parametrize("first", [True, False])
def test_the_first_rank_prints_and_the_total_is_of_every_line(first, monkeypatch, capsys):
    @contextmanager
    def join(process, backend, timeout):
        assert (process.device, backend, timeout) == ("cpu", "gloo", 9)
        yield SimpleNamespace(is_first=first)

    monkeypatch.setattr(digest, "join", join)
    monkeypatch.setattr(digest, "lines", lambda config, group: iter(["a", "b"]))
    digest.run(SimpleNamespace(distributed=SimpleNamespace(timeout=9)))
    total = "total " + hashlib.blake2b(b"a\nb\n", digest_size=16).hexdigest()
    assert capsys.readouterr().out == (f"a\nb\n{total}\n" if first else "")
