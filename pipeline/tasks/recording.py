"""What a fit writes down while it runs: metrics, and which samples were trained on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from pipeline.fetch import Batch, batch_hash
from pipeline.run_folder import RunFolder
from pipeline.runner import Observer, Record
from pipeline.tracker import Tracker


class Metrics(Observer):
    """Sends every record to the run's metrics.jsonl and to the tracker."""

    def __init__(self, folder: RunFolder, tracker: Tracker) -> None:
        self.folder = folder
        self.tracker = tracker

    def on_log(self, record: Record) -> None:
        self._write("log", record)

    def on_epoch_end(self, record: Record) -> None:
        self._write("epoch", record)

    def _write(self, event: str, record: Record) -> None:
        self.folder.log({"event": event, **record})
        metrics = {name: value for name, value in record.items() if name != "step"}
        if event == "epoch":  # so that its mean is no second curve's point at the same step
            metrics["epoch/train/loss"] = metrics.pop("train/loss")
        self.tracker.log(metrics, int(record["step"]))


class Order(Observer):
    """One hash over which samples were trained on, in which order; about 1 us a batch.

    Two runs with the same hash trained on the same samples at the same addresses.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def on_batch(self, batch: Batch) -> None:
        request = batch.request
        address = np.array(request.address, dtype="<i8")
        indices = request.indices[: request.valid].astype("<i8", copy=False)
        self._hash.update(address.tobytes() + indices.tobytes())

    def digest(self) -> str:
        """The hash over all batches so far."""
        return self._hash.hexdigest()


class Digests(Observer):
    """A line of {epoch, step, hash} for every batch trained on, as `task=digest` hashes them.

    The loader has to hash; `path` is a .jsonl.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_batch(self, batch: Batch) -> None:
        epoch, step = batch.request.address
        line = json.dumps({"epoch": epoch, "step": step, "hash": batch_hash([batch])})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
