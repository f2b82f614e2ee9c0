"""What is right key by key, and silently wrong together: a run that does something else than it
seems to.

A rule is a row: whether it is broken, the key, and the reason with a way out. Nothing has been
built. Other options that exclude each other are refused by the part that they are of, when it is
made: before a run's folder is claimed.
"""

from __future__ import annotations

from penstock.config.messages import nearest
from penstock.config.schema import Config
from penstock.config.targets import arguments, called, walk
from penstock.distributed import world
from penstock.errors import Problem
from penstock.order.plan import StreamOrder, is_stream
from penstock.order.samplers import Sequential
from penstock.transforms.image import Normalize


def find(config: Config) -> list[Problem]:
    """The problems of a configuration whose keys and targets are all valid."""
    return [
        Problem(key, reason)
        for rules in (_batches, _rows, _pixels, _validation)
        for broken, key, reason in rules(config)
        if broken
    ]


def _batches(config: Config) -> list[tuple[object, str, str]]:
    """The same batches at the same addresses, on all ranks."""
    loader, batch, trainer = config.loader, config.batch, config.trainer
    count, alone = world.from_environment("cpu").size, config.distributed.strategy == "none"
    return [
        (
            alone and count > 1,
            "distributed.strategy",
            f"none, but {count} processes were started: each "
            "would train alone on all of the data; set distributed=ddp, or start one process",
        ),
        (
            not loader.in_order
            and ((config.task == "fit" and trainer.checkpoint is not None) or not alone)
            and (loader.backend != "main" and loader.num_workers != 0),
            "loader.in_order",
            "false gives ranks different batches in a step, and a checkpoint is an address; set "
            "loader.in_order=true, or trainer.checkpoint=null on one rank",
        ),
        (
            batch.size is None and batch.tail != "keep",
            "batch.tail",
            f"{batch.tail} is for batches, but batch.size=null passes samples through one by one; "
            "set batch.tail=keep, or batch.size",
        ),
        (
            batch.size is None and not alone,
            "batch.size",
            "null passes samples through one by one, and ranks share batches; set batch.size",
        ),
        (
            trainer.precision == "fp16"
            and config.task
            in ("fit", "validate", "test", "predict", "export", "profile", "lr_find")
            and world.resolve_device(trainer.device) == "cpu",
            "trainer.precision",
            "fp16 needs an accelerator, and this run is on the CPU; set trainer.precision=bf16 or "
            "fp32",
        ),
    ]


def _rows(config: Config) -> list[tuple[object, str, str]]:
    """Each row once: streams have orders of their own, and training is not validated on itself."""
    dataset, sampler, data = called(config.dataset), called(config.sampler), config.data
    bases = [base.__name__ for base in getattr(sampler, "__mro__", ())]
    orders = StreamOrder.__name__ in bases
    differ = any(
        one.name in ("split", "train") or one.kind is one.VAR_KEYWORD
        for _, node in walk(config.dataset, "dataset")
        for one in arguments(called(node)).values()
    )
    return [
        (
            is_stream(dataset) and not orders and sampler is not Sequential,
            "sampler",
            f"{sampler.__name__} chooses rows, but {dataset.__name__} is a stream, which can only "
            "be read forwards; set sampler=stream, which shuffles with a buffer",
        ),
        (
            isinstance(dataset, type) and not is_stream(dataset) and orders,
            "sampler",
            f"{sampler.__name__} is for streams, but {dataset.__name__} has rows that can be "
            "chosen; set sampler=random or sampler=sequential",
        ),
        (
            config.task == "predict" and config.dataset.get("root") is None,
            "dataset.root",
            "is missing: what to predict, a folder or a file; set dataset.root=NEW",
        ),
        (
            "DistributedSampler" in bases,
            "sampler._target_",
            "DistributedSampler would share the data out a second time: every global batch is "
            "formed first, and then dealt out to the ranks; set sampler=random",
        ),
        (
            config.task in ("fit", "validate")
            and (data.validates and data.val_dataset is None)
            and not (differ or data.folds or any(data.split.values())),
            "dataset",
            f"{dataset.__name__} takes no argument `split` (or `train`), so training and "
            "validation would read the same samples; add it, or write a node for validation under "
            "data.val_dataset; or divide its rows: data.split.val=0.2",
        ),
    ]


def _pixels(config: Config) -> list[tuple[object, str, str]]:
    """Pixels are normalised once, views differ, and validation is of samples as they are."""
    steps = {
        (split, f"transform.{section}.{name}"): called(node)
        for split in ("train", "val")
        for section in (split, f"{split}_batch")
        for name, node in getattr(config.transform, section).items()
        if node is not None
    }
    normal = [at for at, step in steps.items() if Normalize in getattr(step, "__mro__", ())]
    first = dict(reversed(normal))  # by split
    return [
        *(
            (
                first[split] != key,
                key,
                f"normalises what {first[split]} has normalised; leave one of them out, "
                f"{first[split]}=null",
            )
            for split, key in normal
        ),
        *(
            (
                split == "val" and getattr(step, "together", 1) > 1,
                key,
                "mixes samples of validation, whose metrics are of samples as they are; move it to "
                "transform.train_batch",
            )
            for (split, key), step in steps.items()
        ),
        *(
            (
                split == "train"
                and config.transform.views > 1
                and ("_batch." in key and (split, key) not in normal),
                key,
                "does the same to all views of a sample (transform.views). Do it in "
                f"transform.train, as transform=views does, or leave it out: {key}=null",
            )
            for split, key in steps
        ),
    ]


def _validation(config: Config) -> list[tuple[object, str, str]]:
    """What follows validation has some, of a metric that is measured, in its direction."""
    trainer, split, fit = config.trainer, config.split, config.task == "fit"
    schedule, monitor = str((config.scheduler or {}).get("_target_")), trainer.monitor or ""
    none = "but there is no validation, as data.validate is false; set"
    follows = [
        (split == "val", "split", f"val, {none} split=train"),
        (fit and monitor, "trainer.monitor", f"{monitor}, {none} trainer.monitor=null"),
        (
            fit and trainer.patience,
            "trainer.patience",
            f"{trainer.patience}, {none} trainer.patience=null",
        ),
        (
            fit and schedule.endswith("OnPlateau"),
            "scheduler",
            f"{schedule}, {none} scheduler=none",
        ),
    ]
    measured, objective = config.objective.get("metrics") or {}, called(config.objective)
    known = ["loss", *(metric for metric, node in measured.items() if node is not None)]
    name = monitor.removeprefix("val/")
    metric, monitors = name.partition("/")[0], fit and name and "_target_" not in measured
    kind = called(measured.get(metric)) if monitors else None
    better = {True: "max", False: "min"}.get(
        metric != "loss" and getattr(kind, "higher_is_better", None)  # type: ignore[arg-type]
    )
    return [
        *(follows if not config.data.validates else ()),
        (
            split == "both" and config.task not in ("check", "pack"),
            "split",
            f"both is for task=check and task=pack; task={config.task} reads one of them: set "
            "split=train or split=val",
        ),
        (
            # What an objective of a person's own measures shows on the first batch.
            monitors and metric not in known and objective.__module__.startswith("penstock."),
            "trainer.monitor",
            f"the objective measures no {name!r}{nearest(name, known)}; it has {', '.join(known)}",
        ),
        (
            monitors and better not in (None, trainer.mode),
            "trainer.mode",
            f"{trainer.mode} would keep the worst of {name}; set trainer.mode={better}",
        ),
    ]
