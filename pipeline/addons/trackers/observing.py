"""The observer that tells trackers of a fit, and the facts of the run that they get first.

Trackers that can fail, hang or be slow without harm: they cost a warning, never the run.

Each is called in a thread of its own, in order, through a queue. A call costs training 5 us. The
wait for a thread at the end of the run is bounded.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig

from penstock.addons.trackers.tracker import Points, TrackedRun, Tracker, measured, points
from penstock.config.hydra import is_job
from penstock.config.targets import make
from penstock.errors import ConfigError
from penstock.runs.only_shown import only_shown, reason
from penstock.runs.run_folder import Status
from penstock.terminal import say
from penstock.training.observer import Observer, Record

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit

_FILES = ("config.yaml", "manifest.json", "report.html")


def observers(fit: Fit) -> list[Observer]:
    """The observer that sends everything to the trackers of the configuration.

    Raises:
        ConfigError: one refuses its arguments.
    """
    folder, state, section = fit.folder, fit.opened.state, fit.config.tracker
    before: Sequence[tuple[Points, int]] = ()
    if state is not None and section:  # a damaged metrics.jsonl costs a warning
        with only_shown("for trackers, what was measured before"):
            before = measured(folder.path)
    run = TrackedRun(
        folder.path,
        fit.config.model_dump(),
        dict(folder.manifest),
        Path(HydraConfig.get().sweep.dir) if is_job() else None,
        None if state is None else int(state["updates"]),
        before,
        bool(fit.config.resume_despite),
    )
    return [Tracked(start(section, folder.path / "tracker", run), fit)]


def start(section: Any, folder: Path, run: TrackedRun) -> Trackers:
    """The trackers of the section `tracker`, started; each writes into `folder` / its name.

    One that is the whole of `tracker`, and has no name, writes into `folder`. This module supplies
    arguments that a tracker takes by name and its node leaves out: `folder`, `run`.

    Raises:
        ConfigError: one refuses its arguments.
    """

    def maker(key: str, node: Any) -> Callable[[], Any]:
        own = folder.joinpath(*key.split(".")[1:])
        return lambda: make(node, key, {"folder": own, "run": run})

    several = {f"tracker.{name}": node for name, node in section.items() if node is not None}
    nodes = {"tracker": section} if "_target_" in section else several
    return Trackers({key: maker(key, node) for key, node in nodes.items()})


class Tracked(Observer):
    """Sends every record, the pictures and the run's files to the trackers."""

    def __init__(self, trackers: Trackers, fit: Fit) -> None:
        self.trackers, self.fit = trackers, fit

    def on_log(self, record: Record) -> None:
        self.trackers.log(points("log", record), int(record["step"]))

    def on_epoch_end(self, record: Record) -> None:
        self.trackers.log(points("epoch", record), int(record["step"]))

    def on_file(self, name: str, path: Path) -> None:
        if path.suffix == ".png":
            self.trackers.picture(name, path, int(self.fit.result.history[-1]["step"]))

    def on_close(self, status: Status) -> None:
        with only_shown("what trackers get at the end"):
            self.trackers.close(status, [self.fit.folder.path / name for name in _FILES])


READY_SECONDS = 10.0  # for a tracker's constructor, which imports its package
END_SECONDS = {"done": 30.0, "failed": 30.0}  # for what is left to be sent
STOPPED_SECONDS = 10.0  # the same for a run that was asked to stop
MOST_WAITING = 10_000  # calls

Call = Callable[[Any], object]


class Guarded:
    """A tracker in a thread of its own.

    Args:
        key: of its node, for warnings.
        make: its constructor; what it raises is a warning, too, but for a ConfigError.

    Raises:
        ConfigError: by `make`.
    """

    def __init__(self, key: str, make: Callable[[], Any]) -> None:
        self.key = key
        self._calls: queue.Queue[Call | None] = queue.Queue(MOST_WAITING)
        self._warned = threading.Lock()  # taken by the first warning, for good
        self._refused: ConfigError | None = None
        self._made = threading.Event()
        # A daemon: a tracker that hangs must not keep the process.
        self._thread = threading.Thread(target=self._work, args=(make,), name=key, daemon=True)
        self._thread.start()
        # Threads that import while loaders fork could leave locks behind in their workers.
        self._made.wait(READY_SECONDS)
        if self._refused is not None:
            raise self._refused

    def call(self, call: Call | None) -> None:
        """Have the tracker called soon, or end (None); never waits and never raises."""
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self.warn(f"it hangs, with {MOST_WAITING:,} calls waiting")

    def wait(self, seconds: float) -> None:
        """Wait for the thread's end, for so long at most."""
        self._thread.join(max(0.0, seconds))
        if self._thread.is_alive():
            self.warn("it did not end in time")

    def warn(self, why: str) -> None:
        """Print a warning, if it is the first."""
        if self._warned.acquire(blocking=False):
            say(
                f"WARNING: {self.key}: {why}. The run continues without it; its numbers are in "
                "metrics.jsonl"
            )

    def _work(self, make: Callable[[], object]) -> None:
        try:
            tracker = make()
        except ConfigError as error:
            self._refused = error
            return
        except BaseException as error:
            self.warn(reason(error))
            return
        finally:
            self._made.set()
        while (call := self._calls.get()) is not None:
            try:
                call(tracker)
            except BaseException as error:
                self.warn(reason(error))


class Trackers:
    """The trackers of a run, called together.

    Args:
        made: constructor by key.

    Raises:
        ConfigError: a constructor refuses its arguments.
    """

    def __init__(self, made: Mapping[str, Callable[[], Any]]) -> None:
        self.guarded = [Guarded(key, make) for key, make in made.items()]
        self._call(lambda tracker: tracker.start() if isinstance(tracker, Tracker) else None)

    def log(self, metrics: Points, step: int) -> None:
        """See `Tracker.log`."""
        kept = dict(metrics)
        self._call(lambda tracker: tracker.log(kept, step))

    def picture(self, name: str, path: Path, step: int) -> None:
        """See `Tracker.picture`."""
        self._call(lambda tracker: tracker.picture(name, path, step))

    def close(self, ending: str = "done", files: Sequence[Path] = ()) -> None:
        """Hand over the files that are there, and end; waits `END_SECONDS` for all together."""
        there = [path for path in files if path.is_file()]
        self._call(
            lambda tracker: [tracker.file(path) for path in there if hasattr(tracker, "file")]
        )
        self._call(
            lambda tracker: (
                tracker.close(ending) if isinstance(tracker, Tracker) else tracker.close()
            )
        )
        for tracker in self.guarded:
            tracker.call(None)
        deadline = time.monotonic() + END_SECONDS.get(ending, STOPPED_SECONDS)
        for tracker in self.guarded:
            tracker.wait(deadline - time.monotonic())

    def _call(self, call: Call) -> None:
        for tracker in self.guarded:
            tracker.call(call)
