"""Timelines of the training loop and its workers, as numbers and as a trace for ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.loading.stage_timer import StageTrace

CONSUMER = "training loop"

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
        return self._mean_of([step.stages for step in self.steps])

    def computing(self) -> dict[str, float]:
        """Seconds on a core per step, by stage."""
        return self._mean_of([trace.computing for trace in self._traces()])

    def _mean_of(self, times: Sequence[Mapping[str, float]]) -> dict[str, float]:
        stages = dict.fromkeys(stage for spent in times for stage in spent)
        count = len(self.steps)
        return {stage: sum(spent.get(stage, 0.0) for spent in times) / count for stage in stages}

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

    def _traces(self) -> Iterator[StageTrace]:
        return (step.trace for step in self.steps if step.trace is not None)


def write_trace(timelines: Sequence[Timeline], path: Path) -> Path:
    """Write timelines as a Chrome trace: a process for each, a thread for each of its rows."""
    events = [event for number, line in enumerate(timelines, 1) for event in _events(line, number)]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return path


def _events(timeline: Timeline, process: int) -> Iterator[dict[str, object]]:
    """The training loop in row 0, then a row for each thread that makes batches."""
    rows: dict[tuple[int, int], int] = {}
    spans = [
        (0, kind, kind, begin, end, {"epoch": step.epoch, "step": step.step})
        for step in timeline.steps
        for kind, begin, end in step.spans
    ]
    traced = [(step, step.trace) for step in timeline.steps if step.trace is not None]
    for step, trace in sorted(traced, key=lambda pair: pair[1].begin):
        row = rows.setdefault((trace.process, trace.thread), len(rows) + 1)
        about = {"epoch": step.epoch, "step": step.step, "samples": step.samples}
        name = f"batch {step.epoch}:{step.step}"
        spans.append((row, name, "batch", trace.begin, trace.end, about))
        spans += [(row, stage, "loading", begin, end, {}) for stage, begin, end in trace.laps]
    names = {0: CONSUMER} | {
        row: f"worker {row} (process {pid}, thread {thread})" for (pid, thread), row in rows.items()
    }
    titles = [("process_name", 0, timeline.title)]
    for kind, row, name in [*titles, *(("thread_name", row, text) for row, text in names.items())]:
        yield {"ph": "M", "pid": process, "tid": row, "name": kind, "args": {"name": name}}
    for row, name, kind, begin, end, about in spans:
        yield {
            "ph": "X",
            "pid": process,
            "tid": row,
            "name": name,
            "cat": kind,
            "args": about,
            "ts": round((begin - timeline.begin) * 1e6, 3),
            "dur": round((end - begin) * 1e6, 3),
        }
