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
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from penstock.config.identity import effect_of, leaves
from penstock.config.schema import TASK_KEYS, Config, Effect
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.runs import checkpoint
from penstock.runs.folder import same_data
from penstock.runs.run import Run
from penstock.tasks.summary import put_rows
from penstock.terminal import one_line, put

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
    "hardware": ("device", "platform", "cpus", "threads", "gpus", "ranks"),
}
_PARTS = {"weights": "model", "mean weights": "averaged", "optimizer": "optimizer"}  # of a state

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
    if len(config.runs or ()) != 2:
        raise ConfigError(
            Problem("runs", "needs the folders of two runs: runs=[outputs/a,outputs/b]")
        )
    runs = [Run(path, "runs") for path in config.runs or ()]
    put_rows([(name, one_line(of.path), of.state) for name, of in zip("AB", runs, strict=True)])
    # Of what changes weights or batches, it is said that no key differs.
    tables = {
        TITLES[effect]: rows
        for effect, rows in settings_of(*runs).items()
        if rows or effect >= Effect.WEIGHTS
    }
    for title, rows in (tables | facts_of(*runs)).items():
        put(f"\n{title}{'' if rows else ': none'}")
        if rows:
            put_rows([("", "A", "B"), *((f"  {one_line(key)}", a, b) for key, a, b in rows)])
    put("")
    same = dict[str, bool | None]()
    for what, look in {"ledger": _ledgers, "digests": _digests, "weights": _weights}.items():
        try:
            found = list(look(*runs))
        except PenstockError as error:
            is_missing = isinstance(error, checkpoint.NoCheckpointError)
            found = [Finding(what, f"not compared: {error}", None if is_missing else False)]
        for finding in found:
            put(f"{finding.what:<13}{one_line(finding.text)}")
            same[finding.what] = finding.same
    words = {True: "the same {}", False: "other {}", None: "{} not compared"}
    batches = False if same.get("samples") is False else same.get("digests")
    put(f"\n{words[batches].format('batches')}, {words[same.get('weights')].format('weights')}")
    if set(same.values()) == {None}:
        raise PenstockError("nothing to compare: train with trainer.ledger=true")
    if False in same.values():
        raise PenstockError("the two runs are not the same")


def settings_of(*runs: Run) -> dict[Effect, list[Row]]:
    """The keys of the configuration that differ, by their effect; but for those of tasks."""
    rows = [
        row
        for row in _differing(*(run.config for run in runs))
        if row[0].split(".")[0] not in ("run_dir", *TASK_KEYS)
    ]
    return {effect: [row for row in rows if effect_of(row[0]) == effect] for effect in TITLES}


def facts_of(*runs: Run) -> dict[str, list[Row]]:
    """Further differences between the manifests, by the names of FACTS; none without any."""
    facts = [
        {**run.manifest, "ranks": sorted({one.get("world", 1) for one in run.sessions})}
        for run in runs
    ]
    return {
        title: rows
        for title, names in FACTS.items()
        if (rows := list(_differing(*({name: of.get(name) for name in names} for of in facts))))
    }


def _differing(*values: Mapping[str, Any]) -> Iterator[Row]:
    """Keys with both values, "-" for null or none."""
    first, second = ({key: of for key, of in leaves(one) if of not in (None, {})} for one in values)
    for key in {**first, **second}:
        if first.get(key) != second.get(key):
            a, b = (json.dumps(of.get(key, "-"), default=str) for of in (first, second))
            yield key, one_line(a).strip('"')[:200], one_line(b).strip('"')[:200]


def _ledgers(first: Run, second: Run) -> Iterator[Finding]:
    """Where samples and losses first differ, and the steps that one run has alone."""
    if first.ledger is None or second.ledger is None:
        yield Finding("ledger", "not in both runs; train with trainer.ledger=true", None)
        return
    both = first.ledger.merge(second.ledger, on=["epoch", "step"], suffixes=("", "_b"))
    finding = _first(
        "samples",
        both,
        (both["order"] != both["order_b"]) | (both["samples"] != both["samples_b"]),
        lambda row: "other samples, or in another order",
    )
    data = same_data(first.manifest.get("data", {}), second.manifest.get("data", {}))
    if finding.same and not data:  # rows have the same numbers, whatever they hold
        why = {
            False: "other data",
            None: "only a dataset with a `fingerprint` tells whether the data is the same",
        }
        finding = Finding("rows", f"the same rows at {len(both)} steps; {why[data]}", None)
    yield finding
    # By their bits: NaN is the same as NaN.
    bits, others = (both[name].to_numpy().view("int64") for name in ("loss", "loss_b"))
    yield _first("losses", both, pd.Series(bits != others), "{0.loss!r} and {0.loss_b!r}".format)
    for run, ledger in ((first, first.ledger), (second, second.ledger)):
        if alone := len(ledger) - len(both):
            yield Finding("steps", f"{alone} are in {run.path} only", False)


def _digests(first: Run, second: Run) -> Iterator[Finding]:
    if not first.digests.empty and not second.digests.empty:
        both = first.digests.merge(second.digests, on=["epoch", "step"], suffixes=("", "_b"))
        yield _first("digests", both, both["hash"] != both["hash_b"], lambda row: "other contents")


def _first(
    what: str, both: pd.DataFrame, other: pd.Series[bool], how: Callable[[Any], str]
) -> Finding:
    """The first of the common steps at which something is `other`, and how."""
    if both.empty:
        return Finding(what, "no step in common", None)
    if not other.any():
        return Finding(what, f"the same at {len(both)} steps", True)
    row = next(both[other].itertuples())
    return Finding(
        what,
        f"first differ at epoch {row.epoch}, step {row.step}: {how(row)}; "
        f"{other.sum()} of {len(both)} steps differ",
        False,
    )


def _weights(first: Run, second: Run) -> Iterator[Finding]:
    """How the weights, their running mean and the optimizers of the last checkpoints differ."""
    newest = [checkpoint.find_newest(run.path) for run in (first, second)]
    for path, reason in (skipped for one in newest for skipped in one.skipped):
        yield Finding("checkpoint", f"cannot use {path}: {reason}", None)
    steps = [one.state["updates"] for one in newest]
    if steps[0] != steps[1]:
        raise PenstockError(f"the last checkpoints are of optimizer steps {steps}")
    for title, part in _PARTS.items():
        a, b = (checkpoint.encode(one.state.get(part) or {})[1] for one in newest)
        apart = {name: _distance(a.get(name), b.get(name)) for name in sorted({*a, *b})}
        if other := [name for name, distance in apart.items() if distance]:
            distance, worst = max((apart[name], name) for name in other)
            yield Finding(
                title,
                f"{len(other)} of {len(apart)} tensors differ, {worst} by up to {distance:.3g}",
                False,
            )
        elif apart:
            yield Finding(title, f"the same bits in {len(apart)} tensors", True)


def _distance(a: Tensor | None, b: Tensor | None) -> float:
    """The largest difference: 0 for the same bits, infinite for NaN, other shapes and no tensor."""
    if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape:
        return torch.inf
    if not a.numel() or torch.equal(*(of.reshape(-1).view(torch.uint8) for of in (a, b))):
        return 0.0
    # At least a little: 0 and -0 have other bits.
    return max(float((a.double() - b.double()).abs().max().nan_to_num(torch.inf)), 5e-324)
