"""What trackers get of a fit: its observer, and what they are told of the run at its start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig

from penstock.addons.trackers.guarded import Trackers
from penstock.addons.trackers.tracker import Measured, Points, TrackedRun, points
from penstock.config.instantiate import make
from penstock.config.nodes import trackers
from penstock.config.own_command import is_job
from penstock.runs.only_shown import only_shown
from penstock.runs.run_folder import Status
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
            before = Measured(folder.path)
    run = TrackedRun(
        folder.path,
        fit.config.written(),
        dict(folder.manifest),
        Path(HydraConfig.get().sweep.dir) if is_job() else None,
        None if state is None else int(state["updates"]),
        before,
        bool(fit.config.resume_despite),
    )
    return [Tracked(start(section, folder.path / "tracker", run), fit)]


def start(section: Any, folder: Path, run: TrackedRun) -> Trackers:
    """The trackers of the section `tracker`, started; each writes into `folder` / its name.

    One that is the whole of `tracker`, and has no name, writes into `folder`. What a tracker takes
    by name and its node leaves out is supplied: `folder`, `run`.

    Raises:
        ConfigError: one refuses its arguments.
    """

    def maker(key: str, node: Any) -> Callable[[], Any]:
        own = folder.joinpath(*key.split(".")[1:])
        return lambda: make(node, key, {"folder": own, "run": run})

    nodes = {key: node for key, node in trackers(section).items() if node is not None}
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
