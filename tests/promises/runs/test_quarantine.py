"""quarantine.csv: what is written of bad samples, and what it means to a later run."""

import csv
import multiprocessing
import os
import random
import re
import signal
import time
from pathlib import Path

import pandas as pd
import pytest

from penstock.datasets.image_folder import ImageFolder
from penstock.errors import ConfigError
from penstock.loading.bad_samples import LeftOut
from penstock.order.plan import Plan, StreamOrder, StreamPlan
from penstock.order.samplers import Sequential
from penstock.runs.quarantine import (
    NAME,
    Entry,
    QuarantineFile,
    entries,
    known_rows,
    policy,
    read,
)
from tests.support import broken_images, streams
from tests.support.program import run

ROOT = Path(__file__).parents[3]
FIT = [
    "dataset=image_folder",
    "trainer=quick",
    "trainer.max_epochs=2",
    "batch.size=6",
    "tracker=none",
    "trainer.pictures=false",
    "trainer.baseline=false",
    "trainer.digest=true",
    "transform.train.crop.size=[32,32]",
    "transform.val.resize.size=[32,32]",
]


def left_out(index, position=None, epoch=0, step=0, path="", cause="cut off"):
    position = index if position is None else position
    return LeftOut(index, position, epoch, step, path, cause)


def test_a_sample_stands_in_it_once_where_it_was_met_first(tmp_path):
    file = QuarantineFile(tmp_path / NAME)
    assert not file.path.exists()
    met = [left_out(7, 20, step=3), left_out(7, 4, step=1), left_out(3, path="a/3.jpg")]
    assert [one.index for one in file.add(entries(met, "train", "f"))] == [3, 7]
    assert file.add(entries([left_out(7, epoch=1)], "train", "f")) == []
    assert [one.split for one in file.add(entries([left_out(7)], "val", "g"))] == ["val"]
    assert [(one.split, one.index, one.step, one.position) for one in read(file.path)] == [
        ("train", 3, 0, 3),
        ("train", 7, 1, 4),
        ("val", 7, 0, 7),
    ]
    assert len(file) == 3
    table = pd.read_csv(file.path)
    assert tuple(table.columns) == Entry._fields


def test_what_ranks_left_out_makes_the_same_lines_however_it_was_shared_out():
    some = [left_out(n % 5, n, n // 8, n % 8) for n in range(16)]
    expected = entries(some, "train", "f")
    for seed in range(5):
        shuffled = random.Random(seed).sample(some, len(some))
        assert entries(shuffled, "train", "f") == expected


def test_a_cause_may_hold_anything(tmp_path):
    cause = 'it is "no" image, but ärger; \u2028 =1+1'
    file = QuarantineFile(tmp_path / NAME)
    file.add(entries([left_out(1, path='a, b/"c".jpg', cause=cause)], "train", "f"))
    (entry,) = read(file.path)
    assert (entry.path, entry.cause) == ('a, b/"c".jpg', cause)


def test_what_a_crash_cut_off_is_passed_over_and_written_again(tmp_path):
    path = tmp_path / NAME
    QuarantineFile(path).add(entries([left_out(n) for n in range(3)], "train", "f"))
    whole = path.read_bytes()
    for size in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:size])
        known = len(read(path))
        again = QuarantineFile(path)
        assert len(again) == known <= 2
        again.add(entries([left_out(n) for n in range(3)], "train", "f"))
        assert path.read_bytes() == whole


def write_for_ever(path):
    file = QuarantineFile(path)
    for number in range(10**9):
        file.add(entries([left_out(number)], "train", "f"))


def test_it_survives_sigkill(tmp_path):
    process = multiprocessing.get_context("spawn").Process(
        target=write_for_ever, args=(tmp_path / NAME,)
    )
    process.start()
    while not (tmp_path / NAME).exists() or len(read(tmp_path / NAME)) < 20:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert [one.index for one in read(tmp_path / NAME)] == list(
        range(len(QuarantineFile(tmp_path / NAME)))
    )


def written(tmp_path, *some, split="train", dataset="f"):
    QuarantineFile(tmp_path / NAME).add(entries(some, split, dataset))
    return tmp_path / NAME


def test_a_sample_is_known_by_its_index_in_that_dataset_alone(tmp_path):
    path = written(tmp_path, left_out(5))
    assert known_rows(path, "train", "f") == {5: "cut off"}
    assert known_rows(path, "val", "f") == {}
    told = r"bad_samples\.quarantine.* another dataset: .* its train split is f, .* one is g"
    with pytest.raises(ConfigError, match=told):
        known_rows(path, "train", "g")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("a,b\n1,2\n", "split"),
        (",".join(Entry._fields) + "\ntrain,x,,0,0,0,c,f\n", "invalid literal for int.*'x'"),
        (",".join(Entry._fields) + "\ntrain,1\n", "invalid literal for int"),
        (b"\xff\xfe\n", "split"),
    ],
)
def test_what_is_no_quarantine_is_refused(tmp_path, content, message):
    path = tmp_path / "x.csv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message):
        known_rows(path, "train", "f")


def test_records_whose_numbers_change_cannot_be_named(tmp_path):
    path = str(written(tmp_path, left_out(5)))
    plain = StreamPlan(StreamOrder(0), 4)
    assert policy("skip", path, "train", plain, streams.Plain(9), "f", 0).known.keys() == {5}
    shuffled = StreamPlan(StreamOrder(0, shuffle_shards=True), 4)
    with pytest.raises(ConfigError, match="other numbers in each epoch"):
        policy("skip", path, "train", shuffled, streams.Sharded(9), "f", 0)


def test_validation_skips_what_training_substitutes():
    plan, rows = Plan(Sequential(9), 3), list(range(9))
    assert policy("substitute", None, "train", plan, rows, "", 0).on_error == "substitute"
    assert policy("substitute", None, "val", plan, rows, "", 0).on_error == "skip"
    assert policy("raise", None, "val", plan, rows, "", 0).on_error == "raise"


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = broken_images.write_images(tmp_path / "images", 45, 32)
    train = ImageFolder(str(tmp_path / "images"), "train")
    rows = [paths.index(Path(train.path(row))) for row in (4, 9, 20)]
    val = ImageFolder(str(tmp_path / "images"), "val")
    broken_images.damage(paths, [*rows, paths.index(Path(val.path(1)))])
    return f"dataset.root={tmp_path / 'images'}"


def hashes(folder):
    return (folder / "digests.jsonl").read_text()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_a_run_writes_it_and_the_next_one_meets_none_of_it_again(
    images, on_error, capsys, tmp_path
):
    policy = [f"bad_samples.on_error={on_error}", "bad_samples.budget=0.1"]
    first = run(capsys, *FIT, images, *policy, "run_dir=first")
    assert first.code == 0, first.err
    assert first.err.count("left out: sample") == 4
    assert "epoch 0: left out 3 sample(s); first/quarantine.csv has 4" in first.err
    with Path("first", NAME).open() as file:
        lines = list(csv.DictReader(file))
    assert {(line["split"], line["index"]) for line in lines} == {
        ("train", "4"),
        ("train", "9"),
        ("train", "20"),
        ("val", "1"),
    }
    given = "bad_samples.quarantine=first/quarantine.csv"
    strict = [f"bad_samples.on_error={on_error}", "bad_samples.budget=0"]
    second = run(capsys, *FIT, images, *strict, given, "run_dir=second")
    assert second.code == 0, second.err
    assert hashes(Path("second")) == hashes(Path("first"))
    assert read(Path("second", NAME)) == read(Path("first", NAME))
    skipping = run(capsys, *FIT, images, given, "run_dir=third", "trainer.max_epochs=1")
    assert skipping.code == 0, skipping.err
    same = hashes(Path("first")).startswith(hashes(Path("third")))
    assert same is (on_error == "skip")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("budget", "allowed"), [("2", 2), ("0.05", 2), ("0", 0)])
def test_a_run_over_its_budget_ends_with_code_3(images, budget, allowed, capsys):
    outcome = run(capsys, *FIT, images, "bad_samples.on_error=skip", f"bad_samples.budget={budget}")
    assert outcome.code == 3, outcome.err
    assert f"of the train split (36 samples), and bad_samples.budget={budget} allows {allowed}" in (
        outcome.err
    )
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("bad_samples.on_error=ignore", r"bad_samples\.on_error.*'raise', 'substitute'"),
        ("bad_samples.budget=-1", r"bad_samples\.budget: .*greater than.*got -1"),
        ("bad_samples.budget=1.5", r"bad_samples\.budget: .*less than or equal to 1, got 1\.5"),
        (
            "bad_samples.quarantine=x.csv",
            r"bad_samples\.quarantine: 'x\.csv' is no quarantine that can be read",
        ),
        ("split=both", r"split.*task=check"),
    ],
)
def test_what_cannot_be_meant(override, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = "task=digest" if override.startswith("split") else "task=fit"
    outcome = run(capsys, task, override)
    assert outcome.code == 2
    assert re.search(message, outcome.err), outcome.err
