"""The display of a fit on stderr: a line an epoch, and on a terminal a bar below it.

    epoch  0 of 12  train/loss 0.0631  val/loss 0.0417  val/nme 0.1312  512 samples/s  7 % waiting
    epoch  1 of 12 ━━━━━━━━━━╸━━━━━━━━━ 13/25  loss 0.0389  498 samples/s  6 % waiting  3 s left

"Waiting" is the share of the time in which training waits for data. If stderr is not a terminal, an
epoch that takes longer than a minute has a line a minute.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from penstock.loading.batch import Batch
from penstock.loading.loader import Loader
from penstock.terminal import REFRESH_SECONDS, bar, draws, fitted, left, say
from penstock.training.observer import Observer, Record

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_SECONDS = 60.0  # between two lines of an epoch, where there is no bar
_LOSS_SECONDS = 1.0  # between two looks at the loss, each of which waits for the device


def make(
    kind: Literal["auto", "rich", "plain", "none"],
    loader: Loader,
    max_epochs: int,
    compiles: bool = False,
) -> Display:
    """The display of that kind; "auto" is a bar on a terminal and lines elsewhere."""
    if kind == "none":
        return Display()
    if kind == "rich" or (kind == "auto" and draws(sys.stderr)):
        return Bar(loader, max_epochs, compiles)
    return Lines(loader, max_epochs, compiles)


class Display(Observer):
    """Shows nothing."""

    def close(self) -> None:
        """Leave the screen as it was; what has been printed stays."""


class Lines(Display):
    """A line an epoch, and one a minute within it.

    Args:
        loader: of the training split.
        compiles: whether the first batches of training and of validation wait for torch.compile.
    """

    _seconds = _LINE_SECONDS

    def __init__(self, loader: Loader, max_epochs: int, compiles: bool = False) -> None:
        self.loader = loader
        self.max_epochs = max_epochs
        self._compiles = {"training", "validation"} if compiles else set[str]()
        self._compiling = ""
        self._what = ""
        self._steps: int | None = None
        self._skips = loader.plan.skipped.count  # (epoch, first step, one past the last)
        self._epoch_shown: int | None = None  # in training
        self._start, self._began = 0, 0.0  # batches done when the count began, and that time
        self._shown = self._looked = 0.0
        self._losses: Tensor | None = None
        self._loss = ""

    def on_epoch_start(self, epoch: int, steps: int | None, done: int) -> None:
        self._what, self._epoch_shown = self._epoch(epoch), epoch
        self._begin(self._what, steps, done)
        self._announce_compiling("training")

    def on_losses(self, losses: Tensor) -> None:
        self._losses = losses

    def on_batch(self, batch: Batch) -> None:
        self._announce_compiled()
        done = batch.request.step + 1
        if not self._is_time():
            return
        if self._losses is not None and len(self._losses) and self._shown >= self._looked:
            self._loss = f"loss {float(self._losses.mean()):.4g}  "
            self._looked = self._shown + _LOSS_SECONDS
        stats = self.loader.stats
        speed = stats.samples / max(stats.total_seconds, 1e-9)
        self._show(done, f"{self._loss}{speed:,.0f} samples/s  {stats.wait_share:.0%} waiting")

    def on_validation(self, done: int, steps: int | None) -> None:
        if not done:
            self._epoch_shown = None
            self._begin(f"{self._what}, validation" if self._what else "measuring", steps, 0)
            if self._what:  # before, it is another model
                self._announce_compiling("validation")
            return
        self._announce_compiled()
        if self._is_time():
            self._show(done, "")

    def on_epoch_end(self, record: Record) -> None:
        self._what = ""
        self._print(f"{self._epoch(int(record['epoch']))}  {describe(record)}")

    def _epoch(self, epoch: int) -> str:
        return f"epoch {epoch:>{len(str(self.max_epochs))}} of {self.max_epochs}"

    def _begin(self, what: str, steps: int | None, done: int) -> None:
        self._counted, self._steps, self._start = what, steps, done
        self._began = self._shown = time.perf_counter()

    def _is_time(self) -> bool:
        now = time.perf_counter()
        if now - self._shown < self._seconds:
            return False
        self._shown = now
        return True

    def _left(self, done: int) -> str:
        rest = None if self._steps is None else self._worked(self._steps)
        return left(self._worked(done), rest, self._shown - self._began)

    def _worked(self, done: int) -> int:
        """Batches of these steps that take time: those that training leaves out do not."""
        epoch, start = self._epoch_shown, self._start
        return done - start - (0 if epoch is None else self._skips(epoch, start, done))

    def _show(self, done: int, numbers: str) -> None:
        place = f"{done}/{self._steps or '?'}"
        self._print("  ".join(filter(None, (self._counted, place, numbers, self._left(done)))))

    def _print(self, line: str) -> None:
        say(fitted(line))

    def _announce_compiling(self, part: str) -> None:
        if part in self._compiles:
            self._compiles.discard(part)
            self._compiling = part
            self._print(
                f"compiling the model for {part}, before its first batch; this can take "
                "minutes (trainer.compile=true)"
            )

    def _announce_compiled(self) -> None:
        if self._compiling:
            seconds = time.perf_counter() - self._began
            self._print(f"compiled for {self._compiling} in {seconds:.0f} s")
            self._compiling = ""
            self._begin(self._counted, self._steps, self._start)


class Bar(Lines):
    """A line an epoch and a bar for the one that runs, drawn ten times a second at most."""

    _seconds = REFRESH_SECONDS

    def __init__(self, loader: Loader, max_epochs: int, compiles: bool = False) -> None:
        super().__init__(loader, max_epochs, compiles)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def on_epoch_end(self, record: Record) -> None:
        self.close()
        super().on_epoch_end(record)

    def on_validation(self, done: int, steps: int | None) -> None:
        super().on_validation(done, steps)
        if done and done == steps:  # what comes next may take long, too, and have a bar of its own
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _begin(self, what: str, steps: int | None, done: int) -> None:
        super()._begin(what, steps, done)
        self.close()
        self._bar = bar()
        self._task = self._bar.add_task(
            what, total=steps, completed=done, place=f"{done}/{steps or '?'}", numbers=""
        )
        self._bar.start()

    def _show(self, done: int, numbers: str) -> None:
        if self._bar is None or self._task is None:
            return
        numbers = "  ".join(filter(None, (numbers, self._left(done))))
        place = f"{done}/{self._steps or '?'}"
        self._bar.update(self._task, completed=done, place=place, numbers=numbers)
        self._bar.refresh()

    def _print(self, line: str) -> None:
        if self._bar is None:
            super()._print(line)
        else:
            self._bar.console.print(line, highlight=False)


def describe(record: Record) -> str:
    """A record's losses, metrics and speed in one line."""
    metrics = [
        f"{name} {value:.4g}"
        for name, value in record.items()
        if name.startswith(("train/", "val/")) and name.count("/") == 1  # not one a class
    ]
    unit = "tokens" if "tokens_per_second" in record else "samples"
    speed = f"{record[f'{unit}_per_second']:,.0f} {unit}/s"
    shared = record.get("shared_batches")
    taken = [] if shared is None else [f"{shared:.0f} batches of other runs"]
    waiting = f"{record['wait_share']:.0%} waiting"
    return "  ".join([*metrics, speed, waiting, *taken])
