"""Two runs beside each other: what they were started with, and where their steps part.

    compare(first, second) -> Comparison    settings by their effect, facts, findings, an answer

Reads files only, step by step, and imports no torch; weights are compared in
`weight_comparison.py`. Cost: 14 us a step.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.config.identity import effect_of, leaves
from penstock.config.schema import TASK_KEYS, Changes
from penstock.errors import PenstockError
from penstock.loading.known_by import PREFIX, relation
from penstock.order.address import Address
from penstock.runs.record import DIGESTS, LEDGER, RunRecord, by_address, skipped_in
from penstock.terminal import one_line, watched

TITLES = {
    Changes.DATA: "keys of data, which change batches if they change the data",
    Changes.BATCHES: "keys that change batches",
    Changes.WEIGHTS: "keys that change weights, and no batch",
    Changes.RESULTS: "keys that change results, and no weights unless validation steers the run",
    Changes.ROUNDING: "keys that change weights by rounding",
    Changes.NOTHING: "keys that change nothing",
}
# Facts of a manifest, by what they tell.
FACTS = {
    "run": ("status", "reason", "order"),
    "data": ("data",),
    "code": ("git", "code"),
    "versions": ("penstock", "python", "packages"),
    "hardware": ("device", "platform", "cpus", "threads", "gpus"),
}

_HASHES_OF_DATA = ("data.train", "data.val", "fingerprint.dataset")
_WEIGHTS = {True: "the same weights", False: "other weights", None: "weights not compared"}
_UNKNOWN_DATA = "data that is not known to be the same"
MISSING = "-"
_LONGEST = 60  # characters of a value in a table

Lines = Iterator[tuple[Address, dict[str, object]]]
# A difference in words, or None; and its size.
Kinds = Mapping[
    str, tuple[Callable[[object, object], str | None], Callable[[object, object], float] | None]
]


@dataclass(frozen=True)
class Difference:
    """A key with its values in two runs; MISSING where a run does not have it."""

    key: str
    first: Any
    second: object
    note: str = ""

    def texts(self) -> tuple[str, str]:
        """Both values, each in a line; of long ones what surrounds the first difference."""
        texts = [_text(value) for value in (self.first, self.second)]
        pairs = enumerate(zip(*texts, strict=False))
        same = next((at for at, (a, b) in pairs if a != b), min(map(len, texts)))
        start = 0 if max(map(len, texts)) <= _LONGEST else max(0, same - _LONGEST // 3)
        parts = [
            f"{'...' if start else ''}{text[start : start + _LONGEST]}"
            f"{'...' if len(text) > start + _LONGEST else ''}"
            for text in texts
        ]
        return parts[0], parts[1]


def _text(value: Any) -> str:
    """As YAML has it, in a line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else one_line(value)


@dataclass(frozen=True)
class Finding:
    """The result of comparing two runs.

    Attributes:
        what: was compared: samples, losses, digests, weights ...
        text: for people.
        same: None if nothing could be compared, or it is not known.
        alike: whether the rows are the same, and what they hold is not known to be.
    """

    what: str
    text: str
    same: bool | None
    alike: bool = False


@dataclass
class Comparison:
    """Two runs beside each other.

    Attributes:
        settings: keys of the configuration that differ, by what they have an effect on.
        facts: what else differs, by the names of FACTS.
        findings: of samples, losses, digests and weights; more may be added.
    """

    first: RunRecord
    second: RunRecord
    settings: dict[Changes, list[Difference]]
    facts: dict[str, list[Difference]]
    findings: list[Finding]

    def answer(self) -> list[str]:
        """Whether batches and weights are the same, and where to look if no key explains it."""
        same = {finding.what: finding.same for finding in self.findings}
        rows = same.get("samples", same.get("order"))
        batches = False if rows is False else same.get("digests")
        known = [same[what] for what in ("weights", "mean weights") if what in same]
        weights = None if None in known or not known else all(known)
        said = {
            True: "the same batches",
            False: "other batches",
            None: "the same samples" if rows else "batches not compared",
        }[batches]
        changing = self.settings[Changes.BATCHES]
        other_code = any(difference.key.startswith("code.") for difference in self.facts["code"])
        if batches is None and rows and (changing or other_code):
            said = f"the same rows, made by other {'settings' if changing else 'code'}"
        if batches is None and any(finding.alike for finding in self.findings):
            first, second = (run.manifest.get("data") for run in (self.first, self.second))
            other = relation(first, second).same is False
            said = f"the same rows of {'other data' if other else _UNKNOWN_DATA}"
        lines = [f"{said}, {_WEIGHTS[weights]}"]
        if batches is None and (changing or other_code or not rows):
            lines.append("only trainer.digest=true tells whether the batches are the same")
        if batches is False and not changing and not self.facts["data"]:
            lines.append(f"no key explains other batches; {self._suspects('code', 'versions')}")
        learning = any(some for kind, some in self.settings.items() if kind > Changes.NOTHING)
        if (batches or rows) and weights is False and not learning:
            where = self._suspects("code", "versions", "hardware")
            lines.append(f"no key explains other weights; {where}")
        return lines

    def _suspects(self, *titles: str) -> str:
        differing = [title for title in titles if self.facts[title]]
        return (
            f"look at {' and '.join(differing)}"
            if differing
            else "nothing else that was noted differs"
        )


def compare(first: RunRecord, second: RunRecord) -> Comparison:
    """All but the weights. A damaged ledger is a finding, as the rest can be compared."""
    grouped: dict[Changes, list[Difference]] = {changes: [] for changes in TITLES}
    for difference in settings(first, second):
        grouped[effect_of(difference.key).changes].append(difference)
    looks = {"ledger": compare_ledgers, "digests": compare_digests, "order": _orders}
    findings: list[Finding] = []
    for what, look in looks.items():
        if what == "order" and any(finding.what == "samples" for finding in findings):
            continue
        try:
            findings += look(first, second)
        except PenstockError as error:
            findings.append(Finding(what, f"not compared: {error}", None))
    return Comparison(first, second, grouped, facts(first, second), findings)


def _orders(first: RunRecord, second: RunRecord) -> list[Finding]:
    """By the manifests' hashes over all rows and addresses, which only runs that ended have."""
    order, other = (run.manifest.get("order") for run in (first, second))
    if not (order and other):
        return []
    if order == other:
        return [_of_data(Finding("order", "the same samples at all steps", True), first, second)]
    ends = [run.epochs[-1]["step"] if run.epochs else 0 for run in (first, second)]
    if ends[0] != ends[1]:
        text = f"not compared: the runs ended after {ends[0]} and {ends[1]} optimizer steps"
        return [Finding("order", text, None)]
    return [Finding("order", "other samples, or in another order, at some step", False)]


def differences(first: Mapping[str, object], second: Mapping[str, object]) -> list[Difference]:
    """Those between two nested mappings, by dotted key.

    Empty mappings and nothing are the same, and so are null and no such key: a key that came with a
    later version is null by default, if a run without it is the same.
    """
    a, b = (
        {key: value for key, value in leaves(values) if value != {}} for values in (first, second)
    )
    return [
        Difference(key, a.get(key, MISSING), b.get(key, MISSING))
        for key in {**a, **b}
        if a.get(key) != b.get(key)
    ]


def settings(first: RunRecord, second: RunRecord) -> list[Difference]:
    """The keys of the configuration that differ, but for the run's folder and other tasks' keys."""
    differing = differences(first.config, second.config)
    differing = [
        difference
        for difference in differing
        if difference.key.split(".")[0] not in ("run_dir", *TASK_KEYS)
    ]
    transforms = [run.config.get("transform") for run in (first, second)]
    a, b = (steps if isinstance(steps, Mapping) else {} for steps in transforms)
    for name in a.keys() & b.keys():  # steps are applied in the order of their mapping
        if isinstance(a[name], Mapping) and isinstance(b[name], Mapping):
            both = {key for key, step in a[name].items() if step and b[name].get(key)}
            orders = [[str(key) for key in steps if key in both] for steps in (a[name], b[name])]
            if orders[0] != orders[1]:
                differing.append(Difference(f"transform.{name}", *map(", ".join, orders)))
    return differing


def facts(first: RunRecord, second: RunRecord) -> dict[str, list[Difference]]:
    """Further differences between the runs, by the names of FACTS."""
    known = {key for run in (first, second) for key, _ in leaves(run.config)}
    pairs = [_facts_of(run, known) for run in (first, second)]
    differing = {
        title: differences(*(facts_of_run[title] for facts_of_run in pairs)) for title in FACTS
    }
    mode = next(
        (difference for difference in differing["data"] if difference.key == "data.fingerprint"),
        None,
    )
    data = f"fingerprinted by {mode.first} and {mode.second}" if mode else "other data"
    differing["data"] = [
        replace(difference, note=data if difference.key in _HASHES_OF_DATA else "")
        for difference in differing["data"]
    ]
    code = {
        difference.texts(): replace(difference, note="other code")
        for difference in reversed(differing["code"])
        if difference.key.startswith("code.")
    }  # parts of one module have the same hash
    rest = [
        difference for difference in differing["code"] if not difference.key.startswith("code.")
    ]
    differing["code"] = [*rest, *reversed(code.values())]
    return differing


def _facts_of(run: RunRecord, known: Set[str]) -> dict[str, dict[str, object]]:
    """The facts of a manifest by the names of FACTS; of its fingerprint, what is no known key."""
    own = {
        title: {name: run.manifest[name] for name in names if name in run.manifest}
        for title, names in FACTS.items()
    }
    sizes = [str(session.get("world", 1)) for session in run.sessions] or ["1"]
    own["run"]["starts"] = len(sizes)
    own["hardware"]["ranks"] = sizes[0] if len(set(sizes)) == 1 else ", ".join(sizes)
    kinds = dict.fromkeys(str(session["kind"]) for session in run.sessions if "kind" in session)
    own["hardware"] |= {"kind": "; ".join(kinds)} if kinds else {}  # of a run in lanes
    fingerprint = run.manifest.get("fingerprint")
    for key, value in leaves(fingerprint) if isinstance(fingerprint, Mapping) else ():
        if key not in known and not key.startswith(PREFIX):  # facts of data, which have it too
            title = "run" if key.startswith("scheduler.") else "data"
            own[title][f"fingerprint.{key}"] = value
    return own


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
    findings, alone = _compared(first, second, LEDGER, kinds)
    findings = [
        _of_data(finding, first, second) if finding.what == "samples" else finding
        for finding in findings
    ]
    for run, other, count in zip((first, second), (second, first), alone, strict=True):
        if count:
            text = f"{count} are in {run.path} only"
            if skipped := skipped_in(other.path / LEDGER):
                text += f"; {other.path} left out {skipped} (trainer.skip)"
            findings.append(Finding("steps", text, False))
    return findings


def _of_data(finding: Finding, first: RunRecord, second: RunRecord) -> Finding:
    """A finding on the rows of each step as one on samples: the same rows of the same data.

    Where that is not known of the data, the digests of batches may tell.
    """
    data = relation(first.manifest.get("data"), second.manifest.get("data"))
    if not finding.same or data.same:
        return finding
    with suppress(PenstockError):  # a finding of its own
        if any(digest.same for digest in compare_digests(first, second)):
            return finding
    text = finding.text.replace("the same samples", "the same").replace("the same", "the same rows")
    return replace(finding, text=f"{text}; {data.why}", same=None, alike=True)


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
    pairs = watched(_pairs(*map(by_address, paths)), _about(paths[0]), f"comparing {name}")
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
    findings = []
    for what, (_, amount) in kinds.items():
        by = f", by up to {most[what]:.2g} of the value" if amount and differing[what] else ""
        text = f"the same at {both} steps" if both else "no step in common"
        if differing[what]:
            text = f"{parted[what]}; {differing[what]} of {both} steps differ{by}"
        findings.append(Finding(what, text, not differing[what] if both else None))
    return findings, alone


def _about(path: Path) -> int:
    """About how many lines a file has, by its size and its first lines."""
    try:
        with path.open("rb") as file:
            head, size = file.read(1 << 16), os.fstat(file.fileno()).st_size
    except OSError:  # told by whoever reads it
        return 0
    return size * head.count(b"\n") // max(1, len(head))


def _samples(a: Any, b: Any) -> str | None:
    if (a["order"], a["samples"]) == (b["order"], b["samples"]):
        return None
    return f"other samples, or in another order ({a['samples']} and {b['samples']})"


def _losses(a: Any, b: Any) -> str | None:
    if a["loss"] == b["loss"]:
        return None
    loss, other = float.fromhex(a["loss"]), float.fromhex(b["loss"])
    if not (math.isfinite(loss) and math.isfinite(other)):
        return f"{loss} and {other}"
    unit = float(np.spacing(np.float32(max(abs(loss), abs(other)))))
    return f"{loss!r} and {other!r}, {abs(loss - other) / unit:.3g} ulps of float32 apart"


def _relative(a: Any, b: Any) -> float:
    loss, other = float.fromhex(a["loss"]), float.fromhex(b["loss"])
    apart = abs(loss - other) / (max(abs(loss), abs(other)) or 1.0)
    return apart if math.isfinite(apart) else math.inf


def _digests(a: Any, b: Any) -> str | None:
    return None if a["hash"] == b["hash"] else "the samples have other contents"


def _pairs(first: Lines, second: Lines) -> Iterator[tuple[Address, object, object]]:
    """Both records of each address; None for a missing one."""
    a, b = next(first, None), next(second, None)
    while a or b:
        address = min(record[0] for record in (a, b) if record)
        left = a[1] if a and a[0] == address else None
        right = b[1] if b and b[0] == address else None
        yield address, left, right
        a = next(first, None) if left is not None else a
        b = next(second, None) if right is not None else b
