import json
from types import SimpleNamespace

import pytest
import torch

from penstock.distributed.group import Group
from penstock.loading.bad_samples import Budget, LeftOut
from penstock.loading.batch import batch_hash
from penstock.order.address import Address, Skipped
from penstock.runs.folder import RunFolder
from penstock.tasks.observers import Digests, Ledger, Metrics, Quarantine
from penstock.training.meter import Meter, Step
from tests.support.toy import loader


def test_digests_are_a_line_a_batch(tmp_path):
    digests, epoch_metrics = Digests(tmp_path / "digests.jsonl"), Meter(Group())
    batches = list(loader().epoch(1))
    for batch in batches:
        epoch_metrics.add(batch, batch["label"].float())
    digests.on_steps(epoch_metrics.read())
    lines = [json.loads(line) for line in digests.path.read_text().splitlines()]
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, step) for step in range(5)]
    assert [line["hash"] for line in lines] == [batch_hash([batch]) for batch in batches]


def test_metrics_go_to_the_file(tmp_path):
    folder = RunFolder.claim(tmp_path / "run", {})
    metrics = Metrics(folder)
    metrics.on_log({"epoch": 0, "step": 5, "train/loss": 0.5})
    metrics.on_epoch_end({"epoch": 0, "step": 8, "train/loss": 0.4, "val/nme": 0.1})
    folder.release()
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["log", "epoch"]
    assert json.loads(lines[1])["train/loss"] == 0.4


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def step(epoch, number, **more):
    return Step(epoch, number, 0.5, 4, 255, **more)


def test_the_ledger_has_a_line_a_batch_and_one_a_range_that_is_left_out(tmp_path):
    skipped = Skipped.of([[[0, 1], [0, 3]], [[0, 4], [1, 1]], [[2, 0], [2, 1]]])
    ledger = Ledger(tmp_path / "ledger.jsonl", skipped)
    ledger.on_steps([step(0, 0), step(0, 3)])
    ledger.on_epoch_end({"epoch": 0})
    ledger.on_steps([step(1, 1)])
    ledger.on_epoch_end({"epoch": 1})
    lines = lines_of(ledger.path)
    assert lines[0] == {
        "epoch": 0,
        "step": 0,
        "samples": 4,
        "order": "00000000000000ff",
        "loss": (0.5).hex(),
    }
    places = [(line["epoch"], line["step"], line.get("skipped_to")) for line in lines]
    assert places == [(0, 0, None), (0, 1, [0, 3]), (0, 3, None), (0, 4, [1, 1]), (1, 1, None)]
    resumed = Ledger(tmp_path / "resumed.jsonl", skipped, Address(0, 3))
    resumed.on_steps([step(0, 3)])
    assert len(lines_of(resumed.path)) == 1, "the range before its start is of another session"
    plain = Ledger(tmp_path / "plain.jsonl")
    plain.on_epoch_end({"epoch": 0})
    assert not plain.path.exists()


def left_out(row):
    return LeftOut(row, row, 0, 0, f"{row}.jpg", "cut off", row=row)


def test_samples_that_are_left_out_are_written_counted_and_reported(tmp_path, caplog):
    budget = Budget(1.0, "train", lambda epoch: 100)
    observer = Quarantine(tmp_path / "quarantine.csv", {"train": "ab", "val": "cd"}, budget)
    observer.on_epoch_start(0, 5, 0)
    observer.on_epoch_end({"epoch": 0})
    assert caplog.messages == []
    observer.on_batch(SimpleNamespace(left_out=(left_out(3),)), torch.zeros(1))
    observer.on_steps([step(0, 0, left_out=(left_out(3),)), step(0, 1, left_out=(left_out(5),))])
    observer.on_steps([step(0, 2)])
    observer.on_validated([left_out(7)])
    observer.on_epoch_end({"epoch": 0})
    summary = f"epoch 0: left out 2 sample(s); {observer.file.path} has 3"
    assert caplog.messages[-1] == summary
    assert sum("3.jpg" in message for message in caplog.messages) == 1, "it is reported once"
    rows = observer.file.path.read_text().splitlines()[1:]
    assert [row.partition(",")[0] for row in rows] == ["train", "train", "val"]
    count = len(caplog.messages)
    observer.on_epoch_end({"epoch": 1})
    assert len(caplog.messages) == count


def test_a_budget_is_that_of_all_ranks(tmp_path):
    observer = Quarantine(
        tmp_path / "quarantine.csv", {"train": "ab"}, Budget(1, "train", lambda epoch: 100)
    )
    observer.on_epoch_start(0, 5, 0)
    observer.on_steps([step(0, 0, left_out=(left_out(1),))])
    with pytest.raises(Exception, match="bad_samples"):
        observer.on_steps([step(0, 1, left_out=(left_out(2),))])
