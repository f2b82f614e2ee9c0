"""The protocol of a tracker, and the facts of a run that it gets.

A tracker of your own needs `log`, `picture` and `close`, and no base class. It is made with the
arguments of its node, and with `folder` and `run` if it takes these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, Problem

Points = Mapping[str, float]


@dataclass(frozen=True)
class TrackedRun:
    """The facts of a run that a tracker gets.

    Attributes:
        folder: of the run.
        config: plain values without secrets, as in config.yaml.
        manifest: as in manifest.json, at the start of this session.
        sweep: the folder of the sweep that the run is a job of.
        resumed: optimizer steps at which this session continues the run; None for a new run.
    """

    folder: Path
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    sweep: Path | None = None
    resumed: int | None = None

    @property
    def id(self) -> str:
        """That of the run's first start: 16 hexadecimal digits."""
        return str(self.manifest["sessions"][0]["id"])

    @property
    def name(self) -> str:
        """The last two parts of the folder, e.g. 2026-11-22/07-31-11."""
        return "/".join(self.folder.absolute().parts[-2:])


def points(event: str, record: Mapping[str, Any]) -> Points:
    """A record of the fit under names that have one value a step, none of them a folder of another.

    The mean of an epoch is another curve than those of the logs inside of it: epoch/train/loss.
    """
    named = {}
    for name, value in record.items():
        if name in ("event", "step") or (name == "epoch" and event == "epoch"):
            continue
        if name == "epoch":
            name = "train/epoch"
        elif event == "epoch" and not name.startswith("val/"):
            name = f"epoch/{name}"
        named[name] = value
    return named


def require(package: str) -> None:
    """Raise ConfigError unless the package of a tracker is installed, which takes long to import.

    A tracker's module calls it, so that it is known before a run's folder is claimed.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # a folder of that name, as W&B makes one
        way = f"pip install -e '.[{package}]', or leave it out (tracker=none)"
        raise ConfigError(
            Problem("tracker", f"needs the package {package}, which is not installed: {way}")
        )


class Tracker:
    """Base class of our trackers, whose methods do nothing.

    They are called in a thread of the tracker's own. All may raise: that costs one warning.
    """

    def start(self) -> None:
        """Called once, before the others: open files and connections."""

    def log(self, metrics: Points, step: int) -> None:
        """Take numbers by name; `step` counts optimizer steps."""

    def picture(self, name: str, path: Path, step: int) -> None:
        """Take a .png file of the run folder."""

    def file(self, path: Path) -> None:
        """Take another file of the run folder: the configuration, the manifest, the report."""

    def close(self, ending: str = "done") -> None:
        """Called once, at the end.

        Args:
            ending: done | failed | interrupted | preempted.
        """


class Nothing(Tracker):
    """Tracks nothing."""
