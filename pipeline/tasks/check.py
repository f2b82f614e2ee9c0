"""`task=check`: read everything once, before a run is spent on it.

1. Every sample of the split is read and goes through the split's transforms, on the configured
   loader's workers, with a bar on stderr.
2. A dataset may have more to say of a sample that can be read: `dataset.check(index) -> str | None`
   (datasets/reading/damage.py). Numbers that are not finite are found in any dataset.
3. What is wrong is listed on stdout (split, index, path, cause), and written to a quarantine.csv
   in a run folder, which a run can be given as bad_samples.quarantine.

Exit code 3 if anything is wrong; 130 or 75 where it is interrupted, with what was found so far.
Cost: about that of an epoch of loading; for JPEG and FLAC twice.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pipeline.build.data import DataParts, Split
from pipeline.config.schema import Config
from pipeline.distributed.preemption import Preempted, Stop
from pipeline.distributed.world import World
from pipeline.errors import DataError
from pipeline.loading.bad_samples import BadSampleError, LeftOut, Stage, in_one_line, path_of
from pipeline.loading.batch import Batch
from pipeline.loading.fetch import Fetch
from pipeline.loading.loader import Loader
from pipeline.loading.sample_reader import SampleReader
from pipeline.loading.stream_fetch import StreamFetch
from pipeline.order.plan import Plan, Request
from pipeline.order.randomness import Draws, sample_keys
from pipeline.order.samplers import Sequential
from pipeline.order.streams import StreamOrder, StreamPlan
from pipeline.runs.quarantine import NAME, Entry, QuarantineFile, entries
from pipeline.runs.run_folder import RunFolder
from pipeline.terminal import console, one_line, put, say

if TYPE_CHECKING:
    from rich.progress import Progress

_REFRESH_SECONDS = 0.1


def run(config: Config) -> None:
    """Check `config.split`.

    Raises:
        DataError: something is wrong with it.
    """
    data = DataParts(config, World())
    splits = ("train", "val") if config.split == "both" else (config.split,)
    found: list[Entry] = []
    count = 0
    for split in map(data.split, splits):
        wrong: list[LeftOut] = []
        try:
            count += check(split, wrong)
        except Stop as stop:
            found += entries(wrong, split.name, split.fingerprint["dataset"])
            raise _interrupted(stop, found) from None
        found += entries(wrong, split.name, split.fingerprint["dataset"])
    if not found:
        put(f"{count} samples, nothing wrong with them")
        return
    print_table(found)
    folder = RunFolder.claim(Path(config.run_dir), config.written())
    QuarantineFile(folder.path / NAME).add(found)
    folder.finish("done")
    raise DataError(
        f"{len(found)} of {count} samples are bad. Repair them or take them out of the data; or "
        f"leave them out of a run: bad_samples.quarantine={folder.path / NAME}"
    )


def _interrupted(stop: Stop, found: Sequence[Entry]) -> BaseException:
    """Show what was found so far; the error to end with, which says that it is not all."""
    if found:
        print_table(found)
    if stop.name == "SIGINT":
        return stop
    return Preempted(f"{stop.name}: the check was interrupted; the same command begins it again")


def check(split: Split, wrong: list[LeftOut]) -> int:
    """Read a split and add what is wrong with its samples to `wrong`; returns how many it has."""
    count = 0
    with (
        make_loader(split) as loader,
        _progress(split, loader) as show,
        closing(loader.epoch(0)) as batches,
    ):
        for batch in batches:
            count += batch.request.valid
            wrong += batch.left_out
            show(count, len(wrong))
    return count


def make_loader(split: Split) -> Loader:
    """Batches that hold nothing but what is wrong with the samples of a split, each once."""
    made, plan = split.loader(), split.plan
    made.close()
    own: Plan | StreamPlan
    fetch: Fetch
    common = made.fetch.dataset, made.fetch.transform, made.fetch.collate, made.fetch.seed
    names = made.fetch.fields
    if isinstance(plan, StreamPlan):
        order = StreamOrder(plan.sampler.seed, steps=plan.sampler.steps)
        own = StreamPlan(order, plan.batch_size, length=plan.length)
        fetch = CheckStream(*common, fields=names, order=order, batch_size=plan.batch_size)
    else:
        own = Plan(Sequential(len(made.fetch.dataset)), plan.batch_size)
        fetch = Check(*common, fields=names)
    return Loader(own, fetch, replace(made.options, persistent_workers=False), World())


class _Checking(Fetch):
    """Tells what is wrong with samples, in place of their batch."""

    def work(self, request: Request, rows: Any, draws: Draws, stand_ins: Any = None) -> Batch:
        share = _Suspicious(
            request, rows, self.dataset, self.transform, self.bad, None, self._many, draws,
            self.fields,
        )  # fmt: skip
        batch = Batch({}, request, np.arange(len(request)))
        keys = sample_keys(self.seed, request.epoch, request.positions)
        batch.left_out = tuple(self._wrong(share, request, keys, draws))
        return batch

    def _wrong(
        self, share: SampleReader, request: Request, keys: Sequence[int], draws: Draws
    ) -> Iterator[LeftOut]:
        for place, key in enumerate(keys):
            row = int(request.indices[place])
            draws.seed(key)
            try:
                cause = not_finite(share.transformed(share.read(place), place))
                cause = cause or self._suspicion(row)
            except BadSampleError as error:
                cause = error.cause
            if cause is not None:
                path, position = path_of(self.dataset, row), int(request.positions[place])
                yield LeftOut(row, position, *request.address, path, cause, "skip")

    def _suspicion(self, row: int) -> str | None:
        if not hasattr(self.dataset, "check"):
            return None
        try:
            said: str | None = self.dataset.check(row)
        except Exception as error:
            return in_one_line(error)
        return said


class Check(_Checking):
    """Checks rows."""


class CheckStream(_Checking, StreamFetch):
    """Checks records."""


class _Suspicious(SampleReader):
    """Whatever goes wrong with a sample is said of it, and ends nothing."""

    def _failed(
        self, error: Exception, stage: Stage, place: int, never_left_out: bool = False
    ) -> Exception:
        if never_left_out:
            return super()._failed(error, stage, place, never_left_out)
        cause = in_one_line(error)
        return BadSampleError(cause if stage == "read" else f"{stage} failed: {cause}")


def not_finite(sample: Any) -> str | None:
    """Which field of a sample has a number that is NaN or infinite; None: none."""
    fields = sample.items() if isinstance(sample, dict) else ()
    for name, value in fields:
        tensor = torch.as_tensor(value) if isinstance(value, (np.ndarray, float)) else value
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            bad = int((~torch.isfinite(tensor)).sum())
            if bad:
                return f"field {name!r} has {bad} of {tensor.numel()} values that are not finite"
    return None


def print_table(found: Sequence[Entry]) -> None:
    """Print to stdout what is wrong: a line a sample, whole also in a pipe."""
    header = ("split", "index", "path", "cause")
    lines = [
        header,
        *((one.split, str(one.index), one_line(one.path), one_line(one.cause)) for one in found),
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line[:3], widths, strict=True)]
        put("  ".join([*cells, line[3]]))


@contextmanager
def _progress(split: Split, loader: Loader) -> Iterator[Any]:
    """A function of samples read and samples wrong that shows them, on a terminal as a bar."""
    kind, name = split.config.trainer.progress, split.name
    length = getattr(loader.fetch.dataset, "__len__", lambda: None)()
    began = time.perf_counter()
    numbers = [0, 0]
    bar = _bar() if kind == "rich" or (kind == "auto" and sys.stderr.isatty()) else None
    task = bar.add_task(f"checking {name}", total=length, wrong="") if bar else None
    shown = 0.0

    def show(count: int, wrong: int) -> None:
        nonlocal shown
        numbers[:] = count, wrong
        now = time.perf_counter()
        if bar and task is not None and now - shown >= _REFRESH_SECONDS:
            bar.update(task, completed=count, wrong=f"{wrong} wrong")
            bar.refresh()
            shown = now

    if bar:
        bar.start()
    said = f"checking {name} was interrupted: {{}}{f' of {length}' if length else ''} samples"
    try:
        yield show
        said = f"checked {name}: {{}} samples"
    finally:
        if bar:
            bar.stop()
        if kind != "none":
            seconds = time.perf_counter() - began
            say(f"{said.format(numbers[0])} in {seconds:.1f} s, {numbers[1]} wrong")


def _bar() -> Progress:
    # Drawn from this thread, as in a fit: workers are forked, and a lock that another thread holds
    # would stay locked in them.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining(),
        TextColumn("{task.fields[wrong]}"),
        console=console(sys.stderr), transient=True, auto_refresh=False,
    )  # fmt: skip
