"""The typed schema of everything that is ours in a configuration.

`config/parsing.py` makes a `Config` of plain values. What options mean together, and what the
`_target_` nodes call, `pipeline.checks` looks at. pydantic's import costs 0.1 s, once.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from pipeline.config import disclosure
from pipeline.files.limits import Limits

Node = dict[str, Any]  # a part: `_target_` and its arguments
Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
Task = Literal["fit", "validate", "digest", "replay", "verify", "check", "pack",
               "profile", "tune", "lr_find"]  # fmt: skip


class Section(BaseModel):
    """A mapping with known keys; a wrong type is refused, never converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class BatchSection(Section):
    """How positions are cut into batches.

    Attributes:
        size: samples in a global batch, over all ranks; None turns automatic batching off: a
            sample is a batch of one, and a collate function of your own gets the sample itself.
        tail: what becomes of the smaller last batch. Validation always keeps its tail.
        val_size: the same as `size` for validation; None takes `size`.
    """

    size: Count | None
    tail: Literal["keep", "drop", "pad"]
    val_size: Count | None


class TransformSection(Section):
    """Steps by name, in order, for each split; a step that is None is left out.

    Attributes:
        train, val: of samples, before they are collated.
        train_batch, val_batch: of whole batches, after that.
        batch_on: where batches are transformed: "loader", by whoever makes them; "device", when
            they have arrived where the model is; "auto" is device if that is an accelerator.
    """

    train: dict[str, Node | None]
    val: dict[str, Node | None]
    train_batch: dict[str, Node | None] = {}
    val_batch: dict[str, Node | None] = {}
    batch_on: Literal["auto", "loader", "device"] = "auto"


class LoaderSection(Section):
    """Who makes the batches and how far ahead; all but `backend` as in torch's DataLoader.

    Attributes:
        backend: "auto" takes threads where `transforms/image_decoding.py` decodes, else
            processes.
        num_workers: "auto" begins with few and climbs while that helps; "tuned" takes what
            `task=tune` found for the dataset on this machine.
        max_memory: GiB that a process may take with its workers when they are tuned; None: half of
            what there is to have.
        persistent_workers: None keeps worker processes from one epoch to the next.
        pin_memory: None pins when there is an accelerator.
        timeout: seconds without a sign of life (a sample begun, a stage) after which a worker hangs
            and is replaced; None is 300, 0 waits for ever.
        max_deaths: workers that may die or hang on one batch before the run stops.
        worker_init_fn: dotted name of a function in a trusted package.
        generator: seed of the generator handed to the DataLoader.
    """

    backend: Literal["auto", "process", "thread", "main"]
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


class BadSamplesSection(Section):
    """What becomes of samples that cannot be read; see docs/bad_samples.md.

    Attributes:
        on_error: "raise" ends the run, "substitute" takes another sample, "skip" makes the batch
            smaller. Validation skips what training would substitute.
        budget: how many samples of an epoch and split may be left out before the run stops: a
            count, or a share (0.01) of them, of which one is always allowed.
        quarantine: quarantine.csv of an earlier run, whose samples are not read again.
    """

    on_error: Literal["raise", "substitute", "skip"]
    budget: Index | Annotated[float, Field(gt=0, le=1)]
    quarantine: str | None


class TuneSection(Section):
    """What `task=tune` may take.

    Attributes:
        seconds: that it ends within, model and dataset not counted.
        workers: at most; None: twice the cores, or 16 if that is more.
    """

    seconds: Annotated[float, Field(gt=0)] = 60.0
    workers: Count | None = None


class PackSection(Section):
    """What `task=pack` and `dataset.packed=auto` make of a dataset; see docs/packing.md.

    Attributes:
        size: pixels of the shorter side of pictures; None packs samples as they are.
        square: cut a square out of the middle after that, so that all have one shape.
        format: "pixels", or "encoded" for the files that pictures come from.
        decoder: who makes squares: "native" (pipeline/native), "reader" for the dataset's own and
            torchvision, or "auto" for native where it was built and samples hold nothing that
            would have to move along.
        out: folder for packs, one a split; None keeps them in `cache_dir` by fingerprint.
    """

    size: Count | None = None
    square: bool = True
    format: Literal["pixels", "encoded"] = "pixels"
    decoder: Literal["auto", "native", "reader"] = "auto"
    out: str | None = None


class LrFindSection(Section):
    """The first and the last learning rate of `task=lr_find`."""

    lowest: Annotated[float, Field(gt=0)] = 1e-7
    highest: Annotated[float, Field(gt=0)] = 1.0


class DistributedSection(Section):
    """How several processes share a run.

    Attributes:
        strategy: "ddp" gives each a copy of the model, "fsdp" a part of it.
        nproc: processes to start on this machine; "auto" takes one a GPU, or one a core without
            any. Under torchrun, which starts them itself, it is not used.
        backend: of torch.distributed; None takes nccl on GPUs and gloo elsewhere.
        timeout: seconds that processes wait for each other.
        max_restarts: how often all processes are started again, from the last checkpoint, when
            one was killed.
    """

    strategy: Literal["none", "ddp", "fsdp"]
    nproc: Count | Literal["auto"] = "auto"
    backend: str | None = None
    timeout: Annotated[float, Field(gt=0)] = 300.0
    max_restarts: Index = 0
    find_unused_parameters: bool = False
    sync_batchnorm: bool = False


class SweepSection(Section):
    """After a job that was asked to stop."""

    on_preempted: Literal["stop", "continue"]


class CheckpointSection(Section):
    """When to save and what to keep: the best, and the last `keep_last`.

    Attributes:
        every_epochs: epochs between two checkpoints.
        every_steps: optimizer steps between two; None: only by epochs.
        every_minutes: the same in minutes.
        background: write them in a thread while the training goes on.
    """

    every_epochs: Count
    every_steps: Count | None
    every_minutes: Annotated[float, Field(gt=0)] | None
    keep_last: Count
    background: bool


class LimitBatches(Section):
    """Batches of an epoch at most; None: all."""

    train: Count | None = None
    val: Count | None = None


class TrainerSection(Section):
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
    checkpoint: CheckpointSection | None
    baseline: bool
    digest: bool
    ledger: bool
    progress: Literal["auto", "rich", "plain", "none"]
    pictures: bool
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    limit_batches: LimitBatches = LimitBatches()
    overfit_batches: Count | None = None
    fast_dev_run: bool = False

    def short(self, split: str) -> tuple[int | None, bool]:
        """`most` and `again` of a split's plan."""
        limit = getattr(self.limit_batches, split) if self.overfit_batches is None else None
        most = 1 if self.fast_dev_run else limit or self.overfit_batches
        return most, split == "train" and self.overfit_batches is not None


class Config(Section):
    """A whole configuration: plain values, nothing of hydra left.

    Parts (`dataset`, `sampler`, ...) stay nodes; `pipeline.build` makes them. The keys after
    `task` are set by the tasks that use them.

    Attributes:
        resume: a run's folder, one of its checkpoints, or "auto" for what lies in `run_dir`.
        resume_despite: keys that may differ from those of the run that is resumed.
    """

    seed: Index
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
    lr_find: LrFindSection = LrFindSection()
    distributed: DistributedSection
    model: Node
    objective: Node
    optimizer: Node
    scheduler: Node | None
    trainer: TrainerSection
    tracker: Node
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


TASK_KEYS = ("split", "epoch", "step", "steps", "checkpoint", "runs", "tune", "lr_find")
