"""The observer that tells trackers of a fit.

Trackers that can fail, hang or be slow without harm: they cost a warning, never the run. Each is
called in a thread of its own, in order, through a queue. A call costs training 5 us. The wait for
the threads at the end of the run is bounded.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig

from penstock.addons.trackers.tracker import TrackedRun, Tracker, points
from penstock.config.hydra import is_job
from penstock.config.targets import make
from penstock.errors import ConfigError
from penstock.runs.only_shown import reason
from penstock.runs.run_folder import Status
from penstock.terminal import say
from penstock.training.observer import Observer, Record

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit

_FILES = ("config.yaml", "manifest.json", "report.html")
END_SECONDS = {"done": 30.0, "failed": 30.0}  # for what is left to be sent
STOPPED_SECONDS = 10.0  # the same for a run that was asked to stop
MOST_WAITING = 10_000  # calls


def observers(fit: Fit) -> list[Observer]:
    """The observer that sends everything to the trackers of the configuration.

    Raises:
        ConfigError: one refuses its arguments.
    """
    folder, state = fit.folder, fit.opened.state
    run = TrackedRun(
        folder.path,
        fit.config.model_dump(),
        dict(folder.manifest),
        Path(HydraConfig.get().sweep.dir) if is_job() else None,
        None if state is None else int(state["updates"]),
    )
    return [Tracked(start(fit.config.tracker, folder.path / "tracker", run), fit)]


def start(section: Any, folder: Path, run: TrackedRun) -> list[Guarded]:
    """The trackers of the section `tracker`, started; each writes into `folder` / its name.

    One that is the whole of `tracker`, and has no name, writes into `folder`. This module supplies
    arguments that a tracker takes by name and its node leaves out: `folder`, `run`.

    Raises:
        ConfigError: one refuses its arguments.
    """
    if "_target_" in section:
        nodes, folders = {"tracker": section}, {"tracker": folder}
    else:
        nodes = {f"tracker.{name}": node for name, node in section.items() if node is not None}
        folders = {f"tracker.{name}": folder / name for name in section}

    def maker(key: str) -> Callable[[], Any]:
        return lambda: make(nodes[key], key, {"folder": folders[key], "run": run})

    return [Guarded(key, maker(key)) for key in nodes]


class Tracked(Observer):
    """Sends every record, the pictures and the run's files to the trackers."""

    def __init__(self, trackers: Sequence[Guarded], fit: Fit) -> None:
        self.trackers, self.fit = trackers, fit

    def on_log(self, record: Record) -> None:
        self._call("log", points("log", record), int(record["step"]))

    def on_epoch_end(self, record: Record) -> None:
        self._call("log", points("epoch", record), int(record["step"]))

    def on_file(self, name: str, path: Path) -> None:
        if path.suffix == ".png":
            self._call("picture", name, path, int(self.fit.result.history[-1]["step"]))

    def on_close(self, status: Status) -> None:
        for path in (self.fit.folder.path / name for name in _FILES):
            if path.is_file():
                self._call("file", path)
        self._call("close", status)
        deadline = time.monotonic() + END_SECONDS.get(status, STOPPED_SECONDS)
        for tracker in self.trackers:
            tracker.wait(deadline - time.monotonic())

    def _call(self, name: str, *arguments: Any) -> None:
        for tracker in self.trackers:
            tracker.call(name, *arguments)


class Guarded:
    """A tracker, whose methods are called in a thread of its own.

    Args:
        key: of its node, for the warning.
        make: its constructor, called at once: threads that import while loaders fork could leave
            locks behind in their workers.

    Raises:
        ConfigError: by `make`; anything else costs the warning.
    """

    def __init__(self, key: str, make: Callable[[], Any]) -> None:
        self.key, self._warned = key, False
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(MOST_WAITING)
        # A daemon: a tracker that hangs must not keep the process.
        self._thread = threading.Thread(target=self._work, name=key, daemon=True)
        try:
            self._tracker = make()
        except ConfigError:
            raise
        except Exception as error:
            self._warn(reason(error))
        else:
            self._thread.start()
            self.call("start")

    def call(self, name: str, *arguments: Any) -> None:
        """Have a method called soon; never waits and never raises. `close` is the last one."""
        try:
            self._calls.put_nowait((name, arguments))
        except queue.Full:
            self._warn(f"it hangs, with {MOST_WAITING:,} calls waiting")

    def wait(self, seconds: float) -> None:
        """Wait for the thread's end, for so long at most."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, seconds))
        if self._thread.is_alive():
            self._warn("it did not end in time")

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            say(
                f"WARNING: {self.key}: {why}. The run continues without it; its numbers are in "
                "metrics.jsonl"
            )

    def _work(self) -> None:
        name = ""
        while name != "close":
            name, arguments = self._calls.get()
            method = getattr(self._tracker, name, None)  # a person's own need not have all
            if name == "close" and not isinstance(self._tracker, Tracker):
                arguments = ()
            try:
                if method is not None:
                    method(*arguments)
            except BaseException as error:
                self._warn(reason(error))
