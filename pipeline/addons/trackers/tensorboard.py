"""Event files for TensorBoard."""

from __future__ import annotations

from pathlib import Path

import yaml
from torch.utils.tensorboard import SummaryWriter

from penstock.addons.trackers.tracker import TrackedRun, Tracker


class TensorBoard(Tracker):
    """Event files for `tensorboard --logdir`.

    A resumed run writes another file, which makes TensorBoard discard events after the step at
    which it resumes.

    Args:
        flush_seconds: how long events may wait in memory, where a kill loses them.
    """

    def __init__(self, folder: str | Path, run: TrackedRun, flush_seconds: int = 30) -> None:
        # The step itself was logged before.
        purge = None if run.resumed is None else run.resumed + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge, flush_secs=flush_seconds)
        if run.resumed is None:
            self._writer.add_text("configuration", f"```\n{yaml.safe_dump({**run.config})}```", 0)

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, status: str) -> None:
        self._writer.close()
