"""How a model is spread over the ranks: not at all, a copy each (DDP), or in parts (FSDP2).

The model itself stays what the configuration built, with its own names: DDP's wrapper is used for
training's forward pass only, and `fully_shard` turns weights into DTensors in their places.

For losses that compare samples, as contrastive ones do, `gathered` gives each rank the rows of all,
with gradients: such a loss is that of the global batch on every rank, and so are its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, distributed, nn
from torch.distributed.nn.functional import all_reduce

from penstock.distributed.group import Group
from penstock.order.plan import Request

Strategy = Literal["none", "ddp", "fsdp"]


@dataclass(frozen=True)
class Parallel:
    """How to spread a model.

    Attributes:
        strategy: "none", "ddp" or "fsdp".
        find_unused_parameters: DDP's, for models that leave weights out of some steps.
        sync_batchnorm: batch norms measure the global batch; on CUDA only.
    """

    strategy: Strategy = "none"
    find_unused_parameters: bool = False
    sync_batchnorm: bool = False


def prepare(model: nn.Module, parallel: Parallel, group: Group) -> nn.Module:
    """The model on this rank's device; under FSDP its weights are this rank's parts of them.

    The optimizer has to be made from the result.
    """
    device = torch.device(group.world.device)
    if parallel.sync_batchnorm and device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device)
    if parallel.strategy == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (group.world.size,))
        # Blocks first, so that a block's weights are whole only while it runs.
        for block in _blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The outermost members of lists and sequences that have weights; as a rule, layers."""
    for child in model.children():
        if isinstance(child, (nn.Sequential, nn.ModuleList)):
            yield from (block for block in child if any(True for _ in block.parameters()))
        else:
            yield from _blocks(child)


def wrap(model: nn.Module, parallel: Parallel, group: Group) -> Callable[..., Any]:
    """The forward pass of a model for training: after its backward pass, gradients are means over
    the ranks.
    """
    if parallel.strategy != "ddp" or group.alone:
        return model.forward  # the call of a module costs 2 us more
    device = torch.device(group.world.device)
    return nn.parallel.DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        find_unused_parameters=parallel.find_unused_parameters,
    )


def same_buffers(model: nn.Module, group: Group) -> None:
    """Give all ranks rank 0's buffers: running means are each rank's own after a step."""
    if not group.alone:
        for buffer in model.buffers():
            distributed.broadcast(buffer, src=0)


def like(values: Mapping[str, Any], shaped: Mapping[str, Any]) -> dict[str, Any]:
    """Whole tensors, sharded as those of the same name in `shaped` are; all ranks have them."""
    parts = dict(values)
    for name, value in values.items():
        target: Any = shaped.get(name)
        if hasattr(target, "placements") and not hasattr(value, "placements"):
            from torch.distributed.tensor import distribute_tensor

            # Every rank has the whole tensor and takes its part; nothing is sent.
            parts[name] = distribute_tensor(
                value.to(target.device), target.device_mesh, target.placements, src_data_rank=None
            )
    return parts


# The ranks that work on a batch now, and this one's request; None: this process works alone.
_ranks: ContextVar[tuple[Group, Request] | None] = ContextVar("ranks", default=None)


@contextmanager
def together(group: Group, request: Request) -> Iterator[None]:
    """All ranks work on their shares of one batch inside, and may call `gathered`."""
    token = _ranks.set(None if group.alone else (group, request))
    try:
        yield
    finally:
        _ranks.reset(token)


def gathered(rows: Tensor) -> Tensor:
    """The rows of all ranks' shares of this batch, in the order of the ranks.

    To be called in an objective's `loss` or `outputs`, by all ranks, equally often. Alone, and
    where a single rank looks at samples (a report's predictions), these are `rows` themselves.

    Args:
        rows: [n, ...], with as many rows as this rank has samples; n may differ between ranks.

    Returns:
        [N, ...], the same on all ranks. The backward pass adds its gradients up over the ranks, so
        a loss of all rows has the gradients of the global batch.
    """
    now = _ranks.get()
    if now is None:
        return rows
    group, request = now
    own = rows if request.valid else rows[:0]  # a share that is all padding only takes part
    every = [
        own if rank == group.world.rank else own.new_zeros(count, *own.shape[1:])
        for rank, count in enumerate(group.gather(len(own)))
    ]
    # The sum over the ranks, of the rows and, backwards, of their gradients.
    return all_reduce(torch.cat(every))
