"""quarantine.csv: the samples that a run left out, and their use by a later run.

    split,index,path,epoch,step,position,cause,dataset
    train,17,faces/0017.jpg,0,2,71,"image 'faces/0017.jpg' is truncated or damaged ...",5f0c...

It is written at once, so it survives a crash. A later run treats its samples as bad without reading
them. It identifies a sample by its path, or without one by its index in a dataset of the same
fingerprint.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from penstock.errors import ConfigError, Problem
from penstock.files.disk import append, writing
from penstock.loading.bad_samples import BadSamples, LeftOut, OnError, path_of
from penstock.loading.facts import SomeRows, unfiltered, unfiltered_fingerprint
from penstock.order.plan import Plan, StreamPlan

NAME = "quarantine.csv"
KEY = "bad_samples.quarantine"


class Entry(NamedTuple):
    """A line of a quarantine.csv; `dataset` is a fingerprint."""

    split: str
    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    path: str
    epoch: int
    step: int
    position: int
    cause: str
    dataset: str

    @property
    def sample(self) -> tuple[str, str | int]:
        """The identity of the sample: its file, or split and index."""
        return ("", normal(self.path)) if self.path else (self.split, self.index)


def read(path: str | Path) -> list[Entry]:
    """The lines of a quarantine.csv, without a last one that a crash cut off.

    Raises:
        ConfigError: there is no such file, or it is something else.
    """
    lines = csv.reader(())  # for the number of the line, if the file cannot even be opened
    try:
        content = Path(path).read_bytes()
        text = content[: content.rfind(b"\n") + 1].decode(errors="replace")
        lines = csv.reader(io.StringIO(text, newline=""))
        if (header := tuple(next(lines, Entry._fields))) != Entry._fields:
            raise ValueError(f"its columns are {header}, and those of a run {Entry._fields}")
        return [
            Entry(split, int(index), file, int(epoch), int(step), int(position), cause, dataset)
            for split, index, file, epoch, step, position, cause, dataset in lines
        ]
    except OSError as error:
        reason = f"{str(path)!r} cannot be read: {error.strerror or error}"
    except (ValueError, csv.Error) as error:
        reason = f"{str(path)!r}, line {lines.line_num}: {error}"
    raise ConfigError(Problem(KEY, reason))


def normal(path: str) -> str:
    """The absolute path; an address stays as it is."""
    path = path if "://" in path else os.path.abspath(path)  # noqa: PTH100  (asks no disk)
    return path.encode(errors="backslashreplace").decode()  # as the file has it


def entries(left_out: Iterable[LeftOut], split: str, dataset: str) -> list[Entry]:
    """Lines for samples left out on any ranks, each once.

    Args:
        dataset: the fingerprint of all rows of the dataset. A line has the dataset's own row, so
            that it holds whatever is filtered.
    """
    # In the order of addresses, so that any number of ranks writes the same lines.
    first: dict[tuple[str, str | int], Entry] = {}
    for one in sorted(left_out, key=lambda one: (one.epoch, one.step, one.position)):
        row, address = one.index if one.row is None else one.row, (one.epoch, one.step)
        entry = Entry(split, row, one.path, *address, one.position, one.cause, dataset)
        first.setdefault(entry.sample, entry)
    return list(first.values())


class QuarantineFile:
    """Appends new samples to the quarantine.csv at `path`, and makes it at the first one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._samples: set[tuple[str, str | int]] = set()
        if path.exists():
            with writing(path):  # a crash may have cut off the last line
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            self._samples = {entry.sample for entry in read(path)}

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, some: Iterable[Entry]) -> list[Entry]:
        """Write those that are new, and return them.

        Raises:
            DiskError: they cannot be written.
        """
        new = {entry.sample: entry for entry in some if entry.sample not in self._samples}
        if new:
            text, begun = io.StringIO(), self.path.exists() and self.path.stat().st_size
            lines = [*([] if begun else [Entry._fields]), *new.values()]
            csv.writer(text, lineterminator="\n").writerows(lines)
            # Names of files may have bytes that are no text.
            append(self.path, [text.getvalue().encode(errors="backslashreplace").decode()[:-1]])
            self._samples |= new.keys()
        return list(new.values())


def known_rows(path: str | Path, dataset: Any, split: str, fingerprint: str) -> dict[int, str]:
    """Causes by row, of the rows of `dataset` that the quarantine at `path` names.

    Raises:
        ConfigError: the file cannot be read, or is of another dataset than that of `fingerprint`.
    """
    listed, paths = read(path), list[str]()
    of_files = [entry for entry in listed if entry.path]
    if of_files and "path" in getattr(getattr(dataset, "metadata", None), "columns", ()):
        paths = list(map(normal, map(str, dataset.metadata["path"])))
    elif of_files and callable(getattr(dataset, "path", None)):
        paths = [normal(path_of(dataset, row)) for row in range(len(dataset))]
    rows = pd.Series(paths, dtype=object).groupby(paths).indices
    causes: dict[int, str] = {}
    for entry in of_files:
        found: Any = rows.get(normal(entry.path), np.array([]))
        # Of several samples in one file, such as a table, the index says which.
        chosen = [entry.index] if entry.index in found else found.tolist()
        causes |= dict.fromkeys(chosen, entry.cause)
    own = [entry for entry in listed if entry.split == split]
    others = [entry for entry in own if entry.dataset != fingerprint]
    if others and not (causes and all(entry.path for entry in others)):
        raise ConfigError(
            Problem(
                KEY,
                f"{str(path)!r} was written for another dataset: the fingerprint of "
                f"its {split} split is {others[0].dataset}, that of this one is {fingerprint}, "
                "and no file that it names is in this one. Set it to null, or to the "
                f"{NAME} of a run on this dataset (and of the same data.fingerprint)",
            )
        )
    return causes | {entry.index: entry.cause for entry in own if not entry.path}


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
    needed = isinstance(plan, Plan) and (on_error != "raise" or path)
    sampler = copy(plan.sampler) if needed else None
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
    known = known_rows(
        path, unfiltered(dataset), split, unfiltered_fingerprint(dataset, fingerprint)
    )
    if isinstance(dataset, SomeRows):
        numbers = np.flatnonzero(np.isin(dataset.rows, list(known)))
        known = {number: known[int(dataset.rows[number])] for number in numbers.tolist()}
    return BadSamples(on_error, known, sampler, seed)
