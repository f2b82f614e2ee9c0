"""The last checkpoints of two runs, bit by bit. Imports torch, which takes 1 s."""

from __future__ import annotations

import math

import torch

from penstock.addons.comparing.comparison import Finding
from penstock.runs.checkpoint import find_newest, has_checkpoint
from penstock.runs.record import RunRecord
from penstock.runs.run_state import encode
from penstock.terminal import watched

# Parts of a state, by their names for people.
_PARTS = {"weights": "model", "mean weights": "averaged", "optimizer": "optimizer"}


def compare_weights(first: RunRecord, second: RunRecord) -> list[Finding]:
    """How the weights, their running mean and the optimizers of the last checkpoints differ.

    Raises:
        CheckpointError: none of a run's checkpoints can be used.
    """
    missing = [str(run.path) for run in (first, second) if not has_checkpoint(run.path)]
    if missing:
        return [Finding("weights", f"{' and '.join(missing)} has no checkpoint", None)]
    states, findings = [], []
    for run in (first, second):
        newest = find_newest(run.path)
        findings += [
            Finding("weights", f"cannot use {path}: {reason}", None)
            for path, reason in newest.skipped
        ]
        states.append(newest.state)
    steps = [state.get("updates") for state in states]
    if steps[0] != steps[1]:
        text = f"not compared: the last are of optimizer steps {steps[0]} and {steps[1]}"
        return [*findings, Finding("weights", text, False)]
    for title, name in _PARTS.items():
        if any(name in state for state in states) or name != "averaged":
            findings.append(_compared(title, *(state.get(name) for state in states)))
    return findings


def _compared(title: str, first: object, second: object) -> Finding:
    a, b = (encode({"": part})[1] for part in (first, second))
    odd = sorted(a.keys() ^ b.keys())
    if odd:
        return Finding(title, f"of different models: only one has {odd[0].strip('/')}", False)
    keys = watched(a, len(a), f"comparing {title}")
    apart = {key: _distance(a[key], b[key]) for key in keys if not _same_bits(a[key], b[key])}
    if apart:
        worst = max(apart, key=lambda key: apart[key])
        text = f"{len(apart)} of {len(a)} tensors differ, {worst.strip('/')} by up to "
        return Finding(title, f"{text}{apart[worst]:.3g}", False)
    return Finding(title, f"the same bits in {len(a)} tensors", True)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b)]
    return not a.numel() or torch.equal(*flat)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference; infinite for other shapes and NaN."""
    if a.shape != b.shape:
        return math.inf
    distance = float((a.double() - b.double()).abs().max())
    return math.inf if math.isnan(distance) else distance
