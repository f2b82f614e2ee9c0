"""What a fit tells while it runs, and to whom: files, trackers and displays are observers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pipeline.loading.batch import Batch
from pipeline.training.epoch_metrics import Step

Record = dict[str, float]


class Observer:
    """Is told what happens; subclasses override what they care for.

    Records have "epoch" and "step" (optimizer steps so far), and numbers such as "train/loss".
    """

    def on_epoch_start(self, epoch: int, steps: int | None, done: int) -> None:
        """Training on the `steps` batches of `epoch` begins; a stream may not know how many.

        `done` of them were trained on before the run was resumed.
        """

    def on_losses(self, losses: Tensor) -> None:
        """What this rank's share came to, float32[n] on its device; reading it waits for that."""

    def on_batch(self, batch: Batch) -> None:
        """This rank's share was trained on; a GPU may not have come to it yet."""

    def on_steps(self, steps: Sequence[Step]) -> None:
        """What became of the global batches since the last time, before anything is saved."""

    def on_validation(self, done: int, steps: int | None) -> None:
        """`done` of the `steps` batches of this validation were measured; 0 as it begins."""

    def on_validated(self, left_out: Sequence[Any]) -> None:
        """The validation split was measured, without what could not be read."""

    def on_log(self, record: Record) -> None:
        """Numbers since the last log: train/loss, lr, samples_per_second, wait_share."""

    def on_epoch_end(self, record: Record) -> None:
        """Numbers of the whole epoch, with val/<metric> where it was validated."""
