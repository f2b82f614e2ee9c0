"""Facts of the training data that a model needs, in the run's folder: `learned.json`.

    facts, classes    of the dataset: sizes of the model, names of what it predicts
    steps             by key of a step of validation, values that the training data has given it:
                      statistics; or {"file": NAME}, a vocabulary, beside it in `learned/`
    dataset           what the dataset itself says of its training rows (`learned`), by which its
                      class reads others: `of_learned(root, learned, files, limits)`

So a model is used where the training data is not. The folder may come from anybody: it is read as
a configuration is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.build.training import TrainingParts
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem
from penstock.files.disk import write_atomically
from penstock.loading.facts import classes_of, unfiltered
from penstock.runs.only_shown import only_shown
from penstock.runs.resumption import run_of

if TYPE_CHECKING:
    from penstock.build.data import DataParts
    from penstock.distributed.world import World
    from penstock.tasks.fit import Fit

NAME, FOLDER = "learned.json", "learned"
_STEPS = ("val", "val_batch")


def leave(fit: Fit) -> None:
    """Write it, as a run begins or continues; where that fails, predictions open the data."""
    with only_shown("what predictions need of the training data"):
        write(fit.folder.path, fit.data)


def write(folder: Path, data: DataParts) -> None:
    """Write what the training data says into a run's folder. Cost: that of its facts, 1 ms."""
    steps: dict[str, Any] = {}
    for section in _STEPS:
        for name, node in getattr(data.config.transform, section).items():
            key = f"transform.{section}.{name}"
            completed = data.with_statistics(node or {})
            if node is not None and completed != node:
                own = {n: v for n, v in completed.items() if node.get(n) != v}
                steps[key] = {name: _kept(folder, value) for name, value in own.items()}
    dataset = data.train.dataset
    content = {
        "facts": data.facts,
        "classes": classes_of(dataset),
        "steps": steps,
        "dataset": getattr(unfiltered(dataset), "learned", None),
    }
    write_atomically(folder / NAME, json.dumps(content, default=_plain).encode())


def _kept(folder: Path, value: Any) -> Any:
    """A value for the file; what is a file itself is copied beside it."""
    path = Path(value) if isinstance(value, str) else None
    if path is None or not path.is_file():
        return value
    (folder / FOLDER).mkdir(exist_ok=True)
    write_atomically(folder / FOLDER / path.name, path.read_bytes())
    return {"file": path.name}


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numbers of numpy
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no plain value")


def classes_of_run(checkpoint: Path) -> list[str]:
    """Names of the classes of the run that a checkpoint is of; none where that is unknown."""
    learned = Learned.read(checkpoint)
    return [] if learned is None else learned.classes


def parts_of_run(config: Config, checkpoint: Path, world: World | None = None) -> TrainingParts:
    """The parts of a configuration, with the classes and statistics of the run of a checkpoint.

    Raises:
        ConfigError: its table gives another encoding than the one that the model was trained with.
    """
    learned = Learned.read(checkpoint)
    if learned is None:
        return TrainingParts(config, world)
    parts = TrainingParts(learned.completed(config), world)
    parts.data.recorded = learned.classes
    there = (learned.of_dataset or {}).get("encoding")
    own = getattr(unfiltered(parts.data.train.dataset), "learned", {}) if there else {}
    if there and json.loads(json.dumps(own.get("encoding"), default=_plain)) != there:
        raise ConfigError(
            Problem(
                "dataset",
                "scales and categories of its training rows are others than those of the run, so "
                "the model would get other numbers. task=predict reads another table as the run "
                "read its own; a run with dataset.val_file measures on one",
            )
        )
    return parts


class Learned:
    """Stands for the training data: its facts and classes, and no rows.

    Args:
        folder: of the run.
        content: of the file.
    """

    def __init__(self, folder: Path, content: Mapping[str, Any]) -> None:
        self._folder = folder
        self.facts = dict(content["facts"])
        self.classes = [str(name) for name in content.get("classes") or ()]
        self._steps = dict(content["steps"])
        self.of_dataset = content.get("dataset")

    def __len__(self) -> int:
        return 0

    @classmethod
    def read(cls, checkpoint: Path) -> Learned | None:
        """That of the run that a checkpoint is of; None where there is none.

        Raises:
            ConfigError: the file is damaged.
        """
        folder = run_of(checkpoint)
        path = None if folder is None else folder / NAME
        if folder is None or path is None or not path.exists():
            return None
        try:
            return cls(folder, json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError, LookupError) as error:
            reason = f"{path} is damaged: {error}; delete it to use the training data itself"
            raise ConfigError(Problem("run", reason)) from error

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """Make one message of what a damaged file leads to."""
        try:
            yield
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            reason = f"{self._folder / NAME} does not fit its dataset: {error!r}; delete it"
            raise ConfigError(
                Problem("run", f"{reason} to use the training data itself")
            ) from error

    def completed(self, config: Config) -> Config:
        """The configuration with what the training data has given to steps."""
        sections = {}
        for section in _STEPS:
            nodes = dict(getattr(config.transform, section))
            for name, node in nodes.items():
                more = self._steps.get(f"transform.{section}.{name}")
                if node is not None and isinstance(more, dict):
                    values = {name: self._value(value) for name, value in more.items()}
                    nodes[name] = {**node, **values}
            sections[section] = nodes
        return config.model_copy(update={"transform": config.transform.model_copy(update=sections)})

    def _value(self, value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() != {"file"}:
            return value
        return str(self._folder / FOLDER / Path(str(value["file"])).name)
