"""`task=verify runs=[A,B]`: whether two runs are the same, and if not, from which step on.

Compares configurations, ledgers and digests step by step, and the last checkpoints bit by bit. Exit
code 1 if samples, losses or weights differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from pipeline.config.schema import Config
from pipeline.errors import ConfigError, PenstockError, Problem
from pipeline.files import plain_json
from pipeline.files.disk import LONGEST_LINE
from pipeline.files.plain_json import JsonError, integer, mapping, shown
from pipeline.files.regular_file import open_regular
from pipeline.order.address import Address
from pipeline.runs.checkpoint import find_newest, has_checkpoint
from pipeline.runs.identity.fingerprints import mode_in
from pipeline.runs.manifest import read_config, read_manifest
from pipeline.runs.resumption import leaves
from pipeline.runs.state_tree import encode
from pipeline.tasks.tables import put_rows
from pipeline.terminal import one_line, put

# Keys that change no batch and no weight.
HARMLESS = ("loader", "distributed", "run_dir", "cache_dir", "resume", "resume_despite", "sweep",
            "tracker", "task", "runs", "trainer.checkpoint", "trainer.log_every", "trainer.digest",
            "trainer.ledger", "trainer.progress", "trainer.pictures",
            "trainer.baseline")  # fmt: skip
FACTS = ("status", "data", "fingerprint", "code", "device", "penstock", "git", "python",
         "packages", "platform", "cpus", "threads", "gpus", "order")  # fmt: skip

_LONGEST_FIELD = 100  # characters of a hash or a loss

Rows = list[tuple[str, str, str, str]]
Lines = Iterator[tuple[Address, Any]]
# A difference in words, or None; and its size.
Kinds = dict[str, tuple[Callable[[Any, Any], str | None], Callable[[Any, Any], float] | None]]


class RunsDifferError(PenstockError):
    """The runs differ; the differences have been printed."""


@dataclass(frozen=True)
class Run:
    """A run's folder, configuration and manifest."""

    path: Path
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Run:
        """Raises ConfigError if `path` is not a run's folder."""
        try:
            manifest = read_manifest(path, "runs")
            return cls(path, read_config(path / "config.yaml"), manifest)
        except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
            reason = f"{path} is not a run's folder: config.yaml: {str(error)[:300]}"
            raise ConfigError(Problem("runs", reason)) from error

    def facts(self) -> dict[str, Any]:
        """Its number of starts, its numbers of ranks in turn, and the manifest's facts by key."""
        sizes = [str(one.get("world", 1)) for one in self.manifest.get("sessions", ())] or ["1"]
        ranks = sizes[0] if len(set(sizes)) == 1 else ", ".join(sizes)
        known = {name: self.manifest.get(name) for name in FACTS}
        return {"starts": len(sizes), "ranks": ranks, **dict(leaves(known))}


def run(config: Config) -> None:
    """Compare the two runs of `config.runs`.

    Raises:
        ConfigError: they are not the folders of two runs.
        RunsDifferError: they differ.
    """
    if config.runs is None or len(config.runs) != 2:
        count = "none" if config.runs is None else len(config.runs)
        raise ConfigError(Problem("runs", f"needs the folders of two runs, and has {count}: "
                                  "runs=[outputs/a,outputs/b]"))  # fmt: skip
    first, second = (Run.read(Path(path)) for path in config.runs)
    print_started(first, second)
    parts = [print_ledgers(first, second), print_digests(first, second)]
    parts.append(print_weights(first, second))
    known = [same for same in parts if same is not None]
    if not known:
        raise PenstockError("nothing to compare: the runs have neither both ledgers nor both "
                            "checkpoints; train with trainer.ledger=true")  # fmt: skip
    if not all(known):
        raise RunsDifferError("the two runs are not the same")
    put("the same")


def print_started(first: Run, second: Run) -> None:
    """Print differences of the runs' facts and settings."""
    modes = [mode_in(dict(run.manifest.get("fingerprint") or {})) for run in (first, second)]
    data = "other data" if modes[0] == modes[1] else f"fingerprinted by {modes[0]} and {modes[1]}"

    def note(key: str) -> str:
        if key in ("data.train", "data.val", "fingerprint.dataset"):
            return data
        return "other code" if key.startswith("code.") else ""

    def matters(key: str) -> str:
        harmless = any(key == name or key.startswith(name + ".") for name in HARMLESS)
        return "" if harmless else "matters"

    rows: Rows = [("run", str(first.path), str(second.path), "")]
    rows += _differing(first.facts(), second.facts(), note)
    rows += _differing(dict(leaves(first.config)), dict(leaves(second.config)), matters)
    put_rows(rows)


def print_ledgers(first: Run, second: Run) -> bool | None:
    """Print where samples and losses first differ; whether nowhere, or None if unknown."""
    name = "ledger.jsonl"
    missing = [str(run.path) for run in (first, second) if not (run.path / name).exists()]
    if missing:
        _say("ledger", f"{' and '.join(missing)} has none; train with trainer.ledger=true")
        return None
    kinds: Kinds = {"samples": (_samples, None), "losses": (_losses, _relative)}
    same, alone = _print_lines(first, second, name, kinds)
    for run, count in zip((first, second), alone, strict=True):
        if count:
            _say("steps", f"{count} are in {run.path} only")
    return same and not any(alone)


def print_digests(first: Run, second: Run) -> bool | None:
    """The same for the hashes of samples, if both runs wrote them."""
    name = "digests.jsonl"
    if any(not (run.path / name).exists() for run in (first, second)):
        return None
    return _print_lines(first, second, name, {"digests": (_digests, None)})[0]


def _print_lines(first: Run, second: Run, name: str, kinds: Kinds) -> tuple[bool, list[int]]:
    """Compare both files by address; print the first difference of each kind, and their number.

    Returns:
        Whether there is no difference, and the numbers of steps that only one file has.
    """
    both, alone = 0, [0, 0]
    differing, parted, most = Counter[str](), dict[str, str](), dict[str, float]()
    for (epoch, step), a, b in _pairs(_lines(first.path / name), _lines(second.path / name)):
        if a is None or b is None:
            alone[a is None] += 1
            continue
        both += 1
        for what, (difference, amount) in kinds.items():
            how = difference(a, b)
            if how is not None:
                differing[what] += 1
                parted.setdefault(what, f"first differ at epoch {epoch}, step {step}: {how}")
                most[what] = max(most.get(what, 0.0), amount(a, b) if amount else 0.0)
    for what, (_, amount) in kinds.items():
        by = f", by up to {most[what]:.2g} of the value" if amount and differing[what] else ""
        _say(what, f"{parted[what]}; {differing[what]} of {both} steps differ{by}"
             if differing[what] else f"the same at {both} steps")  # fmt: skip
    return not differing.total(), alone


def _samples(a: Any, b: Any) -> str | None:
    if (a["order"], a["samples"]) == (b["order"], b["samples"]):
        return None
    return f"other samples, or in another order ({a['samples']} and {b['samples']})"


def _losses(a: Any, b: Any) -> str | None:
    if a["loss"] == b["loss"]:
        return None
    one, other = float.fromhex(a["loss"]), float.fromhex(b["loss"])
    if not (math.isfinite(one) and math.isfinite(other)):
        return f"{one} and {other}"
    unit = float(np.spacing(np.float32(max(abs(one), abs(other)))))
    return f"{one!r} and {other!r}, {abs(one - other) / unit:.3g} ulps of float32 apart"


def _relative(a: Any, b: Any) -> float:
    one, other = float.fromhex(a["loss"]), float.fromhex(b["loss"])
    apart = abs(one - other) / (max(abs(one), abs(other)) or 1.0)
    return apart if math.isfinite(apart) else math.inf


def _digests(a: Any, b: Any) -> str | None:
    return None if a["hash"] == b["hash"] else "the samples have other contents"


def _check_ledger(record: Mapping[str, Any]) -> None:
    integer(record, "samples")
    for key in ("order", "loss"):
        if not isinstance(record.get(key), str) or len(record[key]) > _LONGEST_FIELD:
            raise JsonError(f"{key} is {shown(record.get(key))}")
    float.fromhex(record["loss"])


def _check_digest(record: Mapping[str, Any]) -> None:
    if not isinstance(record.get("hash"), str):
        raise JsonError(f"hash is {shown(record.get('hash'))}")


_CHECKS = {"ledger.jsonl": _check_ledger, "digests.jsonl": _check_digest}


def _lines(path: Path) -> Lines:
    """The records of a file by address, without an incomplete last line.

    Raises:
        PenstockError: another line is broken, or the addresses don't increase.
    """
    before, check = (-1, -1), _CHECKS[path.name]
    try:
        opened = open_regular(path)
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
                address = Address(integer(record, "epoch"), integer(record, "step"))
                check(record)
            except (ValueError, OverflowError) as error:
                raise PenstockError(f"{path}, line {number} is broken: {error}") from error
            if address <= before:
                where = f"{path}, line {number}: epoch {address.epoch}, step {address.step}"
                raise PenstockError(f"{where} comes after a later one")
            before = address
            yield address, record


def _pairs(first: Lines, second: Lines) -> Iterator[tuple[Address, Any, Any]]:
    """Both records of each address; None for a missing one."""
    a, b = next(first, None), next(second, None)
    while a or b:
        address = min(one[0] for one in (a, b) if one)
        left = a[1] if a and a[0] == address else None
        right = b[1] if b and b[0] == address else None
        yield address, left, right
        a = next(first, None) if left is not None else a
        b = next(second, None) if right is not None else b


def print_weights(first: Run, second: Run) -> bool | None:
    """Print how the last checkpoints differ; whether not at all, or None without both."""
    missing = [str(run.path) for run in (first, second) if not has_checkpoint(run.path)]
    if missing:
        _say("weights", f"{' and '.join(missing)} has no checkpoint")
        return None
    states = []
    for run in (first, second):
        newest = find_newest(run.path)
        for path, reason in newest.skipped:
            _say("weights", f"cannot use {path}: {reason}")
        states.append(newest.state)
    steps = [state.get("updates") for state in states]
    if steps[0] != steps[1]:
        _say("weights", f"not compared: the last are of optimizer steps {steps[0]} and {steps[1]}")
        return False
    same = [_print_part(name, *(state.get(name) for state in states))
            for name in ("model", "optimizer")]  # fmt: skip
    return all(same)


def _print_part(name: str, first: Any, second: Any) -> bool:
    title = "weights" if name == "model" else name
    a, b = (encode({"": part})[1] for part in (first, second))
    odd = sorted(a.keys() ^ b.keys())
    if odd:
        _say(title, f"of different models: only one has {odd[0].strip('/')}")
        return False
    apart = {key: _distance(a[key], b[key]) for key in a if not _same_bits(a[key], b[key])}
    if apart:
        worst = max(apart, key=lambda key: apart[key])
        _say(title, f"{len(apart)} of {len(a)} tensors differ, {worst.strip('/')} by up to "
             f"{apart[worst]:.3g}")  # fmt: skip
    else:
        _say(title, f"the same bits in {len(a)} tensors")
    return not apart


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    flat = [one.contiguous().reshape(-1).view(torch.uint8) for one in (a, b)]
    return not a.numel() or torch.equal(*flat)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference; infinite for other shapes and NaN."""
    if a.shape != b.shape:
        return math.inf
    distance = float((a.double() - b.double()).abs().max())
    return math.inf if math.isnan(distance) else distance


def _differing(a: Mapping[str, Any], b: Mapping[str, Any], note: Callable[[str], str]) -> Rows:
    keys = [key for key in {**a, **b} if key != "run_dir" and a.get(key) != b.get(key)]

    def text(value: Any) -> str:
        return "-" if value is None else one_line(value)

    return [(key, text(a.get(key)), text(b.get(key)), note(key)) for key in keys]


def _say(what: str, finding: str) -> None:
    put(f"{what:<13}{finding}")
