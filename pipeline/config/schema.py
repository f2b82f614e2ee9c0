"""The typed schema of all of Penstock's keys in a configuration; docs/keys.md lists them.

The comments in conf/ say what a key does; here are its type, its bounds, and what changes with it,
which `config/changes.py` answers from. `config/parsing.py` makes a `Config` of plain values.
pydantic's import costs 0.1 s, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, PrivateAttr, create_model

from penstock import installed
from penstock.config import disclosure
from penstock.config.sections import (
    ALL_SPLITS,
    BALANCE,
    BATCHES,
    CHOOSES_BEST,
    DATA,
    LENGTH,
    LIMIT,
    NOTHING,
    OBJECTIVE,
    RANKS,
    ROUNDING,
    STOPS,
    TASK,
    TRAINING,
    VALIDATES,
    VALIDATION,
    WEIGHTS,
    Changes,
    Effect,
    Extension,
    Section,
)
from penstock.files.limits import Limits
from penstock.order.skipped import Skipped
from penstock.ranges import Count, Index, Seed

Node = dict[str, Any]  # a part: `_target_` and its arguments
if TYPE_CHECKING:
    Task = str
    Backend = str
else:
    Task = Literal[tuple(installed.tasks())]
    Backend = Literal["auto", "process", "thread", "main", *installed.backends()]


class BatchSection(Section):
    """How positions are cut into batches."""

    size: Annotated[Count | None, TRAINING]
    tail: Annotated[Literal["keep", "drop", "pad"], TRAINING]
    val_size: Annotated[Count | None, VALIDATION]
    balance: Annotated[str | None, BALANCE] = None


class TransformSection(Section):
    """Steps by name, in order, for each split; a step that is None is left out.

    `train` and `val` are for samples, before they are collated, the others for batches.
    """

    train: Annotated[dict[str, Node | None], TRAINING]
    val: Annotated[dict[str, Node | None], VALIDATION]
    train_batch: Annotated[dict[str, Node | None], TRAINING] = {}
    val_batch: Annotated[dict[str, Node | None], VALIDATION] = {}
    views: Annotated[Count, BATCHES] = 1
    batch_on: Annotated[
        Literal["auto", "loader", "device"],
        Effect(Changes.BATCHES, asks="batch_on", resumes=Changes.BATCHES),
    ] = "auto"


class LoaderSection(Section):
    """Who makes the batches and how far ahead; all but `backend` as in torch's DataLoader.

    `config/loader_options.py` resolves "auto" and None.
    """

    backend: Annotated[Backend, NOTHING]
    num_workers: Annotated[Index | Literal["auto"], NOTHING]
    prefetch_factor: Annotated[Count | None, NOTHING]
    persistent_workers: Annotated[bool | None, NOTHING]
    pin_memory: Annotated[bool | None, NOTHING]
    timeout: Annotated[Annotated[float, Field(ge=0)] | None, NOTHING]
    max_deaths: Annotated[Count, STOPS]
    worker_init_fn: Annotated[
        str | None, Effect(Changes.BATCHES, "may change a worker's dataset", makes=ALL_SPLITS)
    ] = None
    multiprocessing_context: Annotated[str | None, NOTHING]
    in_order: Annotated[bool, Effect(Changes.WEIGHTS, "the order in which batches arrive")] = True
    generator: Annotated[int | None, NOTHING]
    slow_memory: Annotated[float, Field(ge=0), NOTHING] = 0.25


class BadSamplesSection(Section):
    """How unreadable samples are handled; see docs/bad_samples.md."""

    on_error: Annotated[
        Literal["raise", "substitute", "skip"],
        Effect(Changes.BATCHES, asks="left_out", makes=ALL_SPLITS),
    ] = "raise"
    budget: Annotated[Index | Annotated[float, Field(gt=0, le=1)], STOPS]
    quarantine: Annotated[
        str | None,
        Effect(Changes.BATCHES, asks="which_left_out", resumes=Changes.BATCHES, makes=ALL_SPLITS),
    ]


class DistributedSection(Section):
    """How several processes share a run; see docs/training.md."""

    strategy: Annotated[Literal["none", "ddp", "fsdp"], RANKS]
    nproc: Annotated[Count | Literal["auto"], RANKS] = "auto"
    backend: Annotated[str | None, RANKS] = None
    timeout: Annotated[float, Field(gt=0), STOPS] = 300.0
    max_restarts: Annotated[Index, NOTHING] = 0
    find_unused_parameters: Annotated[bool, RANKS] = False
    sync_batchnorm: Annotated[bool, RANKS] = False


class CheckpointSection(Section):
    """When to save and what to keep: the best, and the last `keep_last`."""

    every_epochs: Count
    every_steps: Count | None
    every_minutes: Annotated[float, Field(gt=0)] | None
    keep_last: Count
    background: bool


class LimitBatches(Section):
    """Batches of an epoch at most; None: all."""

    train: Annotated[Count | None, Effect(Changes.WEIGHTS, "the length of the run", cuts=True)] = (
        None
    )
    val: Annotated[Count | None, VALIDATES] = None


class TrainerSection(Section):
    """The training loop."""

    max_epochs: Annotated[Count, LENGTH]
    max_steps: Annotated[Count | None, LENGTH]
    accumulate: Annotated[Count, WEIGHTS]
    clip_norm: Annotated[Annotated[float, Field(gt=0)] | None, WEIGHTS]
    precision: Annotated[Literal["fp32", "bf16", "fp16"], Effect(Changes.WEIGHTS, "rounding")]
    compile: Annotated[bool, ROUNDING]
    channels_last: Annotated[bool, ROUNDING]
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Effect(Changes.BATCHES, asks="device", resumes=Changes.BATCHES),
    ]
    log_every: Annotated[Count, NOTHING]
    val_every: Annotated[Count, VALIDATES]
    monitor: Annotated[str | None, CHOOSES_BEST]
    mode: Annotated[Literal["min", "max"], CHOOSES_BEST]
    patience: Annotated[Count | None, WEIGHTS]
    checkpoint: Annotated[CheckpointSection | None, NOTHING]
    baseline: Annotated[bool, NOTHING]
    digest: Annotated[bool, NOTHING]
    ledger: Annotated[bool, NOTHING]
    progress: Annotated[Literal["auto", "rich", "plain", "none"], NOTHING]
    pictures: Annotated[bool, NOTHING]
    report: Annotated[bool, NOTHING]
    ema: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None,
        Effect(Changes.WEIGHTS, "those that are validated and predict"),
    ] = None
    limit_batches: LimitBatches = LimitBatches()
    overfit_batches: Annotated[Count | None, TRAINING] = None
    skip: Annotated[
        list[Any] | None, Effect(Changes.WEIGHTS, "which batches are learned from", cuts=True)
    ] = None
    fast_dev_run: Annotated[bool, LENGTH] = False

    def short(self, split: str) -> tuple[int | None, bool, Skipped]:
        """`most`, `again` and `skipped` of a split's plan; a trial run skips nothing."""
        limit = getattr(self.limit_batches, split, None) if self.overfit_batches is None else None
        most = 1 if self.fast_dev_run else limit or self.overfit_batches
        skip = self.skip if split == "train" and not self.fast_dev_run else None
        return most, split == "train" and self.overfit_batches is not None, Skipped.of(skip)


class Config(Section):
    """A whole configuration: plain values, nothing of hydra left.

    Parts (`dataset`, `sampler`, ...) stay nodes; `penstock.build` makes them. The keys after
    `task` are set by the tasks that use them.

    Attributes:
        resume: a run's folder, one of its checkpoints, or "auto" for the run in `run_dir`.
        resume_despite: keys that may differ from those of the run that is resumed.
    """

    seed: Annotated[Seed, BATCHES]
    batch: BatchSection
    run_dir: Annotated[str, NOTHING]
    cache_dir: Annotated[str, NOTHING]
    dataset: Annotated[Node, DATA]
    transform: TransformSection
    sampler: Annotated[Node, TRAINING]
    collate: Annotated[
        Node,
        Effect(
            Changes.BATCHES, "the digest covers samples, not how they are joined", makes=ALL_SPLITS
        ),
    ]
    loader: LoaderSection
    bad_samples: BadSamplesSection
    limits: Annotated[Limits, LIMIT] = Limits()
    distributed: DistributedSection
    model: Annotated[Node, WEIGHTS]
    objective: Annotated[Node, OBJECTIVE]
    optimizer: Annotated[Node, WEIGHTS]
    scheduler: Annotated[Node | None, WEIGHTS]
    trainer: TrainerSection
    tracker: Annotated[Node, NOTHING] = {}  # one, or several by name
    resume: Annotated[str | None, NOTHING]
    resume_despite: Annotated[
        list[str],
        Effect(Changes.BATCHES, "a part of the run had other settings", resumes=Changes.BATCHES),
    ]
    task: Annotated[Task, TASK]
    split: Annotated[Literal["train", "val", "both"], TASK] = "train"
    epoch: Annotated[Index, TASK] = 0
    step: Annotated[Index, TASK] = 0
    steps: Annotated[Count | None, TASK] = None
    checkpoint: Annotated[str | None, TASK] = None
    runs: Annotated[list[str] | None, TASK] = None
    run: Annotated[str | None, TASK] = None
    sample: Annotated[int | str | list[int | str] | None, TASK] = None
    address: Annotated[Annotated[list[Index], Field(min_length=2, max_length=2)] | None, TASK] = (
        None
    )
    epochs: Annotated[Index | Annotated[str, Field(pattern=r"^\d{1,9}:\d{1,9}$")] | None, TASK] = (
        None
    )

    _origins: dict[str, disclosure.Origin] = PrivateAttr(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """The configuration as nested dicts."""
        return self.model_dump()

    def written(self) -> dict[str, Any]:
        """The same as it is written into a run folder: without secrets, and with what came from
        the environment as it was written.
        """
        shown: dict[str, Any] = disclosure.tree(self.plain(), self._origins)
        return shown

    def compared(self) -> dict[str, Any]:
        """The same with a short digest for each value that is not written."""
        shown: dict[str, Any] = disclosure.tree(self.plain(), self._origins, digests=True)
        return shown


def _extended(section: type[BaseModel], brought: dict[str, Any]) -> type[BaseModel]:
    """A section with what add-ons bring below it, by key; with the same name."""
    fields: dict[str, Any] = {}
    for key, value in brought.items():
        name, _, rest = key.partition(".")
        if rest:
            inner = [inner_key for inner_key in brought if inner_key.startswith(f"{name}.")]
            if key == inner[0]:
                below = {inner_key[len(name) + 1 :]: brought[inner_key] for inner_key in inner}
                fields[name] = _inside(section.model_fields[name], below)
        elif isinstance(value, type) and issubclass(value, Extension):
            fields[name] = (Annotated[value, value.EFFECT], value())
        else:
            fields[name] = (value.annotation, value.default)
    made = create_model(section.__name__, __base__=section, __module__=__name__, **fields)
    made.__doc__ = section.__doc__
    return made


def _inside(field: Any, brought: dict[str, Any]) -> tuple[Any, Any]:
    """The annotation and default of a field whose section has more below it."""
    optional = type(None) in get_args(field.annotation)
    kinds = [
        member
        for member in get_args(field.annotation) or [field.annotation]
        if member is not type(None)
    ]
    made = _extended(kinds[0], brought)
    default = made() if isinstance(field.default, BaseModel) else ...
    annotation: Any = made | None if optional else made
    for effect in field.metadata:
        annotation = Annotated[annotation, effect]
    return annotation, default


if not TYPE_CHECKING:
    Config = _extended(Config, installed.options())
# Keys that say what a task is asked.
TASK_KEYS = tuple(
    name for name, field in Config.model_fields.items() if name != "task" and TASK in field.metadata
)
