"""Callbacks of a fit: files, trackers and displays are observers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from penstock.loading.batch import Batch
from penstock.runs.folder import Status
from penstock.runs.only_shown import only_shown
from penstock.training.epoch_metrics import Step

Record = dict[str, float]


class Observer:
    """Base class whose methods do nothing; override the ones you need.

    Records have "epoch", "step" (optimizer steps so far) and numbers such as "train/loss".

    Attributes:
        enough: a reason to end the fit after this epoch, on all ranks; an observer sets its own.
    """

    enough: str | None = None

    def on_epoch_start(self, epoch: int, steps: int | None, done: int) -> None:
        """An epoch of `steps` batches (None: unknown) begins; `done` of them before a resume."""

    def on_losses(self, losses: Tensor) -> None:
        """Losses of this rank's share, float32[n] on the device; reading them waits for it."""

    def on_batch(self, batch: Batch) -> None:
        """This rank's share was trained on; a GPU may still be at work."""

    def on_steps(self, steps: Sequence[Step]) -> None:
        """Results of the global batches since the last call, before anything is saved."""

    def on_validation(self, done: int, steps: int | None) -> None:
        """`done` of `steps` validation batches were measured; 0 at the start."""

    def on_validation_batch(self, batch: Batch, losses: Tensor) -> None:
        """Losses of this rank's share, float32[n] on the device, without padding."""

    def on_validated(self, left_out: Sequence[Any]) -> None:
        """Validation is over; `left_out` are its unreadable samples, of all ranks."""

    def on_log(self, record: Record) -> None:
        """Numbers since the last log: train/loss, lr, samples_per_second, wait_share."""

    def on_record(self, record: Record) -> None:
        """The record of an epoch, before `on_epoch_end`: add numbers here."""

    def on_epoch_end(self, record: Record) -> None:
        """Numbers of the whole epoch, with val/<metric> if it was validated."""

    def on_done(self) -> None:
        """The fit has reached its end, and its results are printed."""

    def on_file(self, name: str, path: Path) -> None:
        """A result lies at `path`: a folder, a checkpoint, a picture."""

    def on_end(self, status: Status) -> None:
        """However the fit ended, the run's manifest is complete; left out if there is no run."""

    def on_close(self, status: Status) -> None:
        """The last call: close files and connections."""


class OnlyShows(Observer):
    """An observer whose first error costs a warning; it gets no further events.

    Args:
        what: is missing then.
    """

    def __init__(self, what: str, observer: Observer) -> None:
        self._what, self._works = what, True
        for name in vars(Observer):
            if name.startswith("on_"):
                setattr(self, name, partial(self._tell, getattr(observer, name)))

    def _tell(self, call: Any, *arguments: Any) -> None:
        if self._works:
            self._works = False
            with only_shown(self._what):
                call(*arguments)
                self._works = True
