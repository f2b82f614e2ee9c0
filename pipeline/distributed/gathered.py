"""The rows of all ranks on each of them, with gradients: for losses that compare samples.

A contrastive loss, say, tells a sample from all others of its batch. Taken over `gathered` rows it
is that of the global batch on every rank, and so are its gradients, however many ranks there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from penstock.distributed.group import Group
from penstock.order.plan import Request

Gather = Callable[[Tensor], Tensor]

# How rows are gathered now, and the number of the share; None: it is all that there is.
_gather: ContextVar[tuple[Gather, int] | None] = ContextVar("gather", default=None)


def together(group: Group, request: Request) -> AbstractContextManager[None]:
    """All ranks work on their shares of one batch inside, and may call `gathered`."""
    if group.alone:
        return nullcontext()
    return gathering(partial(_of_ranks, group, request.valid > 0), group.world.rank)


@contextmanager
def gathering(gather: Gather, number: int) -> Iterator[None]:
    """`gathered` calls that function inside, and `share` gives that number."""
    token = _gather.set((gather, number))
    try:
        yield
    finally:
        _gather.reset(token)


class OtherRowsError(BaseException):
    """`gathered` was called where the rows of other shares are not at hand."""


def apart(number: int) -> AbstractContextManager[None]:
    """The share of that number is worked on by itself inside; `gathered` raises OtherRowsError."""
    return gathering(_not_at_hand, number)


def _not_at_hand(rows: Tensor) -> Tensor:
    raise OtherRowsError


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
    now = _gather.get()
    return rows if now is None else now[0](rows)


def share() -> int:
    """The number of this share among those whose rows are `gathered`, in their order."""
    now = _gather.get()
    return 0 if now is None else now[1]


def _of_ranks(group: Group, counts: bool, rows: Tensor) -> Tensor:
    """The rows of all ranks; `counts`: this one has any that are no padding."""
    own = rows if counts else rows[:0]
    ends = list(accumulate(group.gather(len(own))))
    everything: Tensor = _Gathered.apply(own, group, ends)
    return everything


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
