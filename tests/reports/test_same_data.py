"""Which jobs saw the same batches, and where others part."""

import json
from itertools import pairwise

import numpy as np
import pytest

from penstock.addons.reports import same_data
from penstock.addons.reports.same_data import Relation, SameData, parting
from penstock.runs.record import Ledger, RunRecord


def ledger(orders, begin=(0, 0), steps=4):
    """Batches with these hashes, from an address on, with so many steps an epoch."""
    first = begin[0] * steps + begin[1]
    places = np.arange(first, first + len(orders))
    return Ledger(
        places // steps,
        places % steps,
        np.full(len(orders), 8),
        np.array(orders, np.uint64),
        np.zeros(len(orders)),
    )


@pytest.mark.parametrize(
    ("first", "second", "kind", "address", "batches"),
    [
        (ledger([1, 2, 3, 4, 5, 6]), ledger([1, 2, 3, 4, 5, 6]), "same", None, 6),
        (ledger([1, 2, 3, 4, 5, 6]), ledger([1, 2, 3, 4, 5, 7]), "part", (1, 1), 5),
        (ledger([1, 2, 3, 4, 5, 6]), ledger([9, 2, 3, 4, 5, 6]), "part", (0, 0), 0),
        (ledger([1, 2, 3]), ledger([1, 2, 3, 4, 5]), "same", None, 3),  # one ended early
        (ledger([5, 6], (1, 0)), ledger([1, 2, 3, 4, 5, 7]), "part", (1, 1), 1),  # began in mid-run
        (ledger([1, 2]), ledger([5, 6], (1, 0)), "unknown", None, None),
        (ledger([]), ledger([1]), "unknown", None, None),
        # Other lengths of epochs: the shorter one's second epoch begins first.
        (ledger([1, 2, 3, 4], steps=2), ledger([1, 2, 3, 4], steps=4), "part", (0, 2), 2),
    ],
)
def test_where_two_ledgers_part(first, second, kind, address, batches):
    wanted = Relation(kind, address, batches)
    assert parting(first, second) == wanted
    assert parting(second, first) == wanted


class Folder:
    """Makes folders of runs that hold what is asked for."""

    def __init__(self, top):
        self.top = top
        self.count = 0

    def __call__(self, orders=None, order="x", seed="1", data="d", mode="sizes", **facts):
        self.count += 1
        path = self.top / str(self.count)
        path.mkdir()
        known = {
            "seed": seed,
            "sampler._target_": "Random",
            "model.width": str(self.count),
            "transform.train.flip.p": "0.5",
            **facts,
        }
        manifest = {
            "status": "done",
            "order": order,
            "data": {"fingerprint": mode, "train": data},
            "fingerprint": known,
            "last": {"step": 6},
        }
        (path / "manifest.json").write_text(json.dumps(manifest))
        (path / "config.yaml").write_text("seed: 1\n")
        if orders is not None:
            lines = [
                {
                    "epoch": place // 4,
                    "step": place % 4,
                    "samples": 8,
                    "order": f"{value:016x}",
                    "loss": "0x1p0",
                }
                for place, value in enumerate(orders)
            ]
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            (path / "ledger.jsonl").write_text(text)
        return RunRecord.read(path)


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_jobs_with_equal_hashes_are_one_class_even_without_ledgers(folder):
    found = SameData.of([folder(), folder(), folder(order="y"), None])
    assert found.classes == [[0, 1], [2]], "the width of the model changes no batch"
    assert found.relation(1, 0).kind == "same", "by the settings: a ledger is missing"
    assert SameData.of([None]).classes == []


def test_the_same_samples_made_into_other_batches(folder):
    flipped = {"transform.train.flip.p": "0.9"}
    found = SameData.of([folder([1, 2]), folder([1, 2], **flipped), folder([1, 2], None, "2")])
    assert found.classes == [[0], [1], [2]]
    assert found.relation(0, 1) == Relation("made", keys=("transform.train.flip.p",))
    assert found.relation(0, 2) == Relation("made", None, 2, ("seed",))


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ({}, {"data": "e"}, "data"),
        ({}, {"mode": "names"}, "unknown"),
        ({}, {"data": ""}, "unknown"),
        ({"sampler._target_": "Other"}, {"order": "y"}, "differ"),
        ({"sampler._target_": "Other"}, {"order": None, "orders": []}, "unknown"),
    ],
)
def test_what_is_known_without_ledgers(folder, first, second, kind):
    found = SameData.of([folder(**first), folder(**second)])
    assert found.relation(0, 1).kind == kind


def test_a_job_that_ended_early_joins_those_whose_batches_it_saw(folder):
    runs = [
        folder([1, 2, 3, 4], "a"),
        folder([1, 2, 9, 9], "b", "1"),
        folder([1, 2, 9], None),
        folder([1, 2], None),
    ]
    found = SameData.of(runs)
    assert found.classes == [[0], [1, 2], [3]], "the last one may be of either"
    assert found.relation(0, 1) == Relation("part", (0, 2), 2)
    assert found.relation(0, 2) == Relation("same", batches=2)


def test_long_ledgers_are_read_no_further_than_they_agree(folder, monkeypatch):
    monkeypatch.setattr(same_data, "_FIRST", 4)
    monkeypatch.setattr("penstock.runs.record._BLOCK", 200)
    read, real = [], same_data.read_ledger

    def counted(path, least):
        found = real(path, least)
        read.append((path.parent.name, len(found.epoch)))
        return found

    monkeypatch.setattr(same_data, "read_ledger", counted)
    orders = list(range(3000))
    late = [*orders[:1700], *range(9000, 9100), *orders[1800:]]
    runs = [folder(orders, "a"), folder([7, *orders[1:]], "b"), folder(late, "c")]
    found = SameData.of(runs)
    parts = {pair: one.address for pair, one in found.between.items()}
    assert parts == {(0, 1): (0, 0), (0, 2): (425, 0), (1, 2): (0, 0)}
    assert max(lines for name, lines in read if name == "2") < 20
    for name in ("1", "3"):
        lengths = [lines for own, lines in read if own == name]
        assert all(after > before for before, after in pairwise(lengths))
        assert lengths[-1] < 3000


def test_ledgers_that_do_not_fit_together_are_read_again(folder, monkeypatch):
    orders = list(range(500))
    runs = [folder([*orders[: 100 * n], *range(9000, 9400)], str(n)) for n in range(5)]
    wanted = SameData.of(runs).between
    monkeypatch.setattr(same_data, "_FIRST", 4)
    monkeypatch.setattr(same_data, "_MOST_KEPT", 600)
    monkeypatch.setattr("penstock.runs.record._BLOCK", 200)
    assert SameData.of(runs).between == wanted


def test_a_damaged_ledger_is_named_and_nothing_is_known(folder):
    runs = [folder([1, 2], None), folder([1, 2], None)]
    (runs[1].path / "ledger.jsonl").write_text('{"epoch": 0, "step": 0}\n')
    found = SameData.of(runs)
    assert len(found.troubles) == 1
    assert "ledger.jsonl, line 1 is broken" in found.troubles[0]
