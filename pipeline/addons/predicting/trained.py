"""A run's model with its best weights, and the facts of its training data, from the manifest.

The manifest's `learned` has what a model needs where the training data is not:

    facts, classes    of the dataset: sizes of the model, names of what it predicts
    steps             by section and name, what the training data has given a step of validation:
                      statistics; or {"file": NAME}, a vocabulary, beside it in `learned/`
    dataset           what the dataset itself says of its training rows (`learned`), by which its
                      class reads others: `of_learned(root, learned, files, limits)`

The folder may come from anybody: what it says is read as a configuration is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from penstock.build.training import TrainingParts
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem
from penstock.files.disk import write_atomically
from penstock.loading.facts import classes_of, unfiltered
from penstock.runs import checkpoint
from penstock.runs.manifest import read_manifest
from penstock.runs.only_shown import only_shown
from penstock.runs.resumption import run_of
from penstock.tasks.validate import load_weights
from penstock.training.objective_base import Objective

if TYPE_CHECKING:
    from penstock.build.data import DataParts
    from penstock.distributed.world import World
    from penstock.tasks.fit import Fit

FOLDER = "learned"
_STEPS = ("val", "val_batch")


def leave(fit: Fit) -> None:
    """Note the facts in the manifest, as a run begins or resumes. Cost: that of its facts, 1 ms."""
    with only_shown("what predictions need of the training data"):
        fit.folder.manifest["learned"] = learned(fit.data, fit.folder.path)
        fit.folder.note()


def learned(data: DataParts, folder: Path) -> dict[str, Any]:
    """The facts as plain values; copies the files among them into the run's folder."""
    steps: dict[str, Any] = {}
    for section in _STEPS:
        for name, node in getattr(data.config.transform, section).items():
            completed = data.with_statistics(node or {})
            if own := {key: v for key, v in completed.items() if node and node.get(key) != v}:
                steps[f"{section}.{name}"] = {key: _kept(folder, v) for key, v in own.items()}
    content = {
        "facts": data.facts,
        "classes": classes_of(data.train.dataset),
        "steps": steps,
        "dataset": getattr(unfiltered(data.train.dataset), "learned", None),
    }
    return _plain(content)


def _kept(folder: Path, value: Any) -> Any:
    """A value for the manifest; a file is copied, as its folder may be gone by then."""
    if not isinstance(value, str) or not Path(value).is_file():
        return value
    (folder / FOLDER).mkdir(exist_ok=True)
    write_atomically(folder / FOLDER / Path(value).name, Path(value).read_bytes())
    return {"file": Path(value).name}


def _plain(value: Any) -> Any:
    """What JSON makes of a value that may have NumPy's arrays and numbers."""
    return json.loads(json.dumps(value, default=lambda array: array.tolist()))


class Learned:
    """Stands for the training data: its facts and classes, and no rows.

    Args:
        folder: of the run.
        content: of `learned` in its manifest.
    """

    def __init__(self, folder: Path, content: Mapping[str, Any]) -> None:
        self._folder, self._steps = folder / FOLDER, dict(content["steps"])
        self.facts = dict(content["facts"])
        self.classes = [str(name) for name in content.get("classes") or ()]
        self.of_dataset = content.get("dataset")

    def __len__(self) -> int:
        return 0

    @classmethod
    def read(cls, path: Path) -> Learned | None:
        """That of the run that a checkpoint is of; None where it left none.

        Raises:
            ConfigError: the manifest is damaged.
        """
        folder = run_of(path)
        content = None if folder is None else read_manifest(folder, "run").get("learned")
        return None if folder is None or content is None else cls(folder, content)

    def completed(self, config: Config) -> Config:
        """The configuration with what the training data has given to steps."""
        sections = {name: dict(getattr(config.transform, name)) for name in _STEPS}
        for key, values in self._steps.items():
            section, _, name = key.partition(".")
            node = sections.get(section, {}).get(name)
            if node is not None:
                own = {argument: self._value(value) for argument, value in values.items()}
                sections[section][name] = {**node, **own}
        return config.model_copy(update={"transform": config.transform.model_copy(update=sections)})

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict) and "file" in value:
            return str(self._folder / Path(str(value["file"])).name)
        return value


def classes_of_run(path: Path) -> list[str]:
    """Names of the classes of the run that a checkpoint is of; none where that is unknown."""
    known = Learned.read(path)
    return [] if known is None else known.classes


def parts_of_run(config: Config, path: Path, world: World | None = None) -> TrainingParts:
    """The parts of a configuration, with the classes and statistics of the run of a checkpoint.

    Raises:
        ConfigError: its table gives another encoding than the one that the model was trained with.
    """
    known = Learned.read(path)
    if known is None:
        return TrainingParts(config, world)
    parts = TrainingParts(known.completed(config), world)
    parts.data.recorded = known.classes
    there = (known.of_dataset or {}).get("encoding")
    own = getattr(unfiltered(parts.data.train.dataset), "learned", {}) if there else {}
    if there and _plain(own.get("encoding")) != there:
        raise ConfigError(
            Problem(
                "dataset",
                "scales and categories of its training rows are others than those of the run, so "
                "the model would get other numbers. task=predict reads another table as the run "
                "read its own; a run with dataset.val_file measures on one",
            )
        )
    return parts


class Trained(NamedTuple):
    """The trained part of a run: `path` is the checkpoint of the weights."""

    parts: TrainingParts
    model: nn.Module
    objective: Objective
    path: Path
    learned: Learned | None = None


def trained(config: Config, elsewhere: bool = False) -> Trained:
    """The model of `config.run` on the device, with its best weights or those of `checkpoint`.

    Args:
        elsewhere: without the training data, by what the run's manifest says of it.

    Raises:
        ConfigError: it is no run's folder, or what it names is not allowed.
    """
    if config.run is None:
        raise ConfigError(Problem("run", "is missing: the folder of a run"))
    path = checkpoint.find(Path(config.checkpoint or config.run))
    return loaded(config, path, elsewhere=elsewhere)


def loaded(
    config: Config, path: Path, world: World | None = None, elsewhere: bool = False
) -> Trained:
    """The same of the configuration of a run, and the path of a checkpoint.

    Args:
        world: this process among the others; from the environment when None.
    """
    known = Learned.read(path) if elsewhere else None
    if known is None:
        parts = parts_of_run(config, path, world)
    else:
        parts = TrainingParts(known.completed(config), world)
        parts.data.recorded, parts.data.train.dataset = known.classes, known
    model, objective = parts.model(), parts.objective()
    load_weights(model, path)
    device = parts.world.device
    return Trained(parts, model.to(device).eval(), objective.to(device), path, known)
