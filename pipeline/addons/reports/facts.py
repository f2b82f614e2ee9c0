"""RUN/report/facts.json, which `samples.py` writes: what only a run's process knew. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAME = "report/facts.json"  # of a run's folder
MADE = "made by the model"  # the group of pictures that are no row's

Sample = dict[str, Any]  # row, path, truth, predicted, wrong, words, uri, group, loss


def read(folder: Path) -> dict[str, Any] | None:
    """The facts of the run in `folder`; None if it wrote none."""
    path = folder / NAME
    return json.loads(path.read_bytes()) if path.exists() else None


def lines_of(sample: Sample) -> list[str]:
    """A sample's caption: what was predicted, the truth if it differs, the loss, and its row."""
    truth: str = sample.get("truth", "")
    guess: str = sample.get("predicted", "")
    lines = [guess or truth] if guess or truth else []
    if guess and truth and guess != truth:
        wrong = sample.get("wrong")
        lines += [] if wrong is False else [f"{'not' if wrong else 'true'} {truth}"]
    if sample.get("loss") is not None:
        lines.append(f"loss {sample['loss']:.3g}")
    if sample.get("group") != MADE:
        lines.append(f"row {sample['row']}" + (f", {sample['words']}" if sample["words"] else ""))
    return lines
