"""Two runs beside each other: what they were started with, and where their steps part.

Reads files only, step by step, and imports no torch; weights are compared in
`weight_comparison.py`. Cost: about 10 us a step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.files.regular_file import open_regular
from pipeline.order.address import Address
from pipeline.runs.record import DIGESTS, LEDGER, RunRecord, by_address
from pipeline.runs.resumption import leaves
from pipeline.terminal import one_line, watched

# Facts of a manifest, by what they tell; a run's fingerprint also repeats its configuration.
FACTS = {
    "run": ("status", "reason", "order"),
    "data": ("data", "fingerprint"),
    "code": ("git", "code"),
    "versions": ("penstock", "python", "packages"),
    "hardware": ("device", "platform", "cpus", "threads", "gpus"),
}

_HASHES_OF_DATA = ("data.train", "data.val", "fingerprint.dataset")
_LONGEST = 60  # characters of a value in a table

Lines = Iterator[tuple[Address, dict[str, Any]]]
# A difference in words, or None; and its size.
Kinds = Mapping[str, tuple[Callable[[Any, Any], str | None], Callable[[Any, Any], float] | None]]


@dataclass(frozen=True)
class Difference:
    """A key with its values in two runs; None where a run has none."""

    key: str
    first: Any
    second: Any
    note: str = ""

    def texts(self) -> tuple[str, str]:
        """Both values, each in a line; of long ones what surrounds the first difference."""
        texts = ["-" if one is None else one_line(one) for one in (self.first, self.second)]
        pairs = enumerate(zip(*texts, strict=False))
        same = next((place for place, (a, b) in pairs if a != b), min(map(len, texts)))
        start = 0 if max(map(len, texts)) <= _LONGEST else max(0, same - _LONGEST // 3)
        parts = [f"{'...' if start else ''}{one[start : start + _LONGEST]}"
                 f"{'...' if len(one) > start + _LONGEST else ''}" for one in texts]  # fmt: skip
        return parts[0], parts[1]


@dataclass(frozen=True)
class Finding:
    """What a comparison of two runs found.

    Attributes:
        what: was compared: samples, losses, digests, weights ...
        text: for people.
        same: None if nothing could be compared.
    """

    what: str
    text: str
    same: bool | None


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Those between two nested mappings, by dotted key; empty mappings count as missing."""
    a, b = ({key: None if value == {} else value for key, value in leaves(one)}
            for one in (first, second))  # fmt: skip
    return [Difference(key, a.get(key), b.get(key)) for key in {**a, **b}
            if a.get(key) != b.get(key)]  # fmt: skip


def settings(first: RunRecord, second: RunRecord) -> list[Difference]:
    """The keys of the configuration that differ, but for the run's own folder."""
    found = differences(first.config, second.config)
    return [one for one in found if one.key != "run_dir"]


def facts(first: RunRecord, second: RunRecord) -> dict[str, list[Difference]]:
    """What else differs between the runs, by the names of FACTS."""
    found = {title: differences(*({name: run.manifest.get(name) for name in names}
             for run in (first, second))) for title, names in FACTS.items()}  # fmt: skip
    starts = [_starts(run) for run in (first, second)]
    found["run"] = [*differences(*({"starts": one["starts"]} for one in starts)), *found["run"]]
    found["hardware"] += differences(*({"ranks": one["ranks"]} for one in starts))
    mode = next((one for one in found["data"] if one.key == "data.fingerprint"), None)
    data = f"fingerprinted by {mode.first} and {mode.second}" if mode else "other data"
    known = {f"fingerprint.{key}" for run in (first, second) for key, _ in leaves(run.config)}
    found["data"] = [
        replace(one, note=data if one.key in _HASHES_OF_DATA else "") for one in found["data"]
        if one.key not in known
    ]  # fmt: skip
    found["code"] = [replace(one, note="other code" if one.key.startswith("code.") else "")
                     for one in found["code"]]  # fmt: skip
    return found


def _starts(run: RunRecord) -> dict[str, Any]:
    """How often a run was started, and with how many ranks in turn."""
    sizes = [str(one.get("world", 1)) for one in run.sessions] or ["1"]
    ranks = sizes[0] if len(set(sizes)) == 1 else ", ".join(sizes)
    return {"starts": len(sizes), "ranks": ranks}


def compare_ledgers(first: RunRecord, second: RunRecord) -> list[Finding]:
    """Where samples and losses first differ, and the steps that one run has alone.

    Raises:
        PenstockError: a ledger is damaged.
    """
    missing = [str(run.path) for run in (first, second) if not (run.path / LEDGER).exists()]
    if missing:
        text = f"{' and '.join(missing)} has none; train with trainer.ledger=true"
        return [Finding("ledger", text, None)]
    kinds: Kinds = {"samples": (_samples, None), "losses": (_losses, _relative)}
    found, alone = _compared(first, second, LEDGER, kinds)
    for run, count in zip((first, second), alone, strict=True):
        if count:
            found.append(Finding("steps", f"{count} are in {run.path} only", False))
    return found


def compare_digests(first: RunRecord, second: RunRecord) -> list[Finding]:
    """The same for the hashes of samples; nothing unless both runs wrote them."""
    if any(not (run.path / DIGESTS).exists() for run in (first, second)):
        return []
    return _compared(first, second, DIGESTS, {"digests": (_digests, None)})[0]


def _compared(
    first: RunRecord, second: RunRecord, name: str, kinds: Kinds
) -> tuple[list[Finding], Sequence[int]]:
    """The first difference of each kind, and the number of steps that only one file has."""
    both, alone = 0, [0, 0]
    differing, parted, most = Counter[str](), dict[str, str](), dict[str, float]()
    paths = [run.path / name for run in (first, second)]
    pairs = watched(_pairs(*map(by_address, paths)), _count(paths[0]), f"comparing {name}")
    for (epoch, step), a, b in pairs:
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
    found = []
    for what, (_, amount) in kinds.items():
        by = f", by up to {most[what]:.2g} of the value" if amount and differing[what] else ""
        text = f"the same at {both} steps"
        if differing[what]:
            text = f"{parted[what]}; {differing[what]} of {both} steps differ{by}"
        found.append(Finding(what, text, not differing[what]))
    return found, alone


def _count(path: Path) -> int:
    """The lines of a file; 1 s for 2 GB."""
    with open_regular(path) as file:
        return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))


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
