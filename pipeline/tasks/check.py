"""`task=check`: read, transform and check every sample of a split.

Bad samples are listed on stdout and in a quarantine.csv in a run folder, for
bad_samples.quarantine. Exit code 3 if there are any; 130 or 75 if interrupted, with those found so
far. Cost: about an epoch of loading, twice that for JPEG and FLAC.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from penstock.build.data import DataParts, Split
from penstock.config.schema import Config
from penstock.distributed.stop import Stop
from penstock.distributed.world import World
from penstock.errors import ConfigError, DataError
from penstock.loading.bad_samples import LeftOut, Stage, in_one_line
from penstock.loading.batch import Batch
from penstock.loading.facts import unfiltered_fingerprint
from penstock.loading.fetch import Fetch, Samples
from penstock.loading.loader import Loader
from penstock.loading.stream import StreamFetch
from penstock.order.plan import Plan, StreamOrder, StreamPlan, length_of
from penstock.order.samplers import Sequential
from penstock.runs.folder import RunFolder
from penstock.runs.quarantine import NAME, Entry, QuarantineFile, entries
from penstock.tasks.summary import put_rows
from penstock.terminal import one_line, progress, put


def run(config: Config) -> None:
    """Check `config.split`.

    Raises:
        DataError: something is wrong with it.
    """
    data = DataParts(config, World())
    bad: list[Entry] = []
    count, stopped = 0, None
    for split in data.splits if config.split == "both" else [getattr(data, config.split)]:
        wrong, before = list[LeftOut](), count
        try:
            with (
                make_loader(split) as loader,
                progress(f"checking {split.name}", length_of(split.dataset)) as show,
                closing(loader.epoch(0)) as batches,
            ):
                for batch in batches:
                    count += batch.request.valid
                    wrong += batch.left_out
                    show(count - before, f"{len(wrong)} wrong")
        # What was found so far is shown and written first; then the run ends with 75 or 130.
        except Stop as stop:
            stopped = stop
        # A quarantine holds for the dataset's rows, whatever filter a later run has.
        own = unfiltered_fingerprint(split.dataset, split.fingerprint["dataset"])
        bad += entries(wrong, split.name, own)
        if stopped is not None:
            break
    if bad:
        rows = [(of.split, str(of.index), one_line(of.path), one_line(of.cause)) for of in bad]
        put_rows([("split", "index", "path", "cause"), *rows])
    if stopped is not None:
        raise stopped
    if not bad:
        put(f"{count} samples, nothing wrong with them")
        if config.split == "both":
            # An add-on, which a check of one split does not load.
            from penstock.addons.overlaps import report

            report(data)
        return
    # Only now: a check that finds nothing leaves no folder.
    folder = RunFolder.claim(Path(config.run_dir), config.model_dump())
    QuarantineFile(folder.path / NAME).add(bad)
    folder.finish("done")
    folder.release()
    raise DataError(
        f"{len(bad)} of {count} samples are bad. Repair or remove them, or leave them out of a "
        f"run: bad_samples.quarantine={folder.path / NAME}"
    )


def make_loader(split: Split) -> Loader:
    """Batches that hold only the bad samples of a split, each once."""
    made, plan, own = split.fetch(), split.plan, World()
    common = made.dataset, made.transform, made.collate, made.seed
    options = replace(split.loader_options(), persistent_workers=False)
    if isinstance(plan, StreamPlan):
        # Without a shuffle buffer, whose records would wait for the end of the file.
        order = StreamOrder(plan.sampler.seed, steps=plan.sampler.steps)
        once = StreamPlan(order, plan.batch_size, length=plan.length)
        fetch = CheckStream(*common, fields=made.fields, plan=once)
        return Loader(once, fetch, options, own)
    # Not in the sampler's order, which may leave rows out or draw them twice.
    rows_once = Plan(Sequential(len(made.dataset)), plan.batch_size)
    return Loader(rows_once, Check(*common, fields=made.fields), options, own)


class Check(Fetch):
    """Makes batches without fields, whose `left_out` are the bad samples."""

    at_once = False

    def batch_of(self, samples: Samples) -> Batch:
        request = samples.request
        wrong = [self._wrong(samples, slot) for slot in range(len(request))]
        left_out = tuple(entry for entry in wrong if entry is not None)
        return Batch({}, request, np.arange(len(request)), left_out=left_out)

    def failed(self, error: Exception, stage: Stage, sample: Callable[[str], LeftOut]) -> LeftOut:
        cause = in_one_line(error)
        return sample(cause if stage == "read" else f"{stage} failed: {cause}")

    def _wrong(self, samples: Samples, slot: int) -> LeftOut | None:
        row = samples.indices[slot]
        cause = samples.bad[slot].cause if slot in samples.bad else not_finite(samples.made[slot])
        if cause is None and hasattr(self.dataset, "check"):
            try:
                cause = self.dataset.check(row)
            except ConfigError:  # this dataset cannot be checked
                raise
            except Exception as error:
                cause = in_one_line(error)
        return None if cause is None else samples.left_out(slot, row, cause)


class CheckStream(Check, StreamFetch):
    """The same for the records of a stream."""


def not_finite(sample: object) -> str | None:
    """Which field of a sample has NaN or infinite numbers; None: none."""
    for name, value in sample.items() if isinstance(sample, dict) else ():
        tensor = torch.as_tensor(value) if isinstance(value, (np.ndarray, float)) else value
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            bad = int((~torch.isfinite(tensor)).sum())
            if bad:
                return f"field {name!r} has {bad} of {tensor.numel()} values that are not finite"
    return None
