"""Notices on requests that a run does not fulfil, or not as they seem; logged once a run."""

from __future__ import annotations

from collections.abc import Iterator

from penstock import program
from penstock.config import nodes
from penstock.config.announcement import name_of
from penstock.config.hydra_loader import overrides
from penstock.config.schema import Config
from penstock.config.signatures import arguments
from penstock.distributed import world
from penstock.order.samplers import BatchStrategy, Identity

# More processes than that wait for a core, whatever they read.
_MOST_PER_CORE = 2
_MOST_FOR_DEEP = 1e-3  # a learning rate


def find(config: Config) -> Iterator[str]:
    """The notices for a configuration that passed preflight."""
    count, cores = config.loader.num_workers, world.usable_cpus()
    if config.loader.pin_memory and not world.has_accelerator():
        yield "loader.pin_memory: there is no accelerator here to copy to, so nothing is pinned"
    processes = config.loader.backend in ("process", "auto")
    # Here, for all loaders at once; torch would warn for each.
    if processes and isinstance(count, int) and count > _MOST_PER_CORE * cores:
        yield (
            f"loader.num_workers: {count} processes for {cores} cores, which is likely to be "
            "slower than fewer; loader=fast finds out how many help"
        )
    if config.batch.balance is not None and config.distributed.strategy == "none":
        yield (
            "batch.balance: there is one rank, which has all rows of a batch; set "
            "distributed=ddp for more"
        )
    yield from _unused_batch_size(config)
    yield from _rate_of_another_model(config)
    idle = world.outside_of_srun()
    if idle and (config.distributed.strategy == "none" or idle.endswith("machines")):
        yield (
            f"Slurm: the job has {idle}, and this process was not started by srun, so it uses "
            "none of the others; start it with srun "
            f"{program.text('distributed=ddp')}"
        )
    yield from nodes.own_steps(config)


def _unused_batch_size(config: Config) -> Iterator[str]:
    """A sampler that forms its own batches takes no batch.size; validation still does."""
    sampler, size = nodes.called(config.sampler), config.batch.size
    if not isinstance(sampler, type) or not issubclass(sampler, BatchStrategy) or size is None:
        return
    what = (
        f"batch.size: {size} is for validation only; {sampler.__name__} makes training batches of"
    )
    if issubclass(sampler, Identity):
        counts = {**arguments(sampler).defaults, **config.sampler}
        rows = counts["identities"] * counts["samples"]
        if rows != size:
            yield (
                f"{what} {rows} rows, sampler.identities={counts['identities']} x "
                f"sampler.samples={counts['samples']}"
            )
    elif "batch_size" not in arguments(sampler).names:
        yield f"{what} its own size"


def _rate_of_another_model(config: Config) -> Iterator[str]:
    """A recipe sets the rate that its own small network learns with, whichever model is typed."""
    target, rate = str(config.model.get("_target_")), config.optimizer.get("lr")
    typed = any(word.lstrip("+").startswith("optimizer") for word in overrides())
    named = any(library in target.lower() for library in ("torchvision", "timm", "transformers"))
    if named and not typed and isinstance(rate, float) and rate > _MOST_FOR_DEEP:
        yield (
            f"optimizer.lr: {rate:g} is for a small network, and may ruin {name_of(config.model)}; "
            f"optimizer.lr=3e-4 suits networks of torchvision, timm and transformers"
        )
