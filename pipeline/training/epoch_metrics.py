"""Losses, samples, order and speed of a training epoch, over all ranks.

Losses stay on the device until they are read: once every few steps, and before a checkpoint is
saved. A read waits for the device once; with several ranks it costs three collectives of a few
bytes a batch.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.distributed.group import Group
from penstock.errors import PenstockError
from penstock.loading.batch import Batch, hash_of_rows, row_hashes
from penstock.order.address import Address
from penstock.order.keys import hash64_each, hash64_last

_PART = "loss/"  # before the names of a loss's parts, in a state


class NonFiniteLossError(PenstockError):
    """A batch's loss is NaN or infinite; `epoch` and `step` are its address."""

    def __init__(self, loss: float, epoch: int, step: int) -> None:
        super().__init__(f"the loss is {loss} at epoch {epoch}, step {step}")
        self.loss, self.epoch, self.step = loss, epoch, step


@dataclass(frozen=True)
class Step:
    """The results of one global batch."""

    epoch: int
    step: int
    loss: float  # mean over its samples, or over its tokens (penstock.addons.tokens.language_model)
    samples: int
    order: int  # 64-bit hash over its (position, index) pairs, independent of sharding
    digest: str | None = None  # hash over its samples, if the loader hashes
    left_out: tuple[Any, ...] = ()  # its unreadable samples


class EpochMetrics:
    """Losses and speed of one epoch.

    Args:
        state: of a resumed epoch, from `state_dict`.

    Attributes:
        samples: how many have been read.
        losses: how many there are; as many, unless each sample has several, as one a token.
        deaths: of workers in earlier sessions of this epoch, over all ranks.
        window: mean loss since `begin_window`; NaN if nothing was read since.
    """

    def __init__(self, group: Group, state: Mapping[str, float] | None = None) -> None:
        state = state or {}
        self._group = group
        self._pending: list[tuple[Batch, Tensor, int, Mapping[str, Tensor]]] = []
        self._total = float(state.get("total", 0.0))
        self._named = {  # the same of the parts of the losses, by name
            name.removeprefix(_PART): float(total)
            for name, total in state.items()
            if name.startswith(_PART)
        }
        self.samples = int(state.get("samples", 0))
        self.losses = int(state.get("losses", self.samples))
        self.deaths = int(state.get("deaths", 0))
        self._window_total = float(state.get("window_total", 0.0))
        self._window_losses = int(state.get("window_samples", 0))
        self._before = float(state.get("seconds", 0.0))
        self._waited_before = float(state.get("waited", 0.0))
        self._began = time.perf_counter()

    def add(
        self,
        batch: Batch,
        losses: Tensor,
        named: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """Count a batch.

        Args:
            losses: of this rank, as for the objective, on the device.
            named: sums of the parts of the losses, as `Objective.named`.
        """
        # Without the fields, which would keep the epoch's data in memory.
        self._pending.append((batch.replace({}), losses.sum(), losses.shape[0], named))

    def drop_from(self, address: Address) -> None:
        """Forget batches from that address on: they will be trained on again."""
        self._pending = [one for one in self._pending if one[0].request.address < address]

    def read(self) -> list[Step]:
        """The batches added since the last read, summed over the ranks; waits for the device.

        Raises:
            NonFiniteLossError: on all ranks, for the first batch with such a loss.
        """
        if not self._pending:
            return []
        batches, sums, counts, parts = zip(*self._pending, strict=True)
        self._pending.clear()
        losses: list[float] = self._group.sum(torch.stack(sums).double()).tolist()
        rows = [None if batch.hashes is None else row_hashes(batch) for batch in batches]
        left_out = [getattr(batch, "left_out", ()) for batch in batches]
        samples = [
            len(one.positions) if one.valid is None else int(one.valid.sum()) for one in batches
        ]
        own = [*zip(samples, counts, _orders(batches), rows, left_out, strict=True)]
        ranks, named = zip(*self._group.gather((own, _numbers(parts))), strict=True)
        for of_batch in zip(*named, strict=True):
            for name, totals in chain.from_iterable(part.items() for part in of_batch):
                for total in totals:
                    self._named[name] = self._named.get(name, 0.0) + total
        by_batch = zip(*ranks, strict=True)
        counted = [_step(*one) for one in zip(batches, losses, by_batch, strict=True)]
        for step, weight in counted:
            if not math.isfinite(step.loss):
                raise NonFiniteLossError(step.loss, step.epoch, step.step)
            # One by one, so that rounding does not depend on when losses are read.
            self._total += step.loss * weight
            self._window_total += step.loss * weight
            self.samples += step.samples
            self.losses += weight
            self._window_losses += weight
        return [step for step, _ in counted]

    @property
    def window(self) -> float:
        return self._window_total / self._window_losses if self._window_losses else math.nan

    def begin_window(self) -> None:
        """Start a new `window`."""
        self._window_total, self._window_losses = 0.0, 0

    @property
    def mean(self) -> float:
        """Mean of the losses of all batches read."""
        return self._total / self.losses if self.losses else math.nan

    @property
    def named(self) -> dict[str, float]:
        """The same of each part of the losses that has a name."""
        return {name: total / self.losses for name, total in self._named.items()}

    @property
    def seconds(self) -> float:
        """Since the epoch began, without the time between two sessions that shared it."""
        return self._before + time.perf_counter() - self._began

    def speed(self, waited: float) -> dict[str, float]:
        """Samples a second over all ranks (and tokens, where those have losses of their own), and
        this rank's share of time spent waiting for data.

        Args:
            waited: seconds, from the loader's statistics.
        """
        seconds = max(self.seconds, 1e-9)
        speed = {"samples_per_second": self.samples / seconds}
        if self.losses != self.samples:
            speed["tokens_per_second"] = self.losses / seconds
        speed["wait_share"] = min((self._waited_before + waited) / seconds, 1.0)
        return speed

    def state_dict(self, waited: float, deaths: int = 0) -> dict[str, float]:
        """State to resume the epoch from; call `read` first.

        Args:
            waited: seconds, from the loader's statistics.
            deaths: of workers in this epoch so far, over all ranks.
        """
        return {
            "total": self._total,
            "samples": self.samples,
            "losses": self.losses,
            "window_total": self._window_total,
            "window_samples": self._window_losses,
            "seconds": self.seconds,
            "waited": self._waited_before + waited,
            "deaths": deaths,
            **{f"{_PART}{name}": total for name, total in self._named.items()},
        }


def order_hash(before: str, steps: Sequence[Step]) -> str:
    """The hash over all steps of a run: `before` extended by `steps`."""
    for step in steps:
        line = f"{before} {step.epoch} {step.step} {step.order:016x}"
        before = hashlib.blake2b(line.encode(), digest_size=16).hexdigest()
    return before


def _numbers(parts: Sequence[Mapping[str, Tensor]]) -> list[dict[str, list[float]]]:
    """Tensors as lists of numbers; all at once, since each would wait for the device."""
    tensors = [value.reshape(-1) for part in parts for value in part.values()]
    values = iter(torch.stack(tensors).double().tolist() if tensors else ())
    return [dict(zip(part, values, strict=False)) for part in parts]


def _orders(batches: Sequence[Batch]) -> list[int]:
    """The `Step.order` of each batch; all at once, since numpy's calls cost more than the rows."""
    valid = [slice(None) if one.valid is None else one.valid.numpy() for one in batches]
    rows = [one.positions[mask] for one, mask in zip(batches, valid, strict=True)]
    indices = [one.indices[mask] for one, mask in zip(batches, valid, strict=True)]
    lengths = [len(one) for one in rows]
    addresses = [one.request.address for one in batches]  # almost always of one epoch
    parts = [
        hash64_last(("order", epoch), [step for _, step in group])
        for epoch, group in groupby(addresses, key=lambda address: address[0])
    ]
    keys = np.concatenate(parts).repeat(lengths)  # hash64("order", epoch, step) of each row
    inner = hash64_each(keys + np.uint64(1), np.concatenate(indices))
    mixed = hash64_each(keys, np.concatenate(rows).astype(np.uint64) + inner)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    ends = np.cumsum(lengths)
    return (sums[ends] - sums[ends - lengths]).tolist()  # modulo 2^64


def _step(batch: Batch, loss: float, ranks: tuple[object, ...]) -> tuple[Step, int]:
    """A step, and how many losses its loss is the mean of."""
    samples, counts, orders, rows, left_out = zip(*ranks, strict=True)
    weight = sum(counts)
    digest = None if rows[0] is None else hash_of_rows(chain.from_iterable(rows))
    return Step(
        *batch.request.address,
        loss / weight if weight else 0.0,
        sum(samples),
        sum(orders) % 2**64,
        digest,
        tuple(chain.from_iterable(left_out)),
    ), weight
