"""The parts of a configuration's sections, and the effect of each key.

`config/schema.py` has the sections themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

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
# A resumed run compares the fingerprint of the data instead of what it is read by.
PACK = Effect(Changes.BATCHES, asks="pack", resumes=Changes.BATCHES, makes=ALL_SPLITS)
OBJECTIVE = Effect(Changes.WEIGHTS, below={"metrics": CHOOSES_BEST})
LIMIT = Effect(Changes.BATCHES, asks="limits", makes=ALL_SPLITS, below={"files": STOPS})


class Section(BaseModel):
    """A mapping with known keys; a wrong type is refused, never converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
