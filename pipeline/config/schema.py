"""The typed schema of all of Penstock's keys in a configuration; docs/keys.md lists them.

The comments in conf/ say what a key does; here are its type, its bounds, and what changes with it,
which `config/identity.py` compares runs by. `config/compose.py` makes a `Config` of plain values.
pydantic's import costs 0.1 s, once.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from penstock import seams
from penstock.files.limits import Count, Index, Limits, Seed
from penstock.order.address import Skipped


class Effect(IntEnum):
    """What depends on a key, for any two values of it, whatever else is configured."""

    NOTHING = 0  # it only measures, places, speeds up or stops a run
    ROUNDING = 1  # the order of sums: ranks, devices, kernels; a run may continue with another one
    RESULTS = 2  # what is measured of the weights; and the weights, where validation steers a run
    VALIDATION = 3  # the same, by batches of validation
    WEIGHTS = 4  # how they are learned, and from how many batches
    TRAINING = 5  # some training batch (epoch, step), in its samples or in what is made of them
    BATCHES = 6  # batches of training and of validation
    DATA = 7  # the same by the data, whose fingerprint stands for the key


NOTHING, ROUNDING, RESULTS, VALIDATION, WEIGHTS, TRAINING, BATCHES, DATA = Effect


class Section(BaseModel):
    """A mapping with known keys; a wrong type is refused, never converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, serialize_by_alias=True)


Options = dict[str, Any]  # of a part that `targets.OPTIONS` names


def _is_node(node: dict[str, Any]) -> dict[str, Any]:
    if "_target_" not in node:
        raise ValueError(
            f"has no _target_, only {', '.join(node) or 'nothing'}; it names what is called"
        )
    return node


# A part: `_target_` and its arguments; the second has several by name instead, or none.
Node = Annotated[dict[str, Any], AfterValidator(_is_node)]
Nodes = Node | dict[str, Node | None]
Names = Annotated[list[str], Field(min_length=1)]  # of positions in a sample
Filter = str | Node | list[str | Node] | None  # expressions, or functions of the table


class DataSection(Section):
    """What the build does with a dataset: its names, rows and splits.

    Attributes:
        facts: numbers for models and metrics that the dataset does not tell.
        val_filter: of validation and test; None: as `filter`.
        val_dataset, test_dataset: nodes of these splits; None: `dataset` gives them.
    """

    fingerprint: Annotated[Literal["names", "sizes", "content"], NOTHING] = "sizes"
    packed: Annotated[Annotated[str, Field(min_length=1)] | None, DATA] = None
    fields: Annotated[Names | None, BATCHES] = None
    batch_fields: Annotated[Names | None, BATCHES] = None
    facts: Annotated[dict[str, int] | None, BATCHES] = None
    filter: Annotated[Filter, DATA] = None
    val_filter: Annotated[Filter, DATA] = None
    unique: Annotated[str | None, DATA] = None
    without: Annotated[
        str | list[Index] | dict[Literal["train", "val"], list[Index]] | None, DATA
    ] = None
    split: Annotated[Options, DATA] = {}
    folds: Annotated[Annotated[int, Field(ge=2)] | None, DATA] = None
    fold: Annotated[Index | None, DATA] = None
    validates: Annotated[bool, DATA, Field(alias="validate")] = True  # pydantic has a `validate`
    val_dataset: Annotated[Node | None, DATA] = None
    test_dataset: Annotated[Node | None, DATA] = None

    @property
    def divides(self) -> bool:
        """Whether anything says how the rows are divided, and not the dataset alone."""
        return any(
            said is not None
            for said in (self.folds, *self.split.values(), self.val_dataset, self.test_dataset)
        )


class ScheduleSection(Section):
    """What comes before a scheduler, and how often it moves."""

    warmup: Annotated[float, Field(ge=0)] = 0
    interval: Literal["step", "epoch"] = "step"


class BatchSection(Section):
    """How positions are cut into batches."""

    size: Annotated[Count | None, TRAINING]
    tail: Annotated[Literal["keep", "drop", "pad"], TRAINING]
    val_size: Annotated[Count | None, VALIDATION]
    balance: Annotated[str | None, WEIGHTS] = None


class TransformSection(Section):
    """Steps by name, in order, for each split; a step that is None is left out.

    `train` and `val` are for samples, before they are collated, the others for batches.
    """

    train: Annotated[dict[str, Node | None], TRAINING]
    val: Annotated[dict[str, Node | None], VALIDATION]
    train_batch: Annotated[dict[str, Node | None], TRAINING] = {}
    val_batch: Annotated[dict[str, Node | None], VALIDATION] = {}
    views: Annotated[Literal[1, 2], BATCHES] = 1
    batch_on: Annotated[
        Literal["auto", "loader", "device"],
        ROUNDING,
    ] = "auto"


class LoaderSection(Section):
    """Who makes the batches and how far ahead; all but `backend` as in torch's DataLoader.

    `loading/workers/executors.py` resolves "auto" and None.
    """

    backend: Annotated[
        Literal["auto", "process", "thread", "main", "ray"],
        NOTHING,
    ]
    num_workers: Annotated[Index | Literal["auto"], NOTHING]
    prefetch_factor: Annotated[Count | None, NOTHING]
    persistent_workers: Annotated[bool | None, NOTHING]
    pin_memory: Annotated[bool | None, NOTHING]
    timeout: Annotated[Annotated[float, Field(ge=0)] | None, NOTHING]
    max_deaths: Annotated[Count, NOTHING]
    worker_init_fn: Annotated[str | None, BATCHES] = None
    multiprocessing_context: Annotated[Literal["fork", "spawn", "forkserver"] | None, NOTHING]
    in_order: Annotated[bool, WEIGHTS] = True
    generator: Annotated[int | None, NOTHING]
    slow_memory: Annotated[float, Field(ge=0), NOTHING] = 0.25
    ray: Annotated[Options, NOTHING] = {}


class BadSamplesSection(Section):
    """How unreadable samples are handled; see docs/resuming.md."""

    on_error: Annotated[
        Literal["raise", "substitute", "skip"],
        BATCHES,
    ] = "raise"
    budget: Annotated[Index | Annotated[float, Field(gt=0, le=1)], NOTHING]
    quarantine: Annotated[
        str | None,
        BATCHES,
    ]


class DistributedSection(Section):
    """How several processes share a run; see docs/clusters.md."""

    strategy: Annotated[Literal["none", "ddp", "fsdp"], ROUNDING]
    nproc: Annotated[Count | Literal["auto"], ROUNDING] = "auto"
    backend: Annotated[str | None, ROUNDING] = None
    timeout: Annotated[float, Field(gt=0), NOTHING] = 300.0
    max_restarts: Annotated[Index, NOTHING] = 0
    find_unused_parameters: Annotated[bool, ROUNDING] = False
    sync_batchnorm: Annotated[bool, ROUNDING] = False


class TrainerSection(Section):
    """The training loop."""

    max_epochs: Annotated[Count, WEIGHTS]
    max_steps: Annotated[Count | None, WEIGHTS]
    accumulate: Annotated[Count, WEIGHTS]
    clip_norm: Annotated[Annotated[float, Field(gt=0)] | None, WEIGHTS]
    precision: Annotated[Literal["fp32", "bf16", "fp16"], WEIGHTS]
    compile: Annotated[bool, ROUNDING]
    channels_last: Annotated[bool, ROUNDING]
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        ROUNDING,
    ]
    log_every: Annotated[Count, NOTHING]
    val_every: Annotated[Count, RESULTS]
    monitor: Annotated[str | None, WEIGHTS]
    mode: Annotated[Literal["min", "max"], WEIGHTS]
    patience: Annotated[Count | None, WEIGHTS]
    checkpoint: Annotated[Options | None, NOTHING]
    baseline: Annotated[bool, NOTHING]
    digest: Annotated[bool, NOTHING]
    ledger: Annotated[bool, NOTHING]
    progress: Annotated[Literal["auto", "plain", "none"], NOTHING]
    pictures: Annotated[bool, NOTHING]
    report: Annotated[bool, NOTHING]
    ema: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None,
        WEIGHTS,
    ] = None
    # Batches of an epoch at most; null: all.
    limit_batches: Annotated[dict[Literal["train", "val"], Count | None], WEIGHTS] = {}
    overfit_batches: Annotated[Count | None, TRAINING] = None
    skip: Annotated[
        # It raises ValueError for what is not a list of addresses.
        Annotated[list[Any], AfterValidator(lambda value: [value, Skipped.of(value)][0])] | None,
        WEIGHTS,
    ] = None
    fast_dev_run: Annotated[bool | Count, NOTHING] = False  # by the keys that it sets
    warm_start: Annotated[Options, WEIGHTS] = {}
    freeze: Annotated[Options, WEIGHTS] = {}
    groups: Annotated[dict[str, Options | None] | None, WEIGHTS] = None

    @model_validator(mode="before")
    @classmethod
    def _trial(cls, values: Any) -> Any:
        count = isinstance(values, dict) and values.get("fast_dev_run")
        return (
            values
            if not isinstance(count, int) or count < 1
            else {
                **values,
                "checkpoint": None,
                "limit_batches": {"train": +count, "val": +count},  # a number, of `true` as well
                "max_epochs": 1,
                "overfit_batches": None,
                "skip": None,
            }
        )


class SweepSection(Section):
    """The keys of a sweep besides its grid; see docs/sweeps.md."""

    on_preempted: Literal["stop", "continue"] = "stop"
    on_failure: Literal["continue", "stop"] = "continue"
    optuna: Options | None = None


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
    data: DataSection = DataSection()
    files: Annotated[Options | None, NOTHING] = None
    transform: TransformSection
    sampler: Annotated[Node, TRAINING]
    collate: Annotated[
        Node,
        BATCHES,
    ]
    loader: LoaderSection
    bad_samples: BadSamplesSection
    limits: Annotated[Limits, BATCHES] = Limits()
    distributed: DistributedSection
    model: Annotated[Node, WEIGHTS]
    objective: Annotated[Node, WEIGHTS]
    optimizer: Annotated[Nodes, WEIGHTS]
    scheduler: Annotated[Node | None, WEIGHTS]
    schedule: Annotated[ScheduleSection, WEIGHTS] = ScheduleSection()
    trainer: TrainerSection
    tracker: Annotated[Nodes, NOTHING] = {}  # one, or several by name
    resume: Annotated[str | None, NOTHING]
    resume_despite: Annotated[
        list[str],
        NOTHING,
    ]
    task: Annotated[
        Literal[*seams.TASKS],  # type: ignore[valid-type]
        RESULTS,
    ]
    split: Annotated[Literal["train", "val", "both"], RESULTS] = "train"
    epoch: Annotated[Index, RESULTS] = 0
    step: Annotated[Index, RESULTS] = 0
    steps: Annotated[Count | None, RESULTS] = None
    checkpoint: Annotated[str | None, RESULTS] = None
    runs: Annotated[list[str] | None, RESULTS] = None
    run: Annotated[str | None, RESULTS] = None
    sample: Annotated[int | str | list[int | str] | None, RESULTS] = None
    address: Annotated[
        Annotated[list[Index], Field(min_length=2, max_length=2)] | None, RESULTS
    ] = None
    epochs: Annotated[
        Index | Annotated[str, Field(pattern=r"^\d{1,9}:\d{1,9}$")] | None, RESULTS
    ] = None
    rows: Annotated[Annotated[str, Field(pattern=r"^\d{0,12}:\d{0,12}$")] | None, RESULTS] = None
    pack: Annotated[Options, DATA] = {}
    # The file that predictions or a model go to, and the format of an exported model.
    out: Annotated[str | None, RESULTS] = None
    format: Annotated[Literal["weights", "torch", "onnx"], RESULTS] = "weights"
    find: Annotated[Options, RESULTS] = {}
    sweep: Annotated[SweepSection, NOTHING] = SweepSection()
    lr_find: Annotated[Options, RESULTS] = {}


# Arguments with another effect than their section.
OF_ARGUMENTS = {"files.options": DATA, "trainer.limit_batches.val": RESULTS}
# Keys that are arguments of a task.
TASK_KEYS = tuple(
    name
    for name, field in Config.model_fields.items()
    if name != "task" and RESULTS in field.metadata
)
