"""The steps of highest loss, from the ledger: where a run met something unusual."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from penstock.addons.reports import page
from penstock.addons.reports.figures import numeral
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import replay
from penstock.files import plain_json
from penstock.files.disk import write_atomically
from penstock.files.plain_json import JsonError, integer, mapping
from penstock.runs.record import Ledger, RunRecord

ROWS = "report/spikes.json"  # of a run's folder

_MOST = 8
_MOST_ROWS, _LONGEST = 256, 60
_LARGEST = 1 << 20  # bytes
_LONG = 50_000  # steps from which on an exact median around each would take too long
_AROUND = 25  # steps on each side that a step is compared with


@dataclass(frozen=True)
class Spike:
    """A step whose loss stands out; `times` the median of the steps around it."""

    epoch: int
    step: int
    loss: float
    times: float
    samples: int


def find(ledger: Ledger, most: int = _MOST) -> list[Spike]:
    """The steps with the highest loss for their place in the run, the highest first.

    A loss is compared with the median of the steps around it: losses fall, so the highest of all
    would always be the first ones. Cost: 50 ms for 10,000 steps, 0.3 s for 10^6.
    """
    loss = ledger.loss
    if len(loss) < 3:
        return []
    usual = _usual(loss)
    spread = np.maximum(np.abs(usual), 1e-12)
    times = loss / spread
    order = np.argsort(-times, kind="stable")[:most]
    return [
        Spike(
            int(ledger.epoch[i]),
            int(ledger.step[i]),
            float(loss[i]),
            float(times[i]),
            int(ledger.samples[i]),
        )
        for i in order
        if np.isfinite(times[i]) and times[i] > 1
    ]


def _usual(loss: np.ndarray) -> np.ndarray:
    """The median around each step; in a long run that of the block which the step is in."""
    count, width = len(loss), 2 * _AROUND + 1
    if count > _LONG:
        whole = loss[: count - count % width].reshape(-1, width)
        medians = np.median(whole, axis=1)
        return np.append(np.repeat(medians, width), np.full(count % width, medians[-1]))
    usual = np.empty_like(loss)
    if count >= width:
        windows = np.lib.stride_tricks.sliding_window_view(loss, width)
        usual[_AROUND : count - _AROUND] = np.median(windows, axis=1)
    for i in [*range(min(_AROUND, count)), *range(max(_AROUND, count - _AROUND), count)]:
        reach = min(i, count - 1 - i, _AROUND)  # as far on both sides, or a falling loss misleads
        usual[i] = np.median(loss[i - reach : i + reach + 1])
    return usual


def keep_rows(run: RunRecord, rows_of: Callable[[int, int], np.ndarray]) -> None:
    """Write the rows of the spikes' batches into the run's folder, where the report finds them.

    Only the program that has the sampler can know them. Stops after half a second, as a sampler may
    have to shuffle an epoch for each.

    Args:
        rows_of: the rows of the global batch (epoch, step).
    """
    if run.ledger is None:
        return
    until, spikes = time.monotonic() + 0.5, []
    for spike in find(run.ledger):
        rows = rows_of(spike.epoch, spike.step)[:_MOST_ROWS].tolist()
        spikes.append({"epoch": spike.epoch, "step": spike.step, "rows": rows})
        if time.monotonic() > until:
            break
    if spikes:
        path = run.path / ROWS
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, json.dumps({"version": 1, "spikes": spikes}).encode())


def kept_rows(run: RunRecord) -> dict[tuple[int, int], str]:
    """Rows by address, as text; of a file that anybody may have written."""
    try:
        spikes = mapping(plain_json.read(run.path / ROWS, _LARGEST)).get("spikes")
        return {
            (integer(spike, "epoch"), integer(spike, "step")): _text(spike["rows"])
            for spike in map(mapping, spikes if isinstance(spikes, list) else [])
        }
    except (OSError, JsonError, KeyError):
        return {}


def _text(rows: object) -> str:
    numbers = [str(row) for row in rows if isinstance(row, int)] if isinstance(rows, list) else []
    shown = textwrap.shorten(", ".join(numbers), _LONGEST, placeholder=" ...")
    return shown.replace(", ...", " ...")


def section(run: RunRecord) -> Section | None:
    """A table of spikes with the commands that make their batches again."""
    trainer = run.config.get("trainer")
    if run.ledger is None and isinstance(trainer, dict) and trainer.get("ledger"):
        return None  # it ended before its first step was through
    if run.ledger is None:
        text = (
            "The run wrote no ledger; with trainer.ledger=true, the steps of highest loss are here."
        )
        return Section("Spikes", page.paragraph(text))
    spikes = find(run.ledger)
    if not spikes:
        return None
    kept = kept_rows(run)
    rows = [
        (
            f"epoch {spike.epoch}, step {spike.step}",
            numeral(spike.loss),
            f"{spike.times:.2f}",
            spike.samples,
            kept.get((spike.epoch, spike.step), "task=replay tells"),
        )
        for spike in spikes
    ]
    made = ((spike, replay(run, spike.epoch, spike.step)) for spike in spikes)
    lines = [
        page.command(line, f"Epoch {spike.epoch}, step {spike.step}:")
        for spike, line in made
        if line
    ]
    return Section(
        "Spikes",
        page.together(
            page.table(
                f"Steps whose loss is highest, in medians of the {2 * _AROUND} steps around",
                ("address", "loss", "times the median", "samples", "rows"),
                rows,
                (1, 2, 3),
            ),
            *lines[:1],
            page.folded("Commands for the others", page.together(*lines[1:]))
            if lines[1:]
            else None,
        ),
    )
