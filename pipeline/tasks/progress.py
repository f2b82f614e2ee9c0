"""What a fit shows while it runs, on stderr: a line an epoch, and on a terminal a bar below it.

    epoch  0 of 12  train/loss 0.0631  val/loss 0.0417  val/nme 0.1312  512 samples/s  7 % waiting
    epoch  1 of 12 ━━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━━ 13/25  loss 0.0389  498 samples/s  6 % waiting

"Waiting" is the share of the time in which training stood still for want of data.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Literal

from pipeline.fetch import Batch
from pipeline.loader import Loader
from pipeline.runner import Observer, Record
from pipeline.terminal import console, say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_REFRESH_SECONDS = 0.1


def make(
    kind: Literal["auto", "rich", "plain", "none"], loader: Loader, max_epochs: int
) -> Display:
    """The display of that kind; "auto" is a bar on a terminal and lines elsewhere."""
    if kind == "none":
        return Display()
    if kind == "rich" or (kind == "auto" and sys.stderr.isatty()):
        return Bar(loader, max_epochs)
    return Lines(max_epochs)


class Display(Observer):
    """Shows nothing."""

    def close(self) -> None:
        """Leave the screen as it was; what has been printed stays."""


class Lines(Display):
    """A line an epoch."""

    def __init__(self, max_epochs: int) -> None:
        self.max_epochs = max_epochs

    def on_epoch_end(self, record: Record) -> None:
        self._print(f"{self._epoch(int(record['epoch']))}  {describe(record)}")

    def _epoch(self, epoch: int) -> str:
        return f"epoch {epoch:>{len(str(self.max_epochs))}} of {self.max_epochs}"

    def _print(self, line: str) -> None:
        say(line)


class Bar(Lines):
    """A line an epoch and a bar for the one that runs.

    It is drawn from the training loop, ten times a second at most, and not by a thread of its own:
    worker processes are forked from this one, and a lock that a thread holds would stay locked in
    them.
    """

    def __init__(self, loader: Loader, max_epochs: int) -> None:
        super().__init__(max_epochs)
        self.loader = loader
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._loss = ""
        self._shown = 0.0

    def on_epoch_start(self, epoch: int, steps: int | None, done: int) -> None:
        self._bar = self._make_bar()
        self._task = self._bar.add_task(self._epoch(epoch), total=steps, completed=done, numbers="")
        self._bar.start()

    def on_batch(self, batch: Batch) -> None:
        now = time.perf_counter()
        done = batch.request.step + 1
        if self._bar is None or self._task is None or now - self._shown < _REFRESH_SECONDS:
            return
        stats = self.loader.stats
        speed = stats.samples / max(stats.total_seconds, 1e-9)
        numbers = f"{self._loss}{speed:,.0f} samples/s  {stats.wait_share:.0%} waiting"
        self._bar.update(self._task, completed=done, numbers=numbers)
        self._bar.refresh()
        self._shown = now

    def on_log(self, record: Record) -> None:
        self._loss = f"loss {record['train/loss']:.4g}  "

    def on_epoch_end(self, record: Record) -> None:
        self.close()
        super().on_epoch_end(record)

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _make_bar(self) -> Progress:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        return Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console(sys.stderr), transient=True, auto_refresh=False,
        )  # fmt: skip


def describe(record: Record) -> str:
    """A record's losses, metrics and speed in one line."""
    metrics = [
        f"{name} {value:.4g}"
        for name, value in record.items()
        if name.startswith(("train/", "val/")) and name.count("/") == 1  # not one a class
    ]
    speed = f"{record['samples_per_second']:,.0f} samples/s"
    return "  ".join([*metrics, speed, f"{record['wait_share']:.0%} waiting"])
