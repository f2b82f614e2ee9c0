"""Reading the folders of runs: their state, configuration, measurements and ledger.

A folder may come from anybody, and be written to at this moment, so everything is checked, and an
incomplete last line is left out. This imports no torch: lists of runs are shown in a second.
"""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.data import records
from penstock.files.locks import is_locked
from penstock.order.address import Address, Skipped
from penstock.runs import left_out, measurements
from penstock.runs.manifest import read_config, read_manifest
from penstock.runs.measurements import Series

LEDGER, DIGESTS, METRICS, HOLDER = "ledger.jsonl", "digests.jsonl", "metrics.jsonl", "holder.json"

_BLOCK = 1 << 20  # bytes of a ledger that are read at once
_MOST_HASHES = 1 << 30  # bytes
_MOST_SKIPPED = 100_000
_LINES = 4096  # of a ledger that somebody else wrote
_MOST_STEPS = 1 << 25  # of a ledger, 1.3 GB; ten a second for a month
_KINDS: tuple[Any, ...] = (np.int64, np.int64, np.int64, np.uint64, np.float64)
_CODES = ("q", "q", "q", "Q", "d")  # the same
_NUMBER = rb"(0|[1-9]\d{0,17})"
_AS_WRITTEN = re.compile(
    rb'^\{"epoch": %b, "step": %b, "samples": %b, "order": "([0-9a-f]{16})", '
    rb'"loss": "([^"\\\n]{1,100})"\}\n' % (_NUMBER, _NUMBER, _NUMBER),
    re.MULTILINE,
)

_SKIPPED = re.compile(
    rb'^\{"epoch": %b, "step": %b, "skipped_to": \[%b, %b\]\}\n'
    % (_NUMBER, _NUMBER, _NUMBER, _NUMBER),
    re.MULTILINE,
)


@dataclass(frozen=True)
class Ledger:
    """The samples and the loss of each step; arrays of one length, in the order of the addresses.

    Attributes:
        epoch, step: addresses, int64.
        samples: rows of the global batch, int64.
        order: uint64 hashes of its rows and positions.
        loss: mean over the global batch, float64.
    """

    epoch: np.ndarray
    step: np.ndarray
    samples: np.ndarray
    order: np.ndarray
    loss: np.ndarray


@dataclass(frozen=True)
class RunRecord:
    """A run's folder, with its configuration and manifest."""

    path: Path
    config: Mapping[str, object]
    manifest: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, key: str = "runs") -> RunRecord:
        """The run in `path`.

        Args:
            key: of the configuration that names the folder.

        Raises:
            ConfigError: it is not a run's folder, or a file of it is damaged.
        """
        try:
            manifest = read_manifest(path, key)
            return cls(path, read_config(path / "config.yaml"), manifest)
        except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
            reason = f"{path} is not a run's folder: config.yaml: {str(error)[:300]}"
            raise ConfigError(Problem(key, reason)) from error

    @property
    def state(self) -> str:
        """As `state_of`."""
        return state_of(self.path, self.manifest)

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """A mapping for every start: command, started, at, status, ended ..."""
        return list(self.manifest.get("sessions", []))

    @property
    def logs(self) -> Series:
        """The measurements inside epochs; a value that was not finite is None."""
        return self._measured["log"]

    @property
    def epochs(self) -> Series:
        """The measurements of whole epochs, training and validation."""
        return self._measured["epoch"]

    @cached_property
    def _measured(self) -> dict[str, Series]:
        return measurements.read(self.path / METRICS)

    @cached_property
    def ledger(self) -> Ledger | None:
        """None if the run wrote none (trainer.ledger=false)."""
        path = self.path / LEDGER
        return read_ledger(path) if path.exists() else None

    @cached_property
    def left_out(self) -> list[left_out.Entry]:
        """The samples that the run left out: the lines of its quarantine.csv."""
        path = self.path / left_out.NAME
        return left_out.read(path) if path.exists() else []


def read_ledger(path: Path, least: int | None = None) -> Ledger:
    """The ledger in `path`, without an incomplete last line. Cost: 3 us a line.

    Args:
        least: read no more than needed for so many lines; there may be more, or fewer in the file.

    Raises:
        PenstockError: a line is broken, or the addresses don't increase.
    """
    columns = _LedgerColumns(path)
    try:
        with path.open("rb") as file:
            while (least is None or len(columns) < least) and (block := file.read(_BLOCK)):
                block += file.readline()
                columns.add(_parsed(block))
        return columns.ledger()
    except (OSError, ValueError):
        pass  # line by line, for what is wrong and where; or because somebody else wrote it
    columns = _LedgerColumns(path)
    rows = (
        (*address, line["samples"], int(line["order"], 16), float.fromhex(line["loss"]))
        for address, line in by_address(path)
    )
    while some := list(islice(rows, _LINES)):
        columns.add(zip(*some, strict=True))
    return columns.ledger()


class _LedgerColumns:
    """The columns of a ledger while it is read, which grow without being copied."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns = [array(code) for code in _CODES]
        self._last = (-1, -1)

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, columns: Iterable[Any]) -> None:
        """Append values of all columns; raises ValueError unless their addresses increase."""
        parts = [np.asarray(values, kind) for values, kind in zip(columns, _KINDS, strict=True)]
        if len(self) + len(parts[0]) > _MOST_STEPS:
            raise PenstockError(
                f"{self._path} has more than {_MOST_STEPS} steps, which are not read into memory"
            )
        epochs, steps = (
            np.concatenate([[last], part]) for last, part in zip(self._last, parts[:2], strict=True)
        )
        later, after = np.diff(epochs), np.diff(steps)
        if not ((later > 0) | ((later == 0) & (after > 0))).all():
            raise ValueError
        self._last = (int(epochs[-1]), int(steps[-1]))
        for column, part in zip(self._columns, parts, strict=True):
            column.frombytes(part.tobytes())

    def ledger(self) -> Ledger:
        return Ledger(
            *(
                np.frombuffer(column, kind)
                for column, kind in zip(self._columns, _KINDS, strict=True)
            )
        )


def _parsed(block: bytes) -> tuple[np.ndarray, ...]:
    """Whole lines as a fit writes them; raises ValueError for any other."""
    rows = _AS_WRITTEN.findall(block)
    if len(rows) + len(_SKIPPED.findall(block)) != block.count(b"\n"):
        raise ValueError
    epoch, step, samples, order, loss = zip(*rows, strict=True) if rows else [()] * 5
    epochs, steps, counts = (
        np.array(texts, "S18").astype(np.int64) for texts in (epoch, step, samples)
    )
    hashes = np.frombuffer(bytes.fromhex(b"".join(order).decode()), ">u8").astype(np.uint64)
    losses = np.array([float.fromhex(text.decode()) for text in loss])
    return epochs, steps, counts, hashes, losses


def state_of(path: Path, manifest: Mapping[str, Any]) -> str:
    """The manifest's status; "killed" if that is running, and no process has the folder."""
    status = str(manifest.get("status", "unknown"))
    if status == "running" and not is_locked(path / HOLDER):
        return "killed"
    return status


def find(folder: Path) -> Iterator[Path]:
    """The folders of runs below `folder` (or itself), without those inside a run, by name."""
    for parent, folders, files in os.walk(folder):
        if "manifest.json" in files and "config.yaml" in files:
            folders.clear()
            yield Path(parent)
        folders.sort()


def two_runs(paths: Sequence[str] | None) -> tuple[RunRecord, RunRecord]:
    """The runs that the key `runs` names.

    Raises:
        ConfigError: they are not the folders of two runs.
    """
    if paths is None or len(paths) != 2:
        count = "none" if paths is None else len(paths)
        raise ConfigError(
            Problem(
                "runs",
                f"needs the folders of two runs, and has {count}: runs=[outputs/a,outputs/b]",
            )
        )
    return RunRecord.read(Path(paths[0])), RunRecord.read(Path(paths[1]))


def by_address(path: Path) -> Iterator[tuple[Address, dict[str, Any]]]:
    """The records of a ledger.jsonl or digests.jsonl, without an incomplete last line.

    Raises:
        PenstockError: another line is broken, or the addresses don't increase.
    """
    before, check, skips = (-1, -1), _CHECKS[path.name], path.name == LEDGER
    for number, record in enumerate(_lines(path, check), 1):
        address = Address(record["epoch"], record["step"])
        if address <= before:
            where = f"{path}, line {number}: epoch {address.epoch}, step {address.step}"
            raise PenstockError(f"{where} comes after a later one")
        before = address
        if not (skips and "skipped_to" in record):
            yield address, record


def _lines(path: Path, check: Callable[[Mapping[str, Any]], None]) -> Iterator[dict[str, Any]]:
    with measurements.naming(path), path.open("rb") as file:
        for number, record in records(file):
            try:
                check(record)
            except (ValueError, LookupError, TypeError, OverflowError) as error:
                raise ValueError(f"line {number} is broken: {error}") from error
            yield record


def _check_ledger(record: Mapping[str, Any]) -> None:
    Address(int(record["epoch"]), int(record["step"]))
    if "skipped_to" in record:
        _range_of(record)
    else:
        int(record["samples"]), np.uint64(int(record["order"], 16)), float.fromhex(record["loss"])


def _range_of(record: Mapping[str, Any]) -> tuple[Address, Address]:
    """The range that a line of a ledger says to be left out; raises ValueError."""
    value = [[record["epoch"], record["step"]], record["skipped_to"]]
    return Skipped.of(value).ranges[0]


def skipped_in(path: Path) -> Skipped:
    """The samples that training left out, by the ledger.

    Raises:
        PenstockError: a line of the ledger is broken, or there are more ranges than anybody names.
    """
    ranges = (_range_of(line) for line in _lines(path, _check_ledger) if "skipped_to" in line)
    skipped = list(islice(ranges, _MOST_SKIPPED + 1))
    if len(skipped) > _MOST_SKIPPED:
        raise PenstockError(f"{path} has more than {_MOST_SKIPPED} ranges that were left out")
    return Skipped(tuple(skipped))


class Digests:
    """The hashes of a run's batches by address, from its digests.jsonl; none without the file.

    Keeps 24 bytes and the hash of each. Raises PenstockError as `by_address`.
    """

    def __init__(self, path: Path) -> None:
        self._epochs, self._steps, self._ends = array("q"), array("q"), array("q")
        self._text = bytearray()
        for address, line in by_address(path):
            self._epochs.append(address.epoch)
            self._steps.append(address.step)
            self._text += line["hash"].encode(errors="surrogatepass")
            self._ends.append(len(self._text))
            if len(self._text) > _MOST_HASHES:
                raise PenstockError(
                    f"{path} has more than {_MOST_HASHES} bytes of hashes, which "
                    "are not read into memory"
                )

    def hash(self, address: Address) -> str | None:
        """The hash of a batch; None if the file lacks it."""
        first, last = (bisect_left(self._epochs, address.epoch + more) for more in (0, 1))
        row = bisect_left(self._steps, address.step, first, last)
        if row == last or self._steps[row] != address.step:
            return None
        start = self._ends[row - 1] if row else 0
        return self._text[start : self._ends[row]].decode(errors="surrogatepass")


def _check_digest(record: Mapping[str, Any]) -> None:
    Address(int(record["epoch"]), int(record["step"]))
    if not isinstance(record["hash"], str):
        raise ValueError(f"hash is {record['hash']!r:.60}")


_CHECKS = {LEDGER: _check_ledger, DIGESTS: _check_digest}
