"""Timelines of the training loop and its workers: numbers, a picture, a trace.

`draw` puts timelines side by side, a row for the training loop and one for each worker, on one
scale of seconds. `write_trace` writes the Chrome trace format, for ui.perfetto.dev.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.addons.reports.figures import drawing
from penstock.addons.reports.pictures import INK, new_figure, save
from penstock.loading.stage_timer import StageTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID = "#e4e7eb"
COLORS = {
    "training": "#2a9d5c",
    "waiting": "#f4a259",
    "transfer": "#8e6bbf",
    "read": "#1d4e89",
    "transform": "#3f88c5",
    "collate": "#8fc1e3",
    "batch": "#c4def0",
}
OTHER = "#7a8794"
CONSUMER = "training loop"
MOST_ROWS = 16

Span = tuple[str, float, float]  # what, begin, end


@dataclass
class StepTiming:
    """The times of one batch in the training loop, in seconds."""

    epoch: int
    step: int
    samples: int
    asked: float  # when it was requested, received and trained on
    came: float
    done: float
    stages: Mapping[str, float]  # time by stage
    trace: StageTrace | None  # of the work on it
    delayed: float = 0.0  # of the wait after it came, in which other programs had the core
    starved: float = 0.0  # of the training in which other programs had the core

    @property
    def waited(self) -> float:
        """Seconds of waiting for the batch."""
        return max(self.came - self.asked - self.delayed, 0.0)

    @property
    def spans(self) -> list[Span]:
        """The phases of the training loop."""
        moved = self.came - self.stages.get("transfer", 0.0)
        spans = [
            ("waiting", self.asked, moved),
            ("transfer", moved, self.came),
            ("training", self.came, self.done),
        ]
        return [span for span in spans if span[2] > span[1]]


@dataclass
class Timeline:
    """Consecutive steps with a loader; 0 workers: the training loop makes batches itself."""

    title: str
    workers: int
    steps: list[StepTiming] = field(default_factory=list)

    @property
    def begin(self) -> float:
        return self.steps[0].asked

    @property
    def first(self) -> float:
        """Seconds to the first batch."""
        return self.steps[0].came - self.begin

    @property
    def steady(self) -> float:
        """Seconds from the first batch on, including the first step's training."""
        return self.steps[-1].done - self.steps[0].came

    @property
    def pace(self) -> float:
        """Seconds per step once batches come."""
        return self.steady / len(self.steps)

    @property
    def samples_per_second(self) -> float:
        return sum(step.samples for step in self.steps) / max(self.steady, 1e-9)

    @property
    def waited(self) -> float:
        """Share of the steady time in which the training loop waited."""
        return sum(step.waited for step in self.steps[1:]) / max(self.steady, 1e-9)

    @property
    def waited_at_starts(self) -> float:
        """The part of `waited` for the first batches of epochs."""
        starts = (step.waited for step in self.steps[1:] if step.step == 0)
        return sum(starts) / max(self.steady, 1e-9)

    @property
    def training(self) -> float:
        """Seconds of training per step."""
        return sum(step.done - step.came for step in self.steps) / len(self.steps)

    @property
    def starved(self) -> float:
        """Seconds per step in which the training loop could run, but had no core."""
        return sum(step.starved + step.delayed for step in self.steps) / len(self.steps)

    def per_step(self) -> dict[str, float]:
        """Seconds of work per step, by stage."""
        return self._mean_of(step.stages for step in self.steps)

    def computing(self) -> dict[str, float]:
        """Seconds on a core per step, by stage."""
        return self._mean_of(trace.computing for trace in self._traces())

    def _mean_of(self, times: Iterable[Mapping[str, float]]) -> dict[str, float]:
        totals: dict[str, float] = {}
        for one in times:
            for stage, seconds in one.items():
                totals[stage] = totals.get(stage, 0.0) + seconds
        return {stage: seconds / len(self.steps) for stage, seconds in totals.items()}

    def blocked(self) -> float:
        """Seconds per step in which the making of batches waited, but not for a core."""
        return sum(trace.blocked for trace in self._traces()) / len(self.steps)

    def busy(self) -> float:
        """Share of the steady time in which a worker had a batch to work on, on average."""
        begin, end = self.steps[0].came, self.steps[-1].came
        spent = sum(max(min(t.end, end) - max(t.begin, begin), 0.0) for t in self._traces())
        return spent / max((end - begin) * max(self.workers, 1), 1e-9)

    def unevenness(self) -> float:
        """Time of the slowest tenth of the batches, in medians."""
        spans = sorted(trace.end - trace.begin for trace in self._traces())
        if not spans:
            return 1.0
        return spans[int(0.9 * (len(spans) - 1))] / max(spans[len(spans) // 2], 1e-9)

    def executors(self) -> dict[tuple[int, int], list[tuple[StepTiming, StageTrace]]]:
        """Steps and their traces by process and thread, in the order of their first batch."""
        found: dict[tuple[int, int], list[tuple[StepTiming, StageTrace]]] = {}
        traced = [(step, step.trace) for step in self.steps if step.trace is not None]
        for step, trace in sorted(traced, key=lambda one: one[1].begin):
            found.setdefault((trace.process, trace.thread), []).append((step, trace))
        return found

    def _traces(self) -> Iterator[StageTrace]:
        return (step.trace for step in self.steps if step.trace is not None)


def write_trace(timelines: Sequence[Timeline], path: Path) -> Path:
    """Write timelines as a Chrome trace: a process for each, a thread for each of its rows."""
    events = [event for number, one in enumerate(timelines, 1) for event in _events(one, number)]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return path


def _events(timeline: Timeline, process: int) -> Iterator[dict[str, Any]]:
    def event(row: int, name: str, begin: float, end: float, kind: str, **more: Any) -> Any:
        return {
            "ph": "X",
            "pid": process,
            "tid": row,
            "name": name,
            "cat": kind,
            "args": more,
            "ts": round((begin - timeline.begin) * 1e6, 3),
            "dur": round((end - begin) * 1e6, 3),
        }

    yield _name("process_name", process, 0, timeline.title)
    yield _name("thread_name", process, 0, CONSUMER)
    for step in timeline.steps:
        for kind, begin, end in step.spans:
            yield event(0, kind, begin, end, kind, epoch=step.epoch, step=step.step)
    for row, ((pid, thread), steps) in enumerate(timeline.executors().items(), 1):
        yield _name("thread_name", process, row, f"worker {row} (process {pid}, thread {thread})")
        for step, trace in steps:
            name = f"batch {step.epoch}:{step.step}"
            yield event(
                row,
                name,
                trace.begin,
                trace.end,
                "batch",
                epoch=step.epoch,
                step=step.step,
                samples=step.samples,
            )
            for stage, begin, end in trace.laps:
                yield event(row, stage, begin, end, "loading")


def _name(kind: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": row, "name": kind, "args": {"name": name}}


@drawing()
def draw(timelines: Sequence[Timeline], path: Path, heading: str) -> Path:
    """Draw timelines side by side, up to the end of the shortest."""
    from matplotlib.patches import Patch

    rows = max(min(len(one.executors()), MOST_ROWS) + 1 for one in timelines)
    figure = new_figure(7.2 * len(timelines), 1.45 + 0.46 * rows)
    length = 1.02 * min(one.steps[-1].done - one.begin for one in timelines)
    for place, timeline in enumerate(timelines, start=1):
        axes = figure.add_subplot(1, len(timelines), place)
        _draw_rows(axes, timeline, length, rows)
    shown = {kind for one in timelines for step in one.steps for kind, _, _ in step.spans}
    shown |= {stage for one in timelines for step in one.steps for stage in step.stages}
    names = {"read": "loading: read", "batch": "batch transform"}
    handles = [
        Patch(color=color, label=names.get(kind, kind))
        for kind, color in COLORS.items()
        if kind in shown
    ]
    figure.legend(
        handles=handles,
        loc="upper right",
        ncols=len(handles),
        frameon=False,
        fontsize=9,
        handlelength=1.1,
        columnspacing=1.2,
        borderpad=0.2,
        bbox_to_anchor=(0.995, 0.998),
    )
    figure.text(0.008, 0.985, heading, fontsize=12, fontweight="bold", color=INK, va="top")
    height = figure.get_figheight()
    figure.subplots_adjust(
        left=0.085 * 2 / len(timelines),
        right=0.99,
        top=1 - 0.78 / height,
        bottom=0.52 / height,
        wspace=0.2,
    )
    return save(figure, path)


def _draw_rows(axes: Axes, timeline: Timeline, length: float, rows: int) -> None:
    _draw_row(axes, 0, [span for step in timeline.steps for span in step.spans], timeline, length)
    names = [CONSUMER]
    for row, steps in enumerate(list(timeline.executors().values())[:MOST_ROWS], start=1):
        _draw_row(axes, row, [span for one in steps for span in _stages(*one)], timeline, length)
        _draw_numbers(axes, row, steps, timeline, length)
        names.append(f"worker {row}" if timeline.workers else "loading")
    more = len(timeline.executors()) - MOST_ROWS
    note = f"; {more} more workers are not shown" if more > 0 else ""
    axes.set_title(
        f"{timeline.title}: {timeline.samples_per_second:,.0f} samples/s, "
        f"waiting {timeline.waited:.0%} of the time{note}",
        loc="left",
        fontsize=10,
        color=INK,
    )
    for start in (step.asked - timeline.begin for step in timeline.steps if step.step == 0):
        if 0 < start < length:
            axes.axvline(start, color=INK, linewidth=0.7, linestyle=(0, (2, 2)))
    axes.set_yticks(range(len(names)), names, fontsize=9, color=INK)
    axes.set_ylim(rows - 0.45, -0.55)
    axes.set_xlim(0, length)
    axes.set_xlabel(
        "seconds since the first batch was asked for; dashed: an epoch begins",
        fontsize=9,
        color=INK,
    )
    axes.tick_params(length=0, labelsize=9, colors=INK)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _stages(step: StepTiming, trace: StageTrace) -> Iterator[Span]:
    """The stages of a batch, each in one piece: those of its samples are too short to draw."""
    begin = trace.begin
    for stage, seconds in step.stages.items():
        if stage != "transfer":
            yield stage, begin, begin + seconds
            begin += seconds


def _draw_row(
    axes: Axes, row: int, spans: Sequence[Span], timeline: Timeline, length: float
) -> None:
    kinds: dict[str, list[tuple[float, float]]] = {}
    for kind, begin, end in spans:
        start = begin - timeline.begin
        if start < length:
            kinds.setdefault(kind, []).append((start, end - begin))
    for kind, bars in kinds.items():
        color = COLORS.get(kind, OTHER)
        axes.broken_barh(bars, (row - 0.36, 0.72), facecolors=color, edgecolor="none")


def _draw_numbers(
    axes: Axes,
    row: int,
    steps: Sequence[tuple[StepTiming, StageTrace]],
    timeline: Timeline,
    length: float,
) -> None:
    """Outline each batch, and number it if there is room."""
    for step, trace in steps:
        start, span = trace.begin - timeline.begin, trace.end - trace.begin
        if start >= length:
            break
        axes.broken_barh(
            [(start, span)], (row - 0.36, 0.72), facecolors="none", edgecolor="white", linewidth=0.8
        )
        if span > 0.03 * length and start + span < length:
            axes.text(
                start + span / 2,
                row,
                str(step.step),
                ha="center",
                va="center",
                fontsize=7.5,
                color="white",
                fontweight="bold",
            )
