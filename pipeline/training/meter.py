"""Losses, samples and order of a training epoch, over all ranks.

Losses stay on the device until they are read: once every few steps, and before a checkpoint is
saved. A read waits for the device once; with several ranks it costs two collectives of a few bytes
a batch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.distributed.group import Group
from penstock.errors import PenstockError
from penstock.loading.batch import Batch, hash_of_rows, row_hashes
from penstock.order.address import Address
from penstock.order.keys import hash64_each, hash64_last, hash64_on
from penstock.order.plan import Request

_SUMS = ("total", "samples", "losses", "window_total", "window_losses")


class NonFiniteLossError(PenstockError):
    """A batch's loss is NaN or infinite; `epoch` and `step` are its address."""

    def __init__(self, loss: float, epoch: int, step: int) -> None:
        super().__init__(f"the loss is {loss} at epoch {epoch}, step {step}")
        self.epoch, self.step = epoch, step


class Step(NamedTuple):
    """The results of one global batch."""

    epoch: int
    step: int
    loss: float  # mean over its samples, or over its tokens (penstock.addons.tokens.language_model)
    samples: int
    order: int  # 64-bit hash over its (position, index) pairs, independent of sharding
    digest: str | None = None  # hash over its samples, if the loader hashes
    left_out: tuple[Any, ...] = ()  # its unreadable samples


class Meter:
    """Sums of one epoch, of losses and of samples.

    Args:
        state: `sums` of an epoch that is resumed; they are complete after a `read`.

    Attributes:
        sums: "samples", "losses" (one a sample, or one a token), their "total", the same since
            `begin_window`, and "loss/NAME" of each part of the losses that has a name.
    """

    def __init__(self, group: Group, state: Mapping[str, float] | None = None) -> None:
        self._group = group
        self._pending: list[tuple[Request, Tensor, int, Mapping[str, Tensor], Any, Any]] = []
        self.sums: dict[str, float] = {**dict.fromkeys(_SUMS, 0), **(state or {})}

    def add(
        self, batch: Batch, losses: Tensor, named: Mapping[str, Tensor] = MappingProxyType({})
    ) -> None:
        """Count a batch.

        Args:
            losses: of this rank, float32[n] on the device.
            named: sums of the parts of the losses, as `Objective.named`.
        """
        # Without the fields, which would keep the epoch's data in memory.
        rows = batch.hashes and row_hashes(batch)
        self._pending.append(
            (batch.request, losses.sum(), losses.numel(), named, rows, batch.left_out)
        )

    def drop_from(self, address: Address) -> None:
        """Forget batches from that address on: they will be trained on again."""
        self._pending = [entry for entry in self._pending if entry[0].address < address]

    def read(self) -> list[Step]:
        """The batches added since the last read, summed over the ranks; waits for the device.

        Raises:
            NonFiniteLossError: on all ranks, for the first batch with such a loss.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return []
        requests, losses, counts, named, rows, left_out = zip(*pending, strict=True)
        # One transfer for all batches, as each one waits for the device.
        totals = torch.stack(losses).double().tolist()
        samples = [request.valid for request in requests]
        parts = [[(f"loss/{name}", float(part)) for name, part in each.items()] for each in named]
        own = totals, counts, samples, _orders(requests, samples), rows, left_out, parts
        # Each column has an entry a batch, with the values of all ranks.
        columns = (zip(*ranks, strict=True) for ranks in zip(*self._group.gather(own), strict=True))
        steps, flat = [], chain.from_iterable
        for request, total, weights, samples_of, orders, hashes, bad, parts_of in zip(
            requests, *columns, strict=True
        ):
            weight, count, order = sum(weights), sum(samples_of), sum(orders) % 2**64
            # No sample of the batch could be read: a step without a loss is no failure.
            loss, address = sum(total) / weight if weight else 0.0, (request.epoch, request.step)
            if not math.isfinite(loss):
                raise NonFiniteLossError(loss, *address)
            digest = None if hashes[0] is None else hash_of_rows(flat(hashes))
            steps.append(Step(*address, loss, count, order, digest, tuple(flat(bad))))
            # One by one, so that rounding does not depend on when losses are read.
            counted = loss * weight, count, weight, loss * weight, weight
            for name, number in chain(zip(_SUMS, counted, strict=True), *parts_of):
                self.sums[name] = self.sums.get(name, 0) + number
        return steps

    def mean(self, total: str = "total", count: str = "losses") -> float:
        """A mean over all batches read; NaN if there is none.

        Args:
            total, count: "window_total" and "window_losses" since `begin_window`; "loss/NAME" of a
                part of the losses.
        """
        return self.sums[total] / self.sums[count] if self.sums[count] else math.nan

    def begin_window(self) -> None:
        """Start a new window."""
        self.sums |= {"window_total": 0.0, "window_losses": 0}


def _orders(requests: Sequence[Request], lengths: Sequence[int]) -> list[int]:
    """The `Step.order` of each batch; all at once, as numpy's calls cost more than the rows."""
    # All are of one epoch, as an epoch ends with a read.
    epoch, steps = hash64_on(3, "order", requests[0].epoch), [request.step for request in requests]
    keys = hash64_last(epoch, steps).repeat(lengths)
    rows = np.concatenate([request.positions[: request.valid] for request in requests])
    indices = np.concatenate([request.indices[: request.valid] for request in requests])
    mixed = hash64_each(keys, rows.astype(np.uint64) + hash64_each(keys + np.uint64(1), indices))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    ends = np.cumsum(lengths)
    return (sums[ends] - sums[ends - lengths]).tolist()  # modulo 2^64


def order_hash(before: str, steps: Sequence[Step]) -> str:
    """The hash over all steps of a run: `before` extended by `steps`."""
    for step in steps:
        before = hashlib.blake2b(
            f"{before} {step.epoch} {step.step} {step.order:016x}".encode(), digest_size=16
        ).hexdigest()
    return before
