"""The typed schema of everything that is ours in a configuration.

A composed configuration arrives as a plain, resolved dict and leaves as a frozen `Config`, or as
one `ConfigError` that holds every problem: the full key, what was given, what is allowed and the
nearest valid name. What options mean together is checked in `pipeline.contradictions`, and what
the `_target_` nodes call in `pipeline.trust` and `pipeline.signatures`.

Cost: about 3 ms for a whole configuration; pydantic's import is 0.1 s, once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import ConfigError, Problem

Node = dict[str, Any]  # a part: `_target_` and its arguments
Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
Task = Literal["fit", "validate", "digest", "replay"]


class Section(BaseModel):
    """A mapping with known keys; a wrong type is refused, never converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Batch(Section):
    """How positions are cut into batches.

    Attributes:
        size: samples in a global batch, over all ranks; None hands samples through one by one,
            without a batch dimension.
        tail: what becomes of the smaller last batch. Validation always keeps its tail.
        val_size: the same as `size` for validation; None takes `size`.
    """

    size: Count | None
    tail: Literal["keep", "drop", "pad"]
    val_size: Count | None


class Transforms(Section):
    """Steps by name, in order, for each split; a step that is None is left out."""

    train: dict[str, Node | None]
    val: dict[str, Node | None]


class Loader(Section):
    """Who makes the batches and how far ahead; all but `backend` as in torch's DataLoader.

    Attributes:
        num_workers: "auto" takes one for each core that this process may use.
        persistent_workers: None keeps worker processes from one epoch to the next.
        pin_memory: None pins when there is an accelerator.
        timeout: seconds; 0 waits for ever.
        worker_init_fn: dotted name of a function in a trusted package.
        generator: seed of the generator handed to the DataLoader.
    """

    backend: Literal["process", "thread", "main"]
    num_workers: Index | Literal["auto"]
    prefetch_factor: Count | None
    persistent_workers: bool | None
    pin_memory: bool | None
    pin_memory_device: str
    timeout: Annotated[float, Field(ge=0)]
    worker_init_fn: str | None
    multiprocessing_context: str | None
    in_order: bool
    generator: int | None


class Distributed(Section):
    """How several processes share a run."""

    strategy: Literal["none"]


class Checkpoints(Section):
    """When to save and what to keep: the best, and the last `keep_last`."""

    every_epochs: Count
    keep_last: Count


class Trainer(Section):
    """The training loop; conf/trainer/default.yaml says what each key does."""

    max_epochs: Count
    max_steps: Count | None
    accumulate: Count
    clip_norm: Annotated[float, Field(gt=0)] | None
    precision: Literal["fp32", "bf16", "fp16"]
    compile: bool
    channels_last: bool
    device: Literal["auto", "cpu", "cuda"]
    log_every: Count
    val_every: Count
    monitor: str | None
    mode: Literal["min", "max"]
    patience: Count | None
    checkpoint: Checkpoints | None
    baseline: bool
    digest: bool
    progress: Literal["auto", "rich", "plain", "none"]
    pictures: bool


class Config(Section):
    """A whole configuration: plain values, nothing of hydra left.

    Parts (`dataset`, `sampler`, ...) stay nodes; `pipeline.build` makes them. The keys after
    `task` are set by the tasks that use them.
    """

    seed: Index
    batch: Batch
    run_dir: str
    cache_dir: str
    dataset: Node
    transform: Transforms
    sampler: Node
    collate: Node
    loader: Loader
    distributed: Distributed
    model: Node
    objective: Node
    optimizer: Node
    scheduler: Node | None
    trainer: Trainer
    tracker: Node
    task: Task
    split: Literal["train", "val"] = "train"
    epoch: Index = 0
    step: Index = 0
    steps: Count | None = None
    checkpoint: str | None = None

    def plain(self) -> dict[str, Any]:
        """The configuration as nested dicts, as it is written into a run folder."""
        return self.model_dump()


TASK_KEYS = ("split", "epoch", "step", "steps", "checkpoint")


def parse(container: Mapping[str, Any]) -> Config:
    """The typed configuration; raises ConfigError with all problems of a plain, resolved dict."""
    config, problems = check(container)
    if problems:
        raise ConfigError(problems)
    return config


def check(container: Mapping[str, Any]) -> tuple[Config, list[Problem]]:
    """The configuration and what is wrong with it.

    Where something is wrong, the Config lacks the attributes in question, so that whoever looks
    for further problems still finds all the others.
    """
    try:
        config = Config.model_validate(dict(container))
    except ValidationError as error:
        places = {_place(container, entry): entry["type"] for entry in error.errors()}
        problems = [_problem(container, place, kind) for place, kind in places.items()]
        return _construct(Config, container, set(places)), problems
    return config, []


def _construct(model: type[Any], values: Mapping[str, Any], wrong: set[tuple[str, ...]]) -> Any:
    """A model without validation that holds what is not wrong."""
    held = {}
    for name, field in model.model_fields.items():
        if name not in values or (name,) in wrong:
            continue
        value = values[name]
        section = _section(field.annotation)
        if section is not None and isinstance(value, Mapping):
            value = _construct(section, value, {place[1:] for place in wrong if place[0] == name})
        held[name] = value
    return model.model_construct(**held)


def _place(container: Any, error: Mapping[str, Any]) -> tuple[str, ...]:
    """The key of an error, without the names pydantic adds for the members of a union."""
    place: list[str] = []
    for part in error["loc"]:
        there = isinstance(container, Mapping) and part in container
        if not there and error["type"] != "missing":
            break
        place.append(str(part))
        container = container[part] if there else None
    return tuple(place)


def _problem(container: Mapping[str, Any], place: tuple[str, ...], kind: str) -> Problem:
    model: type[BaseModel] | None = Config
    value: Any = container
    annotation: Any = None
    metadata: list[Any] = []
    for name in place:
        value = value.get(name) if isinstance(value, Mapping) else None
        fields = model.model_fields if model else {}
        if name not in fields:
            return _below(place, name, value, kind, fields)
        annotation, metadata = fields[name].annotation, fields[name].metadata
        model = _section(annotation)
    if kind == "missing":
        return Problem(".".join(place), f"is missing; expected {describe(annotation, metadata)}")
    allowed = describe(annotation, metadata)
    return Problem(".".join(place), not_allowed(value, allowed, _choices(annotation)))


def _below(
    place: tuple[str, ...], name: str, value: Any, kind: str, fields: Mapping[str, Any]
) -> Problem:
    """A problem at a key that the schema doesn't name: unknown, or an entry of an open mapping."""
    if kind == "extra_forbidden":
        return unknown_key(".".join(place), name, fields)
    return Problem(".".join(place), not_allowed(value, "a mapping with _target_"))


def unknown_key(key: str, name: str, known: Iterable[str], what: str = "key") -> Problem:
    """The problem of a name that doesn't exist, with the nearest that does."""
    known = list(known)
    allowed = ", ".join(known) if known else "none"
    return Problem(key, f"unknown {what} {name!r}{nearest(name, known)}; allowed: {allowed}")


def nearest(name: str, known: Iterable[str]) -> str:
    """`, did you mean 'x'?` where something is near, else nothing."""
    close = difflib.get_close_matches(name, [str(one) for one in known], n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def show(value: Any) -> str:
    """A value as YAML writes it, shortened to 80 characters."""
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def not_allowed(value: Any, allowed: str, choices: Iterable[str] = ()) -> str:
    """The message for a value of a wrong type or outside its bounds or choices."""
    return f"got {show(value)}, expected {allowed}{nearest(str(value), choices)}"


def _section(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, if it holds one."""
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            return member
    return None


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, UnionType):
        return tuple(one for member in get_args(annotation) for one in _members(member))
    return (annotation,)


def _choices(annotation: Any) -> list[str]:
    literals = (m for m in _members(annotation) if get_origin(m) is Literal)
    return [str(choice) for literal in literals for choice in get_args(literal)]


_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
}


def describe(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a field allows, in words: `a whole number of at least 1 or null`."""
    return " or ".join(_describe_one(member, metadata) for member in _members(annotation))


def _describe_one(member: Any, metadata: Iterable[Any]) -> str:
    origin = get_origin(member)
    if origin is Annotated:
        return _describe_one(member.__origin__, member.__metadata__)
    if origin is Literal:
        return " | ".join(map(str, get_args(member)))
    if member in _NAMES:
        return _NAMES[member] + (_bounds(metadata) if member in (int, float) else "")
    return "a mapping"


def _bounds(metadata: Iterable[Any]) -> str:
    for entry in metadata:
        for bound in getattr(entry, "metadata", [entry]):
            if getattr(bound, "ge", None) is not None:
                return f" of at least {bound.ge}"
            if getattr(bound, "gt", None) is not None:
                return f" above {bound.gt}"
    return ""
