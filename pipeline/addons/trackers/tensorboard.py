"""Event files for TensorBoard."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from penstock.addons.trackers.tracker import Points, TrackedRun, Tracker, require

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

require("tensorboard")


class TensorBoard(Tracker):
    """Event files for `tensorboard --logdir`.

    A resumed run writes another file, which makes TensorBoard discard events after the step at
    which it resumes.

    Args:
        flush_seconds: how long events may wait in memory, where a kill loses them.
    """

    _writer: SummaryWriter

    def __init__(self, folder: str | Path, run: TrackedRun, flush_seconds: int = 30) -> None:
        self.folder, self.run, self.flush_seconds = Path(folder), run, flush_seconds

    def start(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        resumed = self.run.resumed
        purge = None if resumed is None else resumed + 1  # the step itself was logged before
        self._writer = SummaryWriter(
            str(self.folder), purge_step=purge, flush_secs=self.flush_seconds
        )
        if resumed is None:
            text = yaml.safe_dump(dict(self.run.config), sort_keys=False, allow_unicode=True)
            # Indented: code in Markdown.
            self._writer.add_text("configuration", textwrap.indent(text, "    "), 0)

    def log(self, metrics: Points, step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def picture(self, name: str, path: Path, step: int) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        self._writer.add_image(name, pixels, step, dataformats="HWC")

    def close(self, ending: str = "done") -> None:
        self._writer.close()
