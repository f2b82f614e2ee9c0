"""The rows of all ranks on each of them, with gradients: for losses that compare samples.

A contrastive loss, say, tells a sample from all others of its batch. Taken over `gathered` rows it
is that of the global batch on every rank, and so are its gradients, however many ranks there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from penstock.distributed.group import Group
from penstock.order.plan import Request

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
    ends = list(accumulate(group.gather(len(own))))
    everything: Tensor = _Gathered.apply(own, group, ends)
    return everything


def share() -> int:
    """The number of this share among those whose rows are `gathered`, in their order."""
    now = _ranks.get()
    return 0 if now is None else now[0].world.rank


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Group, ends: list[int]) -> Tensor:
        ctx.group, ctx.stop = group, ends[group.world.rank]
        ctx.start = ctx.stop - len(own)
        rows = own.new_zeros(ends[-1], *own.shape[1:])
        rows[ctx.start : ctx.stop] = own
        return group.sum(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.group.sum(gradient.contiguous().clone())[ctx.start : ctx.stop], None, None
