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
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ConfigError, Problem
from penstock.files.disk import append, writing
from penstock.loading.bad_samples import BadSamples, LeftOut, OnError, path_of
from penstock.loading.facts import SomeRows, unfiltered, unfiltered_fingerprint
from penstock.order.plan import Plan, StreamPlan

NAME = "quarantine.csv"
KEY = "bad_samples.quarantine"

_NAMED = 5  # samples reported by name


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a quarantine.csv; `dataset` is a fingerprint."""

    split: str
    index: int
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


COLUMNS = tuple(column.name for column in fields(Entry))


def read(path: str | Path) -> list[Entry]:
    """The lines of a quarantine.csv, without a last one that a crash cut off.

    Raises:
        ConfigError: there is no such file, or it is something else.
    """
    found: list[Entry] = []
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        reason = f"{str(path)!r} cannot be read: {error.strerror or error}"
        raise ConfigError(Problem(KEY, reason)) from error
    text = content[: whole(content)].decode(errors="replace")
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        header = next(lines, COLUMNS)
        if tuple(header) != COLUMNS:
            has, expected = ", ".join(header)[:300], ", ".join(COLUMNS)
            reason = f"is not the {NAME} of a run: its columns are {has}; expected {expected}"
            raise ConfigError(Problem(KEY, f"{str(path)!r} {reason}"))
        for split, index, file, epoch, step, position, cause, dataset in lines:
            address = int(epoch), int(step), int(position)
            found.append(Entry(split, int(index), file, *address, cause, dataset))
    except (ValueError, csv.Error) as error:
        reason = f"{str(path)!r}, line {lines.line_num}: {error}"
        raise ConfigError(Problem(KEY, reason)) from error
    return found


def whole(content: bytes) -> int:
    """The length of the whole lines of a file; a crash may have cut off the last one."""
    return content.rfind(b"\n") + 1


def normal(path: str) -> str:
    """The absolute path; an address stays as it is."""
    return written(path if "://" in path else os.path.abspath(path))  # noqa: PTH100  (asks no disk)


def written(text: str) -> str:
    """`text` as UTF-8 can encode it: file names may have bytes that are not."""
    return text.encode(errors="backslashreplace").decode()


def entries(left_out: Iterable[LeftOut], split: str, dataset: str) -> list[Entry]:
    """Lines for samples left out on any ranks, each once.

    Args:
        dataset: the fingerprint of all rows of the dataset. A line has the dataset's own row, so
            that it holds whatever is filtered.
    """
    first: dict[tuple[str, str | int], Entry] = {}
    for sample in sorted(left_out, key=lambda sample: (sample.epoch, sample.step, sample.position)):
        row = sample.index if sample.row is None else sample.row
        entry = Entry(
            split,
            row,
            sample.path,
            sample.epoch,
            sample.step,
            sample.position,
            sample.cause,
            dataset,
        )
        first.setdefault(entry.sample, entry)
    return list(first.values())


class QuarantineFile:
    """Appends new samples to the quarantine.csv at `path`, and makes it at the first one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._samples: set[tuple[str, str | int]] = set()
        if os.path.lexists(path):
            _cut_half_line(path)
            self._samples |= {entry.sample for entry in read(path)}

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, some: Iterable[Entry]) -> list[Entry]:
        """Write those that are new, and return them.

        Raises:
            DiskError: they cannot be written.
        """
        new = {entry.sample: entry for entry in some if entry.sample not in self._samples}
        if not new:
            return []
        begun = self.path.exists() and self.path.stat().st_size > 0
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([*([] if begun else [COLUMNS]), *map(astuple, new.values())])
        append(self.path, [written(text.getvalue()).removesuffix("\n")])
        self._samples |= new.keys()
        return list(new.values())


def _cut_half_line(path: Path) -> None:
    """Remove a last line that a crash cut off."""
    with writing(path):
        os.truncate(path, whole(path.read_bytes()))


def known_rows(path: str | Path, dataset: object, split: str, fingerprint: str) -> dict[int, str]:
    """Causes by row, of the rows of `dataset` that the quarantine at `path` names.

    Raises:
        ConfigError: the file cannot be read, or is of another dataset than that of `fingerprint`.
    """
    listed = read(path)
    by_path = _by_path([entry for entry in listed if entry.path], dataset)
    own = [entry for entry in listed if entry.split == split]
    others = [entry for entry in own if entry.dataset != fingerprint]
    if any(not entry.path for entry in others) or (others and not by_path):
        raise ConfigError(
            Problem(
                KEY,
                f"{str(path)!r} was written for another dataset: the fingerprint of "
                f"its {split} split is {others[0].dataset}, that of this one is {fingerprint}, "
                "and no file that it names is in this one. Set it to null, or to the "
                f"{NAME} of a run on this dataset (and of the same data.fingerprint)",
            )
        )
    return by_path | {entry.index: entry.cause for entry in own if not entry.path}


def _by_path(some: Sequence[Entry], dataset: Any) -> dict[int, str]:
    if not some:
        return {}
    table: Any = getattr(dataset, "metadata", None)
    paths: Iterable[str] = ()
    if hasattr(table, "columns") and "path" in table.columns:
        paths = map(str, table["path"])
    elif callable(getattr(dataset, "path", None)):
        paths = (path_of(dataset, row) for row in range(len(dataset)))
    causes = {normal(entry.path): entry for entry in some}
    rows_of: dict[str, list[int]] = {}
    for row, path in enumerate(map(normal, paths)):
        if path in causes:
            rows_of.setdefault(path, []).append(row)
    cause_of: dict[int, str] = {}
    for path, rows in rows_of.items():
        entry = causes[path]
        # Of several samples in one file, such as a table, the index says which.
        chosen = [entry.index] if len(rows) > 1 and entry.index in rows else rows
        cause_of |= dict.fromkeys(chosen, entry.cause)
    return cause_of


def notes(new: Sequence[Entry], before: int) -> Iterator[str]:
    """Messages about new samples in a quarantine that had `before`: the first ones by name."""
    for number, entry in enumerate(new, before + 1):
        if number <= _NAMED:
            path = f" {entry.path}" if entry.path and entry.path not in entry.cause else ""
            yield (
                f"left out: sample {entry.index} of the {entry.split} split (epoch {entry.epoch}, "
                f"step {entry.step}, position {entry.position}){path}: {entry.cause}"
            )
        elif number == _NAMED + 1:
            yield f"left out: more than {_NAMED} samples; all are listed in {NAME}"


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
