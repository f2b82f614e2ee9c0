import json

import numpy as np

from pipeline.fetch import batch_hash
from pipeline.run_folder import RunFolder
from pipeline.samplers import Random
from pipeline.tasks.recording import Digests, Metrics, Order
from tests.toy import loader


class Recorder:
    def __init__(self):
        self.logged = []

    def log(self, metrics, step):
        self.logged.append((step, dict(metrics)))


def order_of(batches):
    order = Order()
    for batch in batches:
        order.on_batch(batch)
    return order.digest()


def test_the_order_covers_addresses_and_indices():
    first = order_of(loader().epoch(0))
    assert first == order_of(loader().epoch(0))
    assert first != order_of(loader().epoch(1))
    assert first != order_of(list(loader().epoch(0))[:-1])
    assert first != order_of(loader(sampler=Random(40, 1)).epoch(0))


def test_padding_is_no_part_of_the_order():
    batch = next(loader().epoch(0))
    padded = next(loader().epoch(0))
    request = padded.request
    padded.request = type(request)(
        request.epoch, request.step, np.append(request.positions, 0),
        np.append(request.indices, 0), request.valid,
    )  # fmt: skip
    assert order_of([padded]) == order_of([batch])


def test_the_order_is_pinned():
    assert order_of(loader().epoch(0)) == "b8929e9f1f4d8c1b3ed0d4f9d9125027"


def test_digests_are_a_line_a_batch(tmp_path):
    digests = Digests(tmp_path / "digests.jsonl")
    batches = list(loader().epoch(1))
    for batch in batches:
        digests.on_batch(batch)
    lines = [json.loads(line) for line in digests.path.read_text().splitlines()]
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, step) for step in range(5)]
    assert [line["hash"] for line in lines] == [batch_hash([batch]) for batch in batches]


def test_metrics_go_to_the_file_and_the_tracker(tmp_path):
    folder, tracker = RunFolder.claim(tmp_path / "run", {}), Recorder()
    metrics = Metrics(folder, tracker)
    metrics.on_log({"epoch": 0, "step": 5, "train/loss": 0.5})
    metrics.on_epoch_end({"epoch": 0, "step": 8, "train/loss": 0.4, "val/nme": 0.1})
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["log", "epoch"]
    assert json.loads(lines[1])["train/loss"] == 0.4
    assert tracker.logged == [
        (5, {"epoch": 0, "train/loss": 0.5}),
        (8, {"epoch": 0, "epoch/train/loss": 0.4, "val/nme": 0.1}),
    ]
