"""quarantine.csv: the samples that a run left out, and their use by a later run.

    split,index,path,epoch,step,position,cause,dataset
    train,17,faces/0017.jpg,0,2,71,"image 'faces/0017.jpg' is truncated or damaged ...",5f0c...

It is written at once, so it survives a crash. A later run on the same data treats its samples as
bad without reading them. It knows a sample by its split and index; in other data, an index would be
another sample's, so that is refused. The path is for people.
"""

from __future__ import annotations

import csv
import io
import os
from collections import namedtuple
from collections.abc import Iterable
from copy import copy
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, Problem
from penstock.files.disk import append, writing
from penstock.loading.bad_samples import BadSamples, LeftOut, OnError
from penstock.loading.facts import SomeRows, unfiltered_fingerprint
from penstock.order.plan import Plan, StreamPlan

NAME = "quarantine.csv"
KEY = "bad_samples.quarantine"


# A line; `index` is the dataset's own row, `dataset` the fingerprint of all of its rows.
Entry = namedtuple("Entry", "split index path epoch step position cause dataset")


def read(path: str | Path) -> list[Entry]:
    """The lines of a quarantine.csv, without a last one that a crash cut off.

    Raises:
        ConfigError: there is no such file, or it is something else.
    """
    import pandas as pd  # half a second and 20 MiB, which most runs do without

    try:
        content = Path(path).read_bytes()
        # A crash may have cut off the last line, or all of it.
        text = content[: content.rfind(b"\n") + 1].decode(errors="replace")
        whole = io.StringIO(text or ",".join(Entry._fields))
        # As texts, since a cause may be "nan" or a number.
        table = pd.read_csv(whole, dtype=str, na_filter=False)
        numbers = dict.fromkeys(("index", "epoch", "step", "position"), int)
        table = table[[*Entry._fields]].astype(numbers)
    except (OSError, ValueError, KeyError) as error:
        reason = f"{str(path)!r} is no quarantine that can be read: {error}"
        raise ConfigError(Problem(KEY, reason)) from error
    return [Entry(*row) for row in table.itertuples(index=False)]


def entries(left_out: Iterable[LeftOut], split: str, dataset: str) -> list[Entry]:
    """Lines for samples left out on any ranks.

    Args:
        dataset: the fingerprint of all rows of the dataset. A line has the dataset's own row, so
            that it holds whatever is filtered.
    """
    # In the order of addresses, so that any number of ranks writes the same lines.
    ordered = sorted(left_out, key=lambda one: (one.epoch, one.step, one.position))
    return [
        Entry(
            split,
            one.index if one.row is None else one.row,
            one.path,
            one.epoch,
            one.step,
            one.position,
            one.cause,
            dataset,
        )
        for one in ordered
    ]


class QuarantineFile:
    """Appends new samples to the quarantine.csv at `path`, which the first one creates."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._samples: set[tuple[str, int]] = set()
        if path.exists():
            with writing(path):  # a crash may have cut off the last line
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            self._samples = {(entry.split, entry.index) for entry in read(path)}

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, some: Iterable[Entry]) -> list[Entry]:
        """Write the first of each sample that is new, and return these.

        Raises:
            DiskError: they cannot be written.
        """
        new: dict[tuple[str, int], Entry] = {}
        for entry in some:
            if (entry.split, entry.index) not in self._samples:
                new.setdefault((entry.split, entry.index), entry)
        if new:
            text, begun = io.StringIO(), self.path.exists() and self.path.stat().st_size
            lines = [*([] if begun else [Entry._fields]), *new.values()]
            csv.writer(text, lineterminator="\n").writerows(lines)
            # Names of files may have bytes that are no text.
            append(self.path, [text.getvalue().encode(errors="backslashreplace").decode()[:-1]])
            self._samples |= new.keys()
        return list(new.values())


def known_rows(path: str | Path, split: str, fingerprint: str) -> dict[int, str]:
    """Causes by row, of the rows of a split that the quarantine at `path` names.

    Args:
        fingerprint: of all rows of its dataset.

    Raises:
        ConfigError: the file cannot be read, or is of another dataset than that of `fingerprint`.
    """
    own = [entry for entry in read(path) if entry.split == split]
    if others := {entry.dataset for entry in own} - {fingerprint}:
        raise ConfigError(
            Problem(
                KEY,
                f"{str(path)!r} was written for another dataset: the fingerprint of its {split} "
                f"split is {min(others)}, that of this one is {fingerprint}. Set it to null, or to "
                f"the {NAME} of a run on this dataset (and of the same data.fingerprint), which "
                "task=check also writes",
            )
        )
    return {entry.index: entry.cause for entry in own}


def policy(
    on_error: OnError,
    path: str | None,
    split: str,
    plan: Plan | StreamPlan,
    dataset: Any,
    fingerprint: str,
    seed: int,
) -> BadSamples:
    """How to treat the bad samples of a split.

    Validation skips where training substitutes, because a substitute would count twice.

    Args:
        path: of a quarantine, or None.
        fingerprint: of `dataset`.

    Raises:
        ConfigError: the quarantine cannot be read, or does not fit the dataset.
    """
    if split == "val" and on_error == "substitute":
        on_error = "skip"
    substitutes = isinstance(plan, Plan) and (on_error != "raise" or path)
    sampler = copy(plan.sampler) if substitutes else None
    if not path:
        return BadSamples(on_error, {}, sampler, seed)
    if isinstance(plan, StreamPlan):
        shards = len(dataset.shards()) if hasattr(dataset, "shards") else 1
        if hasattr(dataset, "set_epoch") or (plan.sampler.shuffle_shards and shards > 1):
            raise ConfigError(
                Problem(
                    KEY,
                    "the records of this stream have other numbers in each epoch, so "
                    "none can be named (its shards are shuffled, or it follows the epoch); set "
                    "it to null, or sampler.shuffle_shards=false in this run and the one that "
                    "wrote it",
                )
            )
    known = known_rows(path, split, unfiltered_fingerprint(dataset, fingerprint))
    if isinstance(dataset, SomeRows):
        known = {n: known[row] for n, row in enumerate(dataset.rows.tolist()) if row in known}
    return BadSamples(on_error, known, sampler, seed)
