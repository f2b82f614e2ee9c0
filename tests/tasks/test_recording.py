import json

from penstock.distributed.group import Group
from penstock.loading.fetch import batch_hash
from penstock.runs.run_folder import RunFolder
from penstock.tasks.recording import Digests, Metrics
from penstock.training.epoch_metrics import EpochMetrics
from tests.toy import loader


def test_digests_are_a_line_a_batch(tmp_path):
    digests, epoch_metrics = Digests(tmp_path / "digests.jsonl"), EpochMetrics(Group())
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
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["log", "epoch"]
    assert json.loads(lines[1])["train/loss"] == 0.4
