"""The typed schema of every key of ours in a configuration; docs/keys.md lists them.

The comments in conf/ say what a key does; here are its type and bounds. `config/parsing.py` makes a
`Config` of plain values. pydantic's import costs 0.1 s, once.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from pipeline.config import disclosure
from pipeline.files.limits import Limits
from pipeline.order.skipped import Skipped
from pipeline.ranges import Count, Index, Seed

Node = dict[str, Any]  # a part: `_target_` and its arguments
Task = Literal["fit", "validate", "digest", "replay", "verify", "diff", "check", "pack",
               "profile", "tune", "lr_find", "report", "runs", "show", "where",
               "without"]  # fmt: skip
RunState = Literal["done", "running", "failed", "preempted", "interrupted", "killed", "damaged"]


class Section(BaseModel):
    """A mapping with known keys; a wrong type is refused, never converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class BatchSection(Section):
    """How positions are cut into batches."""

    size: Count | None
    tail: Literal["keep", "drop", "pad"]
    val_size: Count | None
    balance: str | None = None


class TransformSection(Section):
    """Steps by name, in order, for each split; a step that is None is left out.

    `train` and `val` are for samples, before they are collated, the others for batches.
    """

    train: dict[str, Node | None]
    val: dict[str, Node | None]
    train_batch: dict[str, Node | None] = {}
    val_batch: dict[str, Node | None] = {}
    batch_on: Literal["auto", "loader", "device"] = "auto"


class RaySection(Section):
    """Where the actors of `loader.backend=ray` run; see docs/loading.md."""

    address: str | None = None
    num_actors: Count | Literal["auto"] = "auto"
    cpus_per_actor: Annotated[float, Field(ge=0, le=10_000)] = 1.0
    # Ray writes the names into a list with commas, on a command line of its own.
    resources: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][\w.:-]{0,99}$")],
                    Annotated[float, Field(gt=0, le=10_000)]] = {}  # fmt: skip
    runtime_env: dict[str, Any] = {}
    window: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0


class LoaderSection(Section):
    """Who makes the batches and how far ahead; all but `backend` as in torch's DataLoader.

    `config/loader_options.py` resolves "auto" and None, `config/tuned.py` "tuned".
    """

    backend: Literal["auto", "process", "thread", "main", "ray"]
    num_workers: Index | Literal["auto", "tuned"]
    prefetch_factor: Count | None
    persistent_workers: bool | None
    pin_memory: bool | None
    pin_memory_device: str
    timeout: Annotated[float, Field(ge=0)] | None
    max_deaths: Count
    worker_init_fn: str | None
    multiprocessing_context: str | None
    in_order: bool
    generator: int | None
    max_memory: Annotated[float, Field(gt=0)] | None = None
    share: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = None
    share_size: Annotated[float, Field(gt=0)] | None = None
    slow_memory: Annotated[float, Field(ge=0)] = 0.25
    cost: str | None = None
    ray: RaySection = RaySection()


class BadSamplesSection(Section):
    """How unreadable samples are handled; see docs/bad_samples.md."""

    on_error: Literal["raise", "substitute", "skip"]
    budget: Index | Annotated[float, Field(gt=0, le=1)]
    quarantine: str | None


class TuneSection(Section):
    """Limits of `task=tune`."""

    seconds: Annotated[float, Field(gt=0)] = 60.0
    workers: Count | None = None


class ProfileSection(Section):
    """How often machines fail, for the interval of checkpoints that `task=profile` recommends."""

    node_hours_between_failures: Annotated[float, Field(gt=0)] = 6300.0
    nodes: Count = 1


class PackSection(Section):
    """Options of `task=pack` and `dataset.packed=auto`; see docs/packing.md."""

    size: Count | None = None
    square: bool = True
    format: Literal["pixels", "encoded"] = "pixels"
    decoder: Literal["auto", "native", "reader"] = "auto"
    out: str | None = None


class LrFindSection(Section):
    """The first and the last learning rate of `task=lr_find`."""

    lowest: Annotated[float, Field(gt=0)] = 1e-7
    highest: Annotated[float, Field(gt=0)] = 1.0


class FindSection(Section):
    """Which runs `task=runs` lists, and in which order."""

    state: RunState | list[RunState] | None = None
    since: str | None = None
    command: str | None = None
    sort: Literal["started", "best"] = "started"
    limit: Count | None = 50


class DiffSection(Section):
    """What `task=diff` does besides its tables."""

    weights: bool = True
    page: str | None = None


class DistributedSection(Section):
    """How several processes share a run; see docs/training.md."""

    strategy: Literal["none", "ddp", "fsdp"]
    nproc: Count | Literal["auto"] = "auto"
    backend: str | None = None
    timeout: Annotated[float, Field(gt=0)] = 300.0
    max_restarts: Index = 0
    find_unused_parameters: bool = False
    sync_batchnorm: bool = False


class StudySection(Section):
    """How optuna chooses what each job of a sweep tries, and ends hopeless ones; sweep=optuna."""

    trials: Count
    sampler: Literal["tpe", "random", "grid"]
    pruner: Literal["none", "median", "asha"]
    startup: Index
    warmup: Count
    timeout: Annotated[float, Field(gt=0)] | None
    seed: Index


class SweepSection(Section):
    """What a sweep does beside its grid; see docs/sweeps.md."""

    on_preempted: Literal["stop", "continue"]
    on_failure: Literal["continue", "stop"] = "continue"
    retries: Index = 0
    jobs: Count | Literal["auto"] = 1
    seeds: Count | None = None
    optuna: StudySection | None = None


class CheckpointSection(Section):
    """When to save and what to keep: the best, and the last `keep_last`."""

    every_epochs: Count
    every_steps: Count | None
    every_minutes: Annotated[float, Field(gt=0)] | None
    keep_last: Count
    background: bool
    memory_every_steps: Count | Literal["auto"] | None = "auto"


class LimitBatches(Section):
    """Batches of an epoch at most; None: all."""

    train: Count | None = None
    val: Count | None = None


class TrainerSection(Section):
    """The training loop."""

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
    checkpoint: CheckpointSection | None
    baseline: bool
    digest: bool
    ledger: bool
    progress: Literal["auto", "rich", "plain", "none"]
    pictures: bool
    report: bool
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    limit_batches: LimitBatches = LimitBatches()
    overfit_batches: Count | None = None
    skip: list[Any] | None = None
    fast_dev_run: bool = False

    def short(self, split: str) -> tuple[int | None, bool, Skipped]:
        """`most`, `again` and `skipped` of a split's plan; a trial run skips nothing."""
        limit = getattr(self.limit_batches, split) if self.overfit_batches is None else None
        most = 1 if self.fast_dev_run else limit or self.overfit_batches
        skip = self.skip if split == "train" and not self.fast_dev_run else None
        return most, split == "train" and self.overfit_batches is not None, Skipped.of(skip)


class Config(Section):
    """A whole configuration: plain values, nothing of hydra left.

    Parts (`dataset`, `sampler`, ...) stay nodes; `pipeline.build` makes them. The keys after
    `task` are set by the tasks that use them.

    Attributes:
        resume: a run's folder, one of its checkpoints, or "auto" for what lies in `run_dir`.
        resume_despite: keys that may differ from those of the run that is resumed.
    """

    seed: Seed
    batch: BatchSection
    run_dir: str
    cache_dir: str
    dataset: Node
    transform: TransformSection
    sampler: Node
    collate: Node
    loader: LoaderSection
    bad_samples: BadSamplesSection
    limits: Limits = Limits()
    pack: PackSection = PackSection()
    tune: TuneSection = TuneSection()
    profile: ProfileSection = ProfileSection()
    lr_find: LrFindSection = LrFindSection()
    diff: DiffSection = DiffSection()
    distributed: DistributedSection
    model: Node
    objective: Node
    optimizer: Node
    scheduler: Node | None
    trainer: TrainerSection
    tracker: Node = {}  # one, or several by name
    resume: str | None
    resume_despite: list[str]
    sweep: SweepSection
    task: Task
    split: Literal["train", "val", "both"] = "train"
    epoch: Index = 0
    step: Index = 0
    steps: Count | None = None
    checkpoint: str | None = None
    runs: list[str] | None = None
    run: str | None = None
    sample: int | str | list[int | str] | None = None
    address: Annotated[list[Index], Field(min_length=2, max_length=2)] | None = None
    epochs: Index | Annotated[str, Field(pattern=r"^\d{1,9}:\d{1,9}$")] | None = None
    find: FindSection = FindSection()

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


# Tasks that only read files of runs, and need no torch.
READING = ("report", "diff", "runs", "show")
TASK_KEYS = ("split", "epoch", "step", "steps", "checkpoint", "runs", "run", "find", "tune",
             "profile", "lr_find", "diff", "sample", "address", "epochs")  # fmt: skip
