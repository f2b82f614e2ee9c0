"""`task=check`: read, transform and check every sample of a split.

Bad samples are listed on stdout and in a quarantine.csv in a run folder, for
bad_samples.quarantine. Exit code 3 if there are any; 130 or 75 if interrupted, with those found so
far. Cost: about an epoch of loading, twice that for JPEG and FLAC.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock import seams
from penstock.build.data import DataParts, Split
from penstock.config.schema import Config
from penstock.distributed.preemption import Preempted, Stop
from penstock.distributed.world import World
from penstock.errors import ConfigError, DataError
from penstock.loading.bad_samples import BadSampleError, LeftOut, Stage, in_one_line, path_of
from penstock.loading.batch import Batch
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.sample_reader import SampleReader
from penstock.loading.stage_timer import StageTimer
from penstock.loading.stream_fetch import StreamFetch
from penstock.loading.wrapped import own_row
from penstock.order.plan import Plan, Request
from penstock.order.randomness import Draws, sample_keys
from penstock.order.samplers import Sequential
from penstock.order.streams import StreamOrder, StreamPlan, length_of
from penstock.runs.left_out import NAME, Entry
from penstock.runs.quarantine import QuarantineFile, entries
from penstock.runs.run_folder import RunFolder
from penstock.tasks.summary import put_rows
from penstock.terminal import ProgressDisplay, one_line, put, say


def run(config: Config) -> None:
    """Check `config.split`.

    Raises:
        DataError: something is wrong with it.
    """
    data = DataParts(config, World())
    splits = tuple(split.name for split in data.splits)
    if config.split != "both":
        splits = (config.split,)
    bad: list[Entry] = []
    count = 0
    for split in map(data.split, splits):
        wrong: list[LeftOut] = []
        stopped: Stop | None = None
        try:
            count += check(split, wrong)
        except Stop as stop:
            stopped = stop
        bad += entries(wrong, split.name, split.identity.unfiltered)
        if stopped is not None:
            if bad:
                print_table(bad)
            if stopped.name == "SIGINT":
                raise stopped
            raise Preempted(
                f"{stopped.name}: the check was interrupted; the same command starts it again"
            )
    if not bad:
        put(f"{count} samples, nothing wrong with them")
        if config.split == "both":
            seams.print_overlaps(data)
        return
    print_table(bad)
    folder = RunFolder.claim(Path(config.run_dir), config.plain())
    QuarantineFile(folder.path / NAME).add(bad)
    folder.finish("done")
    raise DataError(
        f"{len(bad)} of {count} samples are bad. Repair or remove them, or leave them out of a "
        f"run: bad_samples.quarantine={folder.path / NAME}"
    )


def check(split: Split, wrong: list[LeftOut]) -> int:
    """Read a split and add its bad samples to `wrong`; returns the number of samples."""
    count = 0
    with (
        make_loader(split) as loader,
        _counted(split, loader) as show,
        closing(loader.epoch(0)) as batches,
    ):
        for batch in batches:
            count += batch.request.valid
            wrong += batch.left_out
            show(count, len(wrong))
    return count


def make_loader(
    split: Split, rows: type[Fetch] | None = None, stream: type[StreamFetch] | None = None
) -> Loader:
    """Batches that hold only the bad samples of a split, each once.

    Args:
        rows, stream: what makes other batches of a map-style dataset, and of a stream.
    """
    made, plan = split.loader(), split.plan
    made.close()
    own: Plan | StreamPlan
    fetch: Fetch
    common = made.fetch.dataset, made.fetch.transform, made.fetch.collate, made.fetch.seed
    names = made.fetch.fields
    if isinstance(plan, StreamPlan):
        order = StreamOrder(plan.sampler.seed, steps=plan.sampler.steps)
        own = StreamPlan(order, plan.batch_size, length=plan.length)
        fetch = (stream or CheckStream)(
            *common, fields=names, order=order, batch_size=plan.batch_size
        )
    else:
        own = Plan(Sequential(len(made.fetch.dataset)), plan.batch_size)
        fetch = (rows or Check)(*common, fields=names)
    return Loader(own, fetch, replace(made.options, persistent_workers=False), World())


class Check(Fetch):
    """Makes batches without fields, whose `left_out` are the bad samples."""

    def work(self, request: Request, rows: Any, draws: Draws, timer: StageTimer) -> Batch:
        reader = Suspicious(self.recipe, request, rows, self.transform, draws, timer)
        left_out = tuple(self._wrong(reader, request, draws))
        return Batch({}, request, np.arange(len(request)), left_out=left_out)

    def _wrong(self, reader: SampleReader, request: Request, draws: Draws) -> Iterator[LeftOut]:
        keys = sample_keys(self.seed, request.epoch, request.positions).tolist()
        for slot, key in enumerate(keys):
            row = int(request.indices[slot])
            draws.seed(key)
            try:
                cause = not_finite(reader.sample(slot))
                if cause is None and hasattr(self.dataset, "check"):
                    try:
                        cause = self.dataset.check(row)
                    except ConfigError:  # this dataset cannot be checked
                        raise
                    except Exception as error:
                        cause = in_one_line(error)
            except BadSampleError as error:
                cause = error.cause
            if cause is not None:
                path, position = path_of(self.dataset, row), int(request.positions[slot])
                own = own_row(self.dataset, row)
                yield LeftOut(row, position, *request.address, path, cause, "skip", row=own)


class CheckStream(Check, StreamFetch):
    """The same for the records of a stream."""


class Suspicious(SampleReader):
    """Makes a BadSampleError of every failure of a sample."""

    def _failed(
        self, error: Exception, stage: Stage, slot: int, never_left_out: bool = False
    ) -> Exception:
        if never_left_out:
            return super()._failed(error, stage, slot, never_left_out)
        cause = in_one_line(error)
        return BadSampleError(cause if stage == "read" else f"{stage} failed: {cause}")


def not_finite(sample: object) -> str | None:
    """Which field of a sample has NaN or infinite numbers; None: none."""
    fields = sample.items() if isinstance(sample, dict) else ()
    for name, value in fields:
        tensor = torch.as_tensor(value) if isinstance(value, (np.ndarray, float)) else value
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            bad = int((~torch.isfinite(tensor)).sum())
            if bad:
                return f"field {name!r} has {bad} of {tensor.numel()} values that are not finite"
    return None


def print_table(bad: Sequence[Entry]) -> None:
    """Print bad samples to stdout, a line each."""
    lines = [
        (entry.split, str(entry.index), one_line(entry.path), one_line(entry.cause))
        for entry in bad
    ]
    put_rows([("split", "index", "path", "cause"), *lines])


@contextmanager
def _counted(split: Split, loader: Loader) -> Iterator[Any]:
    """A function of samples read and bad samples that shows them."""
    kind, name = split.config.trainer.progress, split.name
    length = length_of(loader.fetch.dataset)
    began = time.perf_counter()
    numbers = [0, 0]
    said, of = f"checking {name} was interrupted", f" of {length}" if length else ""
    try:
        with ProgressDisplay(f"checking {name}", length) as shown:

            def show(count: int, wrong: int) -> None:
                numbers[:] = count, wrong
                shown.to(count, f"{wrong} wrong")

            yield show
        said, of = f"checked {name}", ""
    finally:
        if kind != "none":
            seconds = time.perf_counter() - began
            say(f"{said}: {numbers[0]}{of} samples in {seconds:.1f} s, {numbers[1]} wrong")
