"""Event files for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from penstock.addons.trackers.tracker import Points, TrackedRun, Tracker, require

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

require("tensorboard")


class TensorBoard(Tracker):
    """Event files for `tensorboard --logdir`.

    A resumed run writes another file, which makes TensorBoard discard events at or after the step
    at which it resumes.

    Args:
        flush_seconds: how long events may wait in memory.
    """

    def __init__(self, folder: str | Path, run: TrackedRun, flush_seconds: int = 30) -> None:
        self.folder = Path(folder)
        self.run = run
        self.flush_seconds = flush_seconds
        self._writer: SummaryWriter | None = None

    def start(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        resumed = self.run.resumed
        first = not any(self.folder.glob("events.out.tfevents.*"))
        since = 0 if first or resumed is None else resumed
        self._writer = SummaryWriter(
            str(self.folder), purge_step=since or None, flush_secs=self.flush_seconds
        )
        if first:
            text = yaml.safe_dump(dict(self.run.config), sort_keys=False, allow_unicode=True)
            indented = "".join(f"    {line}\n" for line in text.splitlines())
            self._writer.add_text("configuration", indented, 0)  # indented: code in Markdown
        for metrics, step in self.run.before:
            if step >= since:
                self.log(metrics, step)

    def log(self, metrics: Points, step: int) -> None:
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)

    def picture(self, name: str, path: Path, step: int) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        if self._writer is not None:
            self._writer.add_image(name, pixels, step, dataformats="HWC")

    def close(self, ending: str = "done") -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
