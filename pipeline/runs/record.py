"""Reading the folders of runs: their state, configuration, measurements and ledger.

A folder may come from anybody, and be written to at this moment, so everything is checked, and an
incomplete last line is left out. This imports no torch: lists of runs are shown in a second.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pipeline.errors import ConfigError, PenstockError, Problem
from pipeline.files import plain_json
from pipeline.files.disk import LONGEST_LINE, is_locked
from pipeline.files.plain_json import JsonError, integer, mapping, shown
from pipeline.files.regular_file import open_regular
from pipeline.order.address import Address
from pipeline.order.skipped import Skipped
from pipeline.runs import left_out
from pipeline.runs.manifest import read_config, read_manifest

LEDGER, DIGESTS, METRICS, HOLDER = "ledger.jsonl", "digests.jsonl", "metrics.jsonl", "holder.json"

_LONGEST_FIELD = 100  # characters of a hash or a loss
_BLOCK = 1 << 20  # bytes of a ledger that are read at once
_KINDS = (np.int64, np.int64, np.int64, np.uint64, np.float64)
_NUMBER = rb"(0|[1-9]\d{0,17})"
_AS_WRITTEN = re.compile(
    rb'^\{"epoch": %b, "step": %b, "samples": %b, "order": "([0-9a-f]{16})", '
    rb'"loss": "([^"\\\n]{1,100})"\}\n' % (_NUMBER, _NUMBER, _NUMBER), re.MULTILINE
)  # fmt: skip

_SKIPPED = re.compile(
    rb'^\{"epoch": %b, "step": %b, "skipped_to": \[%b, %b\]\}\n'
    % (_NUMBER, _NUMBER, _NUMBER, _NUMBER), re.MULTILINE
)  # fmt: skip


@dataclass(frozen=True)
class Ledger:
    """What each step saw and cost; arrays of one length, in the order of the addresses.

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
    config: Mapping[str, Any]
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

    @cached_property
    def logs(self) -> list[dict[str, Any]]:
        """The measurements inside epochs; a value that was not finite is None."""
        return [one for one in self._measured if one["event"] == "log"]

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The measurements of whole epochs, training and validation."""
        return [one for one in self._measured if one["event"] == "epoch"]

    @cached_property
    def _measured(self) -> list[dict[str, Any]]:
        return list(_lines(self.path / METRICS, _check_measured))

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
    parts: list[Ledger] = []
    lines = 0
    try:
        with open_regular(path) as file:
            while (least is None or lines < least) and (block := file.read(_BLOCK)):
                block += file.readline(LONGEST_LINE)
                parts.append(_parsed(block))
                lines += len(parts[-1].epoch)
        columns = [[getattr(one, name.name) for one in parts] or [[]] for name in fields(Ledger)]
        found = Ledger(*(np.concatenate(one).astype(kind)
                         for one, kind in zip(columns, _KINDS, strict=True)))  # fmt: skip
        if _increases(found):
            return found
    except (OSError, ValueError):
        pass  # line by line, for what is wrong and where; or because somebody else wrote it
    rows = [(*address, one["samples"], int(one["order"], 16), float.fromhex(one["loss"]))
            for address, one in by_address(path)]  # fmt: skip
    values = list(zip(*rows, strict=True)) or [()] * 5
    return Ledger(*(np.array(one, kind) for one, kind in zip(values, _KINDS, strict=True)))


def _parsed(block: bytes) -> Ledger:
    """Whole lines as a fit writes them; raises ValueError for any other."""
    rows = _AS_WRITTEN.findall(block)
    if len(rows) + len(_SKIPPED.findall(block)) != block.count(b"\n"):
        raise ValueError
    epoch, step, samples, order, loss = zip(*rows, strict=True) if rows else [()] * 5
    epochs, steps, counts = (np.array(one, "S18").astype(np.int64)
                             for one in (epoch, step, samples))  # fmt: skip
    hashes = np.frombuffer(bytes.fromhex(b"".join(order).decode()), ">u8").astype(np.uint64)
    losses = np.array([float.fromhex(one.decode()) for one in loss])
    return Ledger(epochs, steps, counts, hashes, losses)


def _increases(ledger: Ledger) -> bool:
    """Whether each address comes after the one before."""
    epochs, steps = np.diff(ledger.epoch), np.diff(ledger.step)
    return bool(((epochs > 0) | ((epochs == 0) & (steps > 0))).all())


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
        raise ConfigError(Problem("runs", f"needs the folders of two runs, and has {count}: "
                                  "runs=[outputs/a,outputs/b]"))  # fmt: skip
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
    try:
        opened = open_regular(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise PenstockError(f"{path} cannot be read: {error.strerror}") from error
    with opened as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
            if not line.endswith(b"\n"):
                if len(line) < LONGEST_LINE:
                    return
                raise PenstockError(f"{path}, line {number} is longer than {LONGEST_LINE} bytes")
            try:
                record = mapping(plain_json.parse(line))
                check(record)
            except (ValueError, OverflowError) as error:
                raise PenstockError(f"{path}, line {number} is broken: {error}") from error
            yield record


def _check_measured(record: Mapping[str, Any]) -> None:
    if record.get("event") not in ("log", "epoch"):
        raise JsonError(f"event is {shown(record.get('event'))}")
    integer(record, "epoch")
    integer(record, "step")
    for name, value in record.items():
        if name != "event" and (
            isinstance(value, bool) or not isinstance(value, int | float | None)
        ):
            raise JsonError(f"{name[:100]} is {shown(value)}, and must be a number")


def _check_ledger(record: Mapping[str, Any]) -> None:
    for key in ("epoch", "step"):
        integer(record, key)
    if "skipped_to" in record:
        _range_of(record)
        return
    integer(record, "samples")
    for key in ("order", "loss"):
        if not isinstance(record.get(key), str) or len(record[key]) > _LONGEST_FIELD:
            raise JsonError(f"{key} is {shown(record.get(key))}")
    float.fromhex(record["loss"])
    if not 0 <= int(record["order"], 16) < 2**64:
        raise JsonError(f"order is {shown(record['order'])}")


def _range_of(record: Mapping[str, Any]) -> tuple[Address, Address]:
    """The range that a line of a ledger says to be left out; raises ValueError."""
    value = [[record["epoch"], record["step"]], record["skipped_to"]]
    return Skipped.of(value).ranges[0]


def skipped_in(path: Path) -> Skipped:
    """What a ledger says that training left out.

    Raises:
        PenstockError: a line of the ledger is broken.
    """
    return Skipped(_range_of(one) for one in _lines(path, _check_ledger) if "skipped_to" in one)


def _check_digest(record: Mapping[str, Any]) -> None:
    for key in ("epoch", "step"):
        integer(record, key)
    if not isinstance(record.get("hash"), str):
        raise JsonError(f"hash is {shown(record.get('hash'))}")


_CHECKS = {LEDGER: _check_ledger, DIGESTS: _check_digest}
