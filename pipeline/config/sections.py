"""The parts of a configuration's sections, and the effect of each key.

`config/schema.py` has the core's sections. An add-on brings its own (`Extension`) and single
options (`Option`), by the names in its `AddOn` record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict


class Changes(IntEnum):
    """The effects of a key; each includes those before it."""

    NOTHING = 0  # what only measures, places, speeds up or stops a run
    RESULTS = 1  # what is measured of the weights, and which epoch is best
    WEIGHTS = 2  # how they are learned, from how many batches, or by rounding
    BATCHES = 3  # some training batch (epoch, step), in its samples or in what is made of them


@dataclass(frozen=True)
class Effect:
    """The effect of a key and of the keys below it.

    Attributes:
        changes: the careful answer: for any two values, whatever else is configured.
        why: where it is not plain.
        asks: a question of `config/changes.py` that may find less for two runs.
        resumes: the most that may change with it in a run that is resumed.
        makes: the splits whose batches are made by it.
        cuts: whether it decides at which addresses a run trains.
        below: keys below it with effects of their own.
    """

    changes: Changes
    why: str = ""
    asks: str = ""
    resumes: Changes = Changes.NOTHING
    makes: tuple[str, ...] = ()
    cuts: bool = False
    below: Mapping[str, Effect] = field(default_factory=dict)


ALL_SPLITS = ("train", "val")
NOTHING, WEIGHTS = Effect(Changes.NOTHING), Effect(Changes.WEIGHTS)
BATCHES = Effect(Changes.BATCHES, makes=ALL_SPLITS)
TRAINING = Effect(Changes.BATCHES, makes=("train",))
VALIDATION = Effect(Changes.WEIGHTS, asks="validation", resumes=Changes.RESULTS, makes=("val",))
VALIDATES = Effect(Changes.WEIGHTS, asks="validation", resumes=Changes.RESULTS)
CHOOSES_BEST = Effect(Changes.WEIGHTS, asks="validation")
LENGTH = Effect(Changes.WEIGHTS, "the length of the run", resumes=Changes.WEIGHTS, cuts=True)
ROUNDING = Effect(Changes.WEIGHTS, "rounding", resumes=Changes.WEIGHTS)
RANKS = Effect(Changes.WEIGHTS, asks="ranks", resumes=Changes.WEIGHTS)
BALANCE = Effect(Changes.WEIGHTS, asks="balance", resumes=Changes.WEIGHTS)
STOPS = Effect(Changes.NOTHING, "only stops a run")
TASK = Effect(Changes.RESULTS, "what a task is asked", resumes=Changes.RESULTS)
DATA = Effect(
    Changes.BATCHES,
    asks="data",
    resumes=Changes.BATCHES,
    makes=ALL_SPLITS,
    below={
        "packed": Effect(Changes.BATCHES, asks="packed", resumes=Changes.BATCHES, makes=ALL_SPLITS),
        "fields": BATCHES,
        "facts": Effect(Changes.BATCHES, asks="facts", makes=ALL_SPLITS),
        "fingerprint": NOTHING,
    },
)
OBJECTIVE = Effect(Changes.WEIGHTS, below={"metrics": CHOOSES_BEST})
LIMIT = Effect(
    Changes.BATCHES, asks="limits", makes=ALL_SPLITS, below={"batch_bytes": STOPS, "files": STOPS}
)


class Section(BaseModel):
    """A mapping with known keys; a wrong type is refused, never converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    def option(self, name: str) -> Any:
        """The value of an option that an add-on brings; None without that add-on."""
        return getattr(self, name, None)


class Extension(Section):
    """A section that an add-on brings; all its keys have defaults.

    Attributes:
        KEY: where it stands: "pack", "loader.ray".
        EFFECT: what changes with it, where a key says nothing itself.
    """

    KEY: ClassVar[str]
    EFFECT: ClassVar[Effect] = NOTHING

    @classmethod
    def of(cls, config: Section) -> Self:
        """That section of a configuration."""
        for name in cls.KEY.split("."):
            config = getattr(config, name)
        assert isinstance(config, cls)
        return config


class BackendSection(Extension):
    """The section `loader.NAME` of a backend NAME that an add-on brings."""

    def workers(self, asked: int) -> int:
        """How many workers there are, where `loader.num_workers` asks for so many."""
        return asked

    def of_loader(self) -> object:
        """The options that the backend takes as `LoaderOptions.own`."""
        return self


@dataclass(frozen=True)
class Option:
    """A single option that an add-on brings into a section of the core: its type and default."""

    annotation: Any
    default: Any
