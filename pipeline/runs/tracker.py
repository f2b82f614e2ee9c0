"""Where metrics go besides the run's own metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Tracker(Protocol):
    """Receives metrics and pictures; `step` counts optimizer steps."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def picture(self, name: str, path: Path, step: int) -> None: ...

    def close(self) -> None: ...


class Nothing:
    """Tracks nothing."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        pass

    def picture(self, name: str, path: Path, step: int) -> None:
        pass

    def close(self) -> None:
        pass


class TensorBoard:
    """Event files for `tensorboard --logdir`.

    The first log imports tensorboard (about 1 s) and makes the folder.

    Args:
        flush_seconds: how long events may wait in memory.
    """

    def __init__(self, folder: str | Path, flush_seconds: int = 30) -> None:
        self.folder = Path(folder)
        self.flush_seconds = flush_seconds
        self._writer: SummaryWriter | None = None

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._open().add_scalar(name, value, step)

    def picture(self, name: str, path: Path, step: int) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        self._open().add_image(name, pixels, step, dataformats="HWC")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> SummaryWriter:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), flush_secs=self.flush_seconds)
        return self._writer
