"""`task=diff runs=[A,B]`: whether two runs are the same; if not, from which step on, and why.

    1. keys of the configuration that differ, by what they change
    2. data, code, versions and hardware that differ
    3. where samples, losses and digests part, step by step; the last weights, bit by bit
    4. the answer in a line

Exit code 1 if samples, losses, digests or weights differ, or a file cannot be compared. Cost: 1 s,
most of it for the import of torch, and 14 us a step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import groupby, repeat, takewhile
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.config.identity import effect_of, leaves
from penstock.config.schema import TASK_KEYS, Config, Effect
from penstock.errors import PenstockError
from penstock.runs.checkpoint import encode, find_newest, has_checkpoint
from penstock.runs.manifest import same_data
from penstock.runs.record import DIGESTS, LEDGER, RunRecord, by_address, skipped_in, two_runs
from penstock.tasks.summary import put_rows
from penstock.terminal import one_line, put, watched

TITLES = {
    Effect.DATA: "keys of data, which change batches if they change the data",
    Effect.BATCHES: "keys that change batches",
    Effect.TRAINING: "keys that change training batches alone",
    Effect.WEIGHTS: "keys that change weights, and no batch",
    Effect.VALIDATION: "keys that change validation batches alone",
    Effect.RESULTS: "keys that change results, and no weights unless validation steers the run",
    Effect.ROUNDING: "keys that change weights by rounding",
    Effect.NOTHING: "keys that change nothing",
}
FACTS = {  # of a manifest, by what they tell
    "run": ("status", "reason", "order"),
    "data": ("data",),
    "code": ("git", "code"),
    "versions": ("penstock", "python", "packages"),
    "hardware": ("device", "platform", "cpus", "threads", "gpus"),
}
_PARTS = {"weights": "model", "mean weights": "averaged", "optimizer": "optimizer"}  # of a state
ADVICE = "a dataset with a `fingerprint` tells it (docs/own_dataset.md)"
_LONGEST = 60  # characters of a value in a table

Row = tuple[str, str, str]  # key, and its value in both runs


class Finding(NamedTuple):
    """What was compared, and whether it is the same; None: it is not there, or not known."""

    what: str
    text: str
    same: bool | None


def run(config: Config) -> None:
    """Print the differences between the two runs of `config.runs`.

    Raises:
        ConfigError: they are not the folders of two runs.
        PenstockError: they differ.
    """
    runs = two_runs(config.runs)
    put_rows([(name, one_line(of.path), of.state) for name, of in zip("AB", runs, strict=True)])
    settings, facts = settings_of(*runs), facts_of(*runs)
    parts = {
        TITLES[effect]: some
        for effect, some in settings.items()
        if some or effect >= Effect.WEIGHTS
    }
    for title, rows in (parts | {title: some for title, some in facts.items() if some}).items():
        put(f"\n{title}{'' if rows else ': none'}")
        if rows:
            put_rows([("", "A", "B"), *((f"  {one_line(key)}", a, b) for key, a, b in rows)])
    put("")
    findings: list[Finding] = []
    looks: dict[str, Callable[..., list[Finding]]]
    looks = {"ledger": partial(steps, LEDGER), "digests": partial(steps, DIGESTS)}
    for what, look in {**looks, "weights": weights}.items():
        try:
            found = look(*runs)
        except PenstockError as error:
            found = [Finding(what, f"not compared: {error}", False)]
        for one in found:
            put(f"{one.what:<13}{one_line(one.text)}")
        findings += found
    put(f"\n{answer(findings, settings, facts)}")
    known = [one.same for one in findings if one.same is not None]
    if not known:
        raise PenstockError(
            "nothing to compare: the runs have neither both ledgers nor both checkpoints; train "
            "with trainer.ledger=true"
        )
    if not all(known):
        raise PenstockError("the two runs are not the same")


def answer(
    findings: Sequence[Finding],
    settings: Mapping[Effect, Sequence[Row]],
    facts: Mapping[str, Sequence[Row]],
) -> str:
    """What the findings come to, and where to look if no key explains it."""
    same = {one.what: one.same for one in findings}
    rows, batches, model = same.get("samples"), same.get("digests"), same.get("weights")
    batches = False if rows is False else batches
    said = {True: "the same batches", False: "other batches", None: "batches not compared"}[batches]
    if batches is None and (rows or "rows" in same):
        said = "the same samples" if rows else "the same rows"
        said += "; only trainer.digest=true tells whether the batches are the same"
    learned = {True: "the same weights", False: "other weights", None: "weights not compared"}
    text = f"{said}, {learned[model]}"
    explained = [effect for effect, some in settings.items() if some]
    explained += [Effect.BATCHES] if facts["data"] else []
    least = Effect.TRAINING if batches is False else Effect.ROUNDING if model is False else None
    if least is not None and not any(effect >= least for effect in explained):
        looks = [title for title in ("code", "versions", "hardware") if facts[title]]
        places = f"look at {' and '.join(looks)}" if looks else "nothing that was noted differs"
        text += f"\nno key explains it; {places}"
    return text


def settings_of(*runs: RunRecord) -> dict[Effect, list[Row]]:
    """The keys of the configuration that differ, by their effect; but for those of tasks."""
    found: dict[Effect, list[Row]] = {effect: [] for effect in TITLES}
    for row in _differing(*(run.config for run in runs)):
        if row[0].split(".")[0] not in ("run_dir", *TASK_KEYS):
            found[effect_of(row[0])].append(row)
    return found


def facts_of(*runs: RunRecord) -> dict[str, list[Row]]:
    """Further differences between the manifests, by the names of FACTS."""
    facts = [
        {title: {name: run.manifest.get(name) for name in names} for title, names in FACTS.items()}
        for run in runs
    ]
    for of, run in zip(facts, runs, strict=True):
        of["run"]["starts"] = len(run.sessions)
        of["hardware"]["ranks"] = sorted({session.get("world", 1) for session in run.sessions})
    return {title: list(_differing(*(of[title] for of in facts))) for title in FACTS}


def _differing(*values: Mapping[str, Any]) -> Iterator[Row]:
    """Keys with both values, "-" for null or none; of long ones what is around the difference."""
    first, second = ({key: of for key, of in leaves(one) if of not in (None, {})} for one in values)
    for key in {**first, **second}:
        if first.get(key) != second.get(key):
            texts = [one_line(json.dumps(of.get(key, "-"), default=str)) for of in (first, second)]
            pairs = zip(*texts, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            start = max(0, same - 20) if max(map(len, texts)) > _LONGEST else 0
            a, b = (text.strip('"')[start : start + _LONGEST] for text in texts)
            yield key, a, b


def steps(name: str, *runs: RunRecord) -> list[Finding]:
    """Where what a file has of each step first differs, and the steps that one run has alone."""
    missing = [str(run.path) for run in runs if not (run.path / name).exists()]
    if missing and name == LEDGER:
        text = f"{' and '.join(missing)} has none; train with trainer.ledger=true"
        return [Finding("ledger", text, None)]
    kinds = {} if missing else _KINDS[name]
    count, parted, both, alone = dict.fromkeys(kinds, 0), dict[str, str](), 0, [0, 0]
    files = [zip(repeat(at), by_address(run.path / name)) for at, run in enumerate(runs) if kinds]
    merged = merge(*files, key=lambda line: (line[1][0], line[0]))
    shown = watched(merged, None, f"comparing {name}")
    for (epoch, step), lines in groupby(shown, key=lambda line: line[1][0]):
        found = {at: line for at, (_, line) in lines}
        if len(found) == 1:
            alone[min(found)] += 1
            continue
        both += 1
        for what, difference in kinds.items():
            if how := difference(found[0], found[1]):
                count[what] += 1
                parted.setdefault(what, f"first differ at epoch {epoch}, step {step}: {how}")
    findings = []
    data = same_data(*(run.manifest.get("data") for run in runs))
    for what in kinds:
        text = f"the same at {both} steps" if both else "no step in common"
        same: bool | None = not count[what] if both else None
        if count[what]:
            text = f"{parted[what]}; {count[what]} of {both} steps differ"
        elif what == "samples" and both and not data:  # the rows, whatever they hold
            what, same = "rows", None
            why = (
                "other data" if data is False else f"the data is not known to be the same; {ADVICE}"
            )
            text = f"the same rows at {both} steps; {why}"
        findings.append(Finding(what, text, same))
    for own, other, number in zip(runs, reversed(runs), alone, strict=True):
        if number and name == LEDGER:
            skipped = skipped_in(other.path / LEDGER)
            why = f"; {other.path} left out {skipped} (trainer.skip)" if skipped else ""
            findings.append(Finding("steps", f"{number} are in {own.path} only{why}", False))
    return findings


def _samples(a: Any, b: Any) -> str:
    same = (a["order"], a["samples"]) == (b["order"], b["samples"])
    other = f"other samples, or in another order ({a['samples']} and {b['samples']})"
    return "" if same else other


def _losses(a: Any, b: Any) -> str:
    if a["loss"] == b["loss"]:
        return ""
    loss, other = float.fromhex(a["loss"]), float.fromhex(b["loss"])
    unit = float(np.spacing(np.float32(max(abs(loss), abs(other)))))
    return f"{loss!r} and {other!r}, {abs(loss - other) / unit:.3g} ulps of float32 apart"


def _digests(a: Any, b: Any) -> str:
    return "" if a["hash"] == b["hash"] else "the samples have other contents"


_KINDS: dict[str, dict[str, Callable[[Any, Any], str]]] = {
    LEDGER: {"samples": _samples, "losses": _losses},
    DIGESTS: {"digests": _digests},
}


def weights(*runs: RunRecord) -> list[Finding]:
    """How the weights, their running mean and the optimizers of the last checkpoints differ."""
    if missing := [str(run.path) for run in runs if not has_checkpoint(run.path)]:
        return [Finding("weights", f"{' and '.join(missing)} has no checkpoint", None)]
    newest = [find_newest(run.path) for run in runs]
    findings = [
        Finding("checkpoint", f"cannot use {path}: {reason}", None)
        for one in newest
        for path, reason in one.skipped
    ]
    last = [one.state["updates"] for one in newest]
    if last[0] != last[1]:
        text = f"not compared: the last are of optimizer steps {last[0]} and {last[1]}"
        return [*findings, Finding("weights", text, False)]
    for title, part in _PARTS.items():
        a, b = (encode({"": one.state.get(part)})[1] for one in newest)
        if odd := sorted(a.keys() ^ b.keys()):
            text = f"of different models: only one has {odd[0].strip('/')}"
            findings.append(Finding(title, text, False))
        elif a:
            apart = {key: _distance(a[key], b[key]) for key in a}
            worst = max(apart, key=lambda key: apart[key])
            differ = sum(distance > 0 for distance in apart.values())
            text = f"the same bits in {len(a)} tensors"
            if differ:
                text = f"{differ} of {len(a)} tensors differ, {worst.strip('/')} by up to "
                text += f"{apart[worst]:.3g}"
            findings.append(Finding(title, text, not differ))
    return findings


def _distance(a: Tensor, b: Tensor) -> float:
    """The largest difference: 0 for the same bits, infinite for other shapes and NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return math.inf
    if not a.numel() or torch.equal(*(of.reshape(-1).view(torch.uint8) for of in (a, b))):
        return 0.0
    distance = float((a.double() - b.double()).abs().max())
    return math.inf if math.isnan(distance) else max(distance, 5e-324)  # 0 and -0
