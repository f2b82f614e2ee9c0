"""`task=check` piece by piece: what is wrong with a sample, and what is said of a split."""

from contextlib import suppress
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import penstock
from penstock.build.data import DataParts
from penstock.distributed.preemption import Preempted, Stop
from penstock.distributed.world import World
from penstock.errors import ConfigError, DataError
from penstock.loading.bad_samples import LeftOut, SampleError
from penstock.loading.collate import Stack
from penstock.order.plan import Request
from penstock.tasks import check
from penstock.tasks.check import Check
from tests.tasks import test_empty_epochs
from tests.tasks.test_empty_epochs import Records, Rows

trusted = test_empty_epochs.trusted  # runs for each test


class Damaged:
    """Rows of which most are bad, each in its way."""

    def __len__(self):
        return 6

    def __getitem__(self, row):
        if row == 1:
            raise ValueError("torn")
        return {"x": torch.tensor([torch.nan if row == 2 else row])}

    def check(self, row):
        if row == 4:
            raise KeyError("odd")
        return "silent" if row == 5 else None


class Unchecked(Damaged):
    def check(self, row):
        raise ConfigError("this dataset cannot be checked")


def refuse_three(sample):
    if sample["x"][0] == 3:
        raise ValueError("three")
    return sample


def test_each_sample_has_its_cause():
    indices = np.array([5, 4, 3, 2, 1, 0])
    request = Request(2, 3, indices + 10, indices, 6)
    batch = Check(Damaged(), refuse_three, Stack(), 7)(request)
    assert batch.keys() == set()
    found = {sample.index: sample for sample in batch.left_out}
    assert list(found) == [5, 4, 3, 2, 1]
    assert [sample.position for sample in batch.left_out] == [15, 14, 13, 12, 11]
    causes = {row: sample.cause for row, sample in found.items()}
    assert (causes[5], causes[2]) == ("silent", "field 'x' has 1 of 1 values that are not finite")
    assert causes[1].startswith("ValueError: torn")
    assert causes[3].startswith("transform failed: ValueError: three")
    assert causes[4].startswith("KeyError: 'odd'")
    assert {(one.epoch, one.step, one.row) for one in batch.left_out} == {(2, 3, None)}
    with pytest.raises(ConfigError, match="cannot be checked"):
        Check(Unchecked(), None, Stack(), 7)(request)


class Together(Damaged):
    """Rows that are whole one by one, and cannot be read at once."""

    def __getitem__(self, row):
        return {"x": torch.tensor([0.0])}

    def __getitems__(self, rows):
        if len(rows) > 1:
            raise ValueError("not at once")
        return [self[row] for row in rows]

    def check(self, row):
        return None


def test_a_failure_that_is_of_no_sample_ends_the_check():
    rows = np.arange(3)
    with pytest.raises(SampleError, match="not at once"):
        Check(Together(), None, Stack(), 7)(Request(0, 0, rows, rows, 3))


def composed(*more, kind=Rows):
    return penstock.compose(*test_empty_epochs.words(kind), "task=check", *more)


@pytest.mark.parametrize("kind", [Rows, Records])
@pytest.mark.parametrize("progress", ["plain", "none"])
def test_a_split_is_counted_and_said(kind, progress, capsys, monkeypatch):
    config = composed(f"trainer.progress={progress}", kind=kind)
    split = DataParts(config, World()).split("train")
    wrong = []
    assert check.check(split, wrong) == 8
    said = ["checked train: 8 samples in 2.0 s, 0 wrong"] if progress == "plain" else []
    clock = count(5.0, 2.0)
    monkeypatch.setattr(check, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    capsys.readouterr()
    assert check.check(split, wrong) == 8
    assert capsys.readouterr().err.splitlines() == said
    assert wrong == []
    of = " of 8" if kind is Rows else ""
    for numbers in ((3, 2), None):
        with (
            check.make_loader(split) as loader,
            suppress(KeyError),
            check._counted(split, loader) as show,
        ):
            if numbers:
                show(*numbers)
            raise KeyError
        samples, bad_ones = numbers or (0, 0)
        line = f"checking train was interrupted: {samples}{of} samples in 2.0 s, {bad_ones} wrong"
        assert capsys.readouterr().err.splitlines() == ([line] if progress == "plain" else [])


def bad(index, folder=""):
    return LeftOut(index, index, 0, 0, f"{folder}{index}.png", "torn", "skip")


@pytest.mark.parametrize("split", ["both", "val"])
def test_add_ons_look_at_data_in_which_nothing_is_wrong(split, monkeypatch, capsys):
    looked = []
    monkeypatch.setattr(check.seams, "print_overlaps", looked.append)
    check.run(composed(f"split={split}"))
    samples = 12 if split == "both" else 4
    assert capsys.readouterr().out == f"{samples} samples, nothing wrong with them\n"
    assert len(looked) == (split == "both")


def test_bad_samples_of_both_splits_are_written(monkeypatch, capsys, tmp_path):
    def found(split, wrong):
        wrong.append(bad(1, split.name))
        return 5

    monkeypatch.setattr(check, "check", found)
    with pytest.raises(DataError, match=r"^2 of 10 samples are bad\..*run/quarantine\.csv$"):
        check.run(composed())
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [["train", "1", "train1.png", "torn"], ["val", "1", "val1.png", "torn"]]
    assert lines == [["split", "index", "path", "cause"], *rows]
    assert len((tmp_path / "run" / "quarantine.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(("name", "kind"), [("SIGINT", Stop), ("SIGTERM", Preempted)])
@pytest.mark.parametrize("number", [0, 1])
def test_a_check_that_is_interrupted_says_what_it_found(name, kind, number, monkeypatch, capsys):
    def stopped(split, wrong):
        wrong += [bad(row) for row in range(number)]
        raise Stop(name)

    monkeypatch.setattr(check, "check", stopped)
    with pytest.raises(kind, match="the same command starts it again"):
        check.run(composed())
    assert len(capsys.readouterr().out.splitlines()) == 2 * number
