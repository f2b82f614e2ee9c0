"""What is right key by key, and silently wrong together: a run that does something else than it
seems to.

Nothing has been built. Other options that exclude each other are refused by the part that they are
of, when it is made: before a run's folder is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config.messages import nearest
from penstock.config.schema import Config
from penstock.config.targets import arguments, called, walk
from penstock.distributed import world
from penstock.errors import Problem
from penstock.order.samplers import Sequential
from penstock.order.streams import StreamOrder, is_stream
from penstock.transforms.image import Normalize

# Tasks without a model.
_OF_DATA = ("check", "diff", "digest", "pack", "replay", "report", "runs", "where")


def find(config: Config) -> list[Problem]:
    """The problems of a configuration of which every key and every target is right."""
    return [*_batches(config), *_rows(config), *_pixels(config), *_validation(config)]


def _batches(config: Config) -> Iterator[Problem]:
    """The same batches at the same addresses, on all ranks."""
    loader, count, name = config.loader, world.launched_size(), world.launcher_name()
    alone = config.distributed.strategy == "none"
    if alone and count > 1:
        yield Problem(
            "distributed.strategy",
            f"none, but {count} processes were started ({name}={count}): each would train alone on "
            "all of the data; set distributed=ddp, or start one process",
        )
    saves = config.task == "fit" and config.trainer.checkpoint is not None
    works = loader.backend != "main" and loader.num_workers != 0
    if not loader.in_order and works and (saves or not alone):
        yield Problem(
            "loader.in_order",
            "false gives ranks different batches in a step, and a checkpoint is an address; set "
            "loader.in_order=true, or trainer.checkpoint=null on one rank",
        )
    if config.batch.size is None and config.batch.tail != "keep":
        yield Problem(
            "batch.tail",
            f"{config.batch.tail} is for batches, but batch.size=null passes samples through one "
            "by one; set batch.tail=keep, or batch.size",
        )
    if config.batch.size is None and not alone:
        yield Problem(
            "batch.size",
            "null passes samples through one by one, and ranks share batches; set batch.size",
        )
    half = config.trainer.precision == "fp16" and config.task not in _OF_DATA
    if half and world.resolve_device(config.trainer.device) == "cpu":
        yield Problem(
            "trainer.precision",
            "fp16 needs an accelerator, and this run is on the CPU; set trainer.precision=bf16 or "
            "fp32",
        )


def _rows(config: Config) -> Iterator[Problem]:
    """Each row once: streams have orders of their own, and training is not validated on itself."""
    from torch.utils.data import DistributedSampler

    dataset, sampler, data = called(config.dataset), called(config.sampler), config.data
    orders = isinstance(sampler, type) and issubclass(sampler, StreamOrder)
    if is_stream(dataset) and not orders and sampler is not Sequential:
        yield Problem(
            "sampler",
            f"{sampler.__name__} chooses rows, but {dataset.__name__} is a stream, which can only "
            "be read forwards; set sampler=stream, which shuffles with a buffer",
        )
    if isinstance(dataset, type) and not is_stream(dataset) and orders:
        yield Problem(
            "sampler",
            f"{sampler.__name__} is for streams, but {dataset.__name__} has rows that can be "
            "chosen; set sampler=random or sampler=sequential",
        )
    if isinstance(sampler, type) and issubclass(sampler, DistributedSampler):
        yield Problem(
            "sampler._target_",
            "DistributedSampler would share the data out a second time: every global batch is "
            "formed first, and then dealt out to the ranks; set sampler=random",
        )
    takes = [arguments(called(node)) for _, node in walk(config.dataset, "dataset")]
    differ = data.divides or any(
        name in ("split", "train") or one.kind is one.VAR_KEYWORD
        for known in takes
        for name, one in known.items()
    )
    both = data.validate and data.val_dataset is None and config.task in ("fit", "validate")
    if both and not differ:
        yield Problem(
            "dataset",
            f"{dataset.__name__} takes no argument `split` (or `train`), so training and "
            "validation would read the same samples; add it, or write a node for validation under "
            "data.val_dataset; or divide its rows: data.split.val=0.2",
        )


def _pixels(config: Config) -> Iterator[Problem]:
    """Pixels are normalised once, views differ, and validation is of samples as they are."""
    for split in ("train", "val"):
        steps = {
            f"transform.{section}.{name}": called(node)
            for section in (split, f"{split}_batch")
            for name, node in getattr(config.transform, section).items()
        }
        normal = [
            key
            for key, step in steps.items()
            if isinstance(step, type) and issubclass(step, Normalize)
        ]
        for key in normal[1:]:
            yield Problem(
                key,
                f"normalises what {normal[0]} has normalised; leave one of them out, "
                f"{normal[0]}=null",
            )
        for key, step in steps.items():
            if split == "val" and getattr(step, "together", 1) > 1:
                yield Problem(
                    key,
                    "mixes samples of validation, whose metrics are of samples as they are; move "
                    "it to transform.train_batch",
                )
            views = config.transform.views > 1 and key.startswith("transform.train_batch.")
            if views and step is not None and key not in normal:
                yield Problem(
                    key,
                    "does the same to all views of a sample (transform.views). Do it in "
                    f"transform.train, as transform=views does, or leave it out: {key}=null",
                )


def _validation(config: Config) -> Iterator[Problem]:
    """What follows validation has some, of a metric that is measured, in its direction."""
    trainer, split, measured = config.trainer, config.split, config.objective.get("metrics") or {}
    trains, schedule = config.task == "fit", str((config.scheduler or {}).get("_target_"))
    if split == "both" and config.task not in ("check", "pack"):
        yield Problem(
            "split",
            f"both is for task=check and task=pack; task={config.task} reads one of them: set "
            "split=train or split=val",
        )
    follows = {
        "split": (split if split == "val" else None, "train"),
        "trainer.monitor": (trainer.monitor if trains else None, "null"),
        "trainer.patience": (trainer.patience if trains else None, "null"),
        "scheduler": (schedule if trains and schedule.endswith("OnPlateau") else None, "none"),
    }
    for key, (value, off) in follows.items() if not config.data.validate else ():
        if value is not None:
            yield Problem(
                key,
                f"{value}, but there is no validation, as data.validate is false; set {key}={off}",
            )
    if not trains or trainer.monitor is None or "_target_" in measured:
        return
    known = ["loss", *(metric for metric, node in measured.items() if node is not None)]
    name, objective = trainer.monitor.removeprefix("val/"), called(config.objective)
    metric = name.split("/")[0]
    # What an objective of a person's own measures shows on the first batch.
    if metric not in known and not (hasattr(objective, "loss") or hasattr(objective, "step")):
        yield Problem(
            "trainer.monitor",
            f"the objective measures no {name!r}{nearest(name, known)}; it has {', '.join(known)}",
        )
    more = getattr(called(measured.get(metric)), "higher_is_better", None)
    better = "min" if metric == "loss" else more if more is None else "max" if more else "min"
    if better not in (None, trainer.mode):
        yield Problem(
            "trainer.mode",
            f"{trainer.mode} would keep the worst of {name}; set trainer.mode={better}",
        )
