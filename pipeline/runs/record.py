"""Reading the folders of runs: their state, configuration, measurements and ledger.

A run may be writing to its folder at this moment, so an incomplete last line is left out. Any other
broken line is an error that names it. Cost: 10 us a line, and 1 kB of memory for a line of
metrics.jsonl. This imports no torch: lists of runs are shown in a second.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import yaml

from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.data import records
from penstock.files.locks import is_locked
from penstock.order.address import Address, Skipped
from penstock.runs.manifest import read_config, read_manifest

if TYPE_CHECKING:
    from penstock.runs.quarantine import Entry

LEDGER, DIGESTS, METRICS, HOLDER = "ledger.jsonl", "digests.jsonl", "metrics.jsonl", "holder.json"
QUARANTINE = "quarantine.csv"

Record = dict[str, Any]


class Series(list[Record]):
    """The records of one event in metrics.jsonl, in the order of their lines.

    A number that was not finite is None in its record, and NaN in its column.
    """

    @property
    def names(self) -> list[str]:
        """Of all numbers, in the order in which they appeared."""
        names = dict.fromkeys(name for record in self for name in record)
        names.pop("event", None)
        return list(names)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A number of all records, [N]: int64, or float64 if any is not whole or missing (NaN)."""
        values = [record.get(name) for record in self]
        if values and all(type(value) is int for value in values):
            return np.array(values, np.int64)
        return np.array([math.nan if value is None else value for value in values], np.float64)

    def address(self, index: int) -> Record:
        """Event, epoch and step of a record."""
        return {name: self[index][name] for name in ("event", "epoch", "step")}

    def finite(self, name: str) -> npt.NDArray[np.int64]:
        """The places of the records that have a finite number of that name."""
        return np.flatnonzero(np.isfinite(self.column(name)))


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
        """The measurements inside epochs."""
        return self._measured["log"]

    @property
    def epochs(self) -> Series:
        """The measurements of whole epochs, training and validation."""
        return self._measured["epoch"]

    @cached_property
    def _measured(self) -> dict[str, Series]:
        by_event = {"log": Series(), "epoch": Series()}
        for record in _lines(self.path / METRICS, _check_measured):
            by_event[record["event"]].append(record)
        return by_event

    @cached_property
    def ledger(self) -> Ledger | None:
        """None if the run wrote none (trainer.ledger=false)."""
        path = self.path / LEDGER
        return read_ledger(path) if path.exists() else None

    @cached_property
    def left_out(self) -> list[Entry]:
        """The samples that the run left out: the lines of its quarantine.csv."""
        path = self.path / QUARANTINE
        if not path.exists():
            return []
        from penstock.runs.quarantine import read  # with torch, which most reports do without

        return read(path)


def read_ledger(path: Path) -> Ledger:
    """The ledger in `path`, without an incomplete last line.

    Raises:
        PenstockError: a line is broken, or the addresses don't increase.
    """
    epoch, step, samples, order = (array(code) for code in "qqqQ")
    loss = array("d")
    for address, line in by_address(path):
        epoch.append(address.epoch)
        step.append(address.step)
        samples.append(line["samples"])
        order.append(int(line["order"], 16))
        loss.append(float.fromhex(line["loss"]))
    return Ledger(*map(np.asarray, (epoch, step, samples, order, loss)))


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


def by_address(path: Path) -> Iterator[tuple[Address, Record]]:
    """The steps in a ledger.jsonl or digests.jsonl, without an incomplete last line.

    Raises:
        PenstockError: another line is broken, or the addresses don't increase.
    """
    before, check = (-1, -1), _check_ledger if path.name == LEDGER else _check_digest
    for number, record in enumerate(_lines(path, check), 1):
        address = Address(record["epoch"], record["step"])
        if address <= before:
            where = f"{path}, line {number}: epoch {address.epoch}, step {address.step}"
            raise PenstockError(f"{where} comes after a later one")
        before = address
        if "skipped_to" not in record:
            yield address, record


def skipped_in(path: Path) -> Skipped:
    """The samples that training left out, by the ledger; raises PenstockError as `by_address`."""
    lines = (line for line in _lines(path, _check_ledger) if "skipped_to" in line)
    ranges = [[[line["epoch"], line["step"]], line["skipped_to"]] for line in lines]
    return Skipped.of(ranges)


def digests(path: Path) -> dict[Address, str]:
    """The hashes of a run's batches, by its digests.jsonl; none without the file.

    Raises:
        PenstockError: as `by_address`.
    """
    return {address: line["hash"] for address, line in by_address(path)}


def _lines(path: Path, check: Callable[[Record], object]) -> Iterator[Record]:
    """The checked records of a file; none without the file."""
    try:
        with path.open("rb") as file:
            for number, record in records(file):
                try:
                    check(record)
                except (ValueError, LookupError, TypeError, OverflowError) as error:
                    raise ValueError(f"line {number} is broken: {error}") from error
                yield record
    except FileNotFoundError:
        return
    except OSError as error:
        raise PenstockError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PenstockError(f"{path}, {error}") from error


def _check_address(record: Record) -> None:
    for name in ("epoch", "step"):
        if type(record[name]) is not int or not 0 <= record[name] < 2**63:
            raise ValueError(f"{name} is {record[name]!r:.60}, and must be a whole number")


def _check_measured(record: Record) -> None:
    _check_address(record)
    if record["event"] not in ("log", "epoch"):
        raise ValueError(f"event is {record['event']!r:.60}")
    for name, value in record.items():
        # A page shows what it finds here as a number.
        if name != "event" and type(value) not in (int, float, type(None)):
            raise ValueError(f"{name[:100]} is {value!r:.60}, and must be a number")


def _check_ledger(record: Record) -> None:
    _check_address(record)
    if "skipped_to" in record:
        Skipped.of([[record["epoch"], record["step"]], record["skipped_to"]])
    else:
        int(record["samples"]).to_bytes(8)  # fits
        int(record["order"], 16).to_bytes(8)
        float.fromhex(record["loss"])


def _check_digest(record: Record) -> None:
    _check_address(record)
    if not isinstance(record["hash"], str):
        raise ValueError(f"hash is {record['hash']!r:.60}")
