"""The protocol of a tracker, and the observer that tells trackers of a fit.

Trackers that can fail, hang or be slow without harm: they cost a warning, never the run. Each is
made and called in a thread of its own, in order, through a queue. A call costs training 5 us. The
wait for the threads at the end of the run is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from penstock.config.hydra import is_job
from penstock.config.targets import make
from penstock.runs.only_shown import reason
from penstock.terminal import say
from penstock.training.loop import Observer, Record

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit

FILES = ("config.yaml", "manifest.json", "report.html", "predictions.jpg")
END_SECONDS = {"done": 30.0, "failed": 30.0}  # for what is left to be sent
STOPPED_SECONDS = 10.0  # the same for a run that was asked to stop


@dataclass(frozen=True)
class TrackedRun:
    """The facts of a run that a tracker gets.

    Attributes:
        id: that of the run's first start: 16 hexadecimal digits.
        name: the last two parts of the folder, e.g. 2026-11-22/07-31-11.
        folder: of the run.
        config: plain values without secrets, as in config.yaml.
        manifest: as in manifest.json, at the start of this session.
        sweep: the folder of the sweep that the run is a job of.
        resumed: optimizer steps at which this session continues the run; None for a new run.
    """

    id: str
    name: str
    folder: Path
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    sweep: Path | None = None
    resumed: int | None = None


class Tracker:
    """Base class of our trackers, which says what a tracker may have; one of your own needs none.

    It is made with the arguments of its node, and with `folder` (its own) and `run` (a
    `TrackedRun`) if it takes these. A method that it lacks is not called, and all may raise.

    log(metrics, step)  take numbers by name; `step` counts optimizer steps
    file(path)          take a file of the run, at its end
    close(status)       called last: "done", "failed", "preempted" ...
    """


def points(event: str, record: Mapping[str, Any]) -> dict[str, float]:
    """A record of the fit under names that have one value a step, none of them a folder of another.

    The mean of an epoch is another curve than those of the logs inside of it: epoch/train/loss.
    """
    if event == "log":
        record = {**record, "train/epoch": record["epoch"]}
    return {
        name if event == "log" or name.startswith("val/") else f"epoch/{name}": value
        for name, value in record.items()
        if name not in ("event", "step", "epoch")
    }


def observers(fit: Fit) -> list[Observer]:
    """The observer that sends everything to the trackers of the configuration."""
    folder, state, section = fit.folder.path, fit.opened.state, fit.config.tracker
    run = TrackedRun(
        fit.folder.manifest["sessions"][0]["id"],
        "/".join(folder.absolute().parts[-2:]),
        folder,
        fit.config.model_dump(),
        dict(fit.folder.manifest),
        folder.parent if is_job() else None,
        None if state is None else int(state["updates"]),
    )
    nodes = (
        {"tracker": section}
        if "_target_" in section
        else {f"tracker.{name}": node for name, node in section.items() if node is not None}
    )
    supply = {key: {"folder": folder.joinpath(*key.split(".")), "run": run} for key in nodes}
    return [Tracked(key, partial(make, nodes[key], key, supply[key]), folder) for key in nodes]


class Tracked(Observer):
    """Sends every record, and at the end the run's files, to a tracker.

    Args:
        key: of its node, for the warning.
        make: its constructor, which is called in a thread as well: it may wait for a server.
        folder: of the run.
    """

    def __init__(self, key: str, make: Callable[[], Any], folder: Path) -> None:
        self.key, self.folder, self._make, self._warned = key, folder, make, False
        self._calls: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        # A daemon: a tracker that hangs must not keep the process.
        self._thread = Thread(target=self._work, name=key, daemon=True)
        self._thread.start()

    def on_log(self, record: Record) -> None:
        self._calls.put(("log", points("log", record), int(record["step"])))

    def on_epoch_end(self, record: Record) -> None:
        self._calls.put(("log", points("epoch", record), int(record["step"])))

    def on_close(self, status: str) -> None:
        for path in (self.folder / name for name in FILES):
            if path.is_file():
                self._calls.put(("file", path))
        self._calls.put(("close", status))
        self._thread.join(END_SECONDS.get(status, STOPPED_SECONDS))
        if self._thread.is_alive():
            self._warn("it did not end in time")

    def _warn(self, why: str) -> None:
        if not self._warned:
            say(
                f"WARNING: {self.key}: {why}. The run continues without it; its numbers are in "
                "metrics.jsonl"
            )
        self._warned = True

    def _work(self) -> None:
        tracker, name = None, ""
        while name != "close":
            name, *arguments = self._calls.get()
            try:
                tracker = tracker or self._make()  # a server that was down may be there now
                getattr(tracker, name, lambda *arguments: None)(*arguments)
            except BaseException as error:
                self._warn(reason(error))
