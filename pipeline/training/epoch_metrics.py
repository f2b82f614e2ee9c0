"""What a training epoch has come to: losses, samples, order, speed; over all ranks.

Losses stay on the device until they are read, which is when ranks add up what they have: once
every few steps, and before anything is saved. A reading costs one wait for the device, and with
several ranks three collectives of a few bytes a batch.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.distributed.group import Group
from pipeline.errors import PenstockError
from pipeline.loading.batch import Batch
from pipeline.loading.fetch import hash_of_rows, row_hashes
from pipeline.order.address import Address
from pipeline.order.randomness import KeyArray, hash64_each, hash64_last


class NonFiniteLossError(PenstockError):
    """A batch's loss is NaN or infinite; `epoch` and `step` are its address."""

    def __init__(self, loss: float, epoch: int, step: int) -> None:
        super().__init__(f"the loss is {loss} at epoch {epoch}, step {step}")
        self.loss, self.epoch, self.step = loss, epoch, step


@dataclass(frozen=True)
class Step:
    """What became of one global batch.

    Attributes:
        epoch, step: its address.
        loss: the mean over its samples.
        samples: how many counted.
        order: 64-bit hash over its (position, index) pairs, however they were shared out.
        digest: hash over its samples, if the loader hashes.
        left_out: what was left out of it as unreadable.
    """

    epoch: int
    step: int
    loss: float
    samples: int
    order: int
    digest: str | None = None
    left_out: tuple[Any, ...] = ()


class EpochMetrics:
    """Losses and speed of one epoch.

    Args:
        group: the ranks that train together.
        state: of an epoch that goes on, from `state_dict`.

    Attributes:
        samples: how many have been read.
        deaths: of workers, in runs before that shared the epoch; over all ranks.
        window: mean loss since `window_begin`; NaN if nothing was read since.
    """

    def __init__(self, group: Group, state: Mapping[str, float] | None = None) -> None:
        state = state or {}
        self._group = group
        self._pending: list[tuple[Batch, Tensor, int]] = []
        self._total = float(state.get("total", 0.0))
        self.samples = int(state.get("samples", 0))
        self.deaths = int(state.get("deaths", 0))
        self._window_total = float(state.get("window_total", 0.0))
        self._window_samples = int(state.get("window_samples", 0))
        self._before = float(state.get("seconds", 0.0))
        self._waited_before = float(state.get("waited", 0.0))
        self._began = time.perf_counter()

    def add(self, batch: Batch, losses: Tensor) -> None:
        """Count a batch; `losses` are those of this rank's samples, float32[n] on the device."""
        # Without the fields, which would keep the epoch's data in memory.
        self._pending.append((batch.replace({}), losses.sum(), losses.shape[0]))

    def drop_from(self, address: Address) -> None:
        """Forget batches of that address and later ones: they will be trained on again."""
        self._pending = [one for one in self._pending if one[0].request.address < address]

    def read(self) -> list[Step]:
        """What was added since the last reading, summed over the ranks; waits for the device.

        Raises:
            NonFiniteLossError: of the first batch that has such a loss, on all ranks.
        """
        steps = self._steps() if self._pending else []
        for step in steps:
            if not math.isfinite(step.loss):
                raise NonFiniteLossError(step.loss, step.epoch, step.step)
            # One by one, so that no rounding depends on when there is a reading.
            self._total += step.loss * step.samples
            self._window_total += step.loss * step.samples
            self.samples += step.samples
            self._window_samples += step.samples
        return steps

    def _steps(self) -> list[Step]:
        batches, sums, counts = zip(*self._pending, strict=True)
        self._pending.clear()
        losses = self._group.sum(torch.stack(sums).double()).tolist()
        orders = _orders(batches)
        known = [(count, order, _rows(batch), getattr(batch, "left_out", ()))
                 for batch, count, order in zip(batches, counts, orders, strict=True)]  # fmt: skip
        ranks = self._group.gather(known)
        by_batch = zip(*ranks, strict=True)
        return [_step(*one) for one in zip(batches, losses, by_batch, strict=True)]

    @property
    def window(self) -> float:
        return self._window_total / self._window_samples if self._window_samples else math.nan

    def begin_window(self) -> None:
        """Let `window` begin here."""
        self._window_total, self._window_samples = 0.0, 0

    @property
    def mean(self) -> float:
        """The mean loss of all that was read."""
        return self._total / self.samples if self.samples else math.nan

    @property
    def seconds(self) -> float:
        """Since the epoch began, without the time between two runs that shared it."""
        return self._before + time.perf_counter() - self._began

    def speed(self, waited: float) -> dict[str, float]:
        """Samples a second over all ranks, and the share of the time in which this one waited.

        Args:
            waited: seconds that the loader says.
        """
        seconds = max(self.seconds, 1e-9)
        return {"samples_per_second": self.samples / seconds,
                "wait_share": min((self._waited_before + waited) / seconds, 1.0)}  # fmt: skip

    def state_dict(self, waited: float, deaths: int = 0) -> dict[str, float]:
        """What an epoch that goes on in another process needs; everything has been read.

        Args:
            waited: seconds that the loader says.
            deaths: of workers in this epoch so far, over all ranks.
        """
        return {
            "total": self._total, "samples": self.samples, "seconds": self.seconds,
            "window_total": self._window_total, "window_samples": self._window_samples,
            "waited": self._waited_before + waited, "deaths": deaths,
        }  # fmt: skip


def order_hash(before: str, steps: Sequence[Step]) -> str:
    """The hash over all steps of a run so far, given the one before `steps`."""
    for step in steps:
        line = f"{before} {step.epoch} {step.step} {step.order:016x}"
        before = hashlib.blake2b(line.encode(), digest_size=16).hexdigest()
    return before


def _orders(batches: Sequence[Batch]) -> list[int]:
    """The `Step.order` of each batch; at once, as numpy's calls cost more than the rows."""
    valid = [slice(None) if one.valid is None else one.valid.numpy() for one in batches]
    rows = [one.positions[mask] for one, mask in zip(batches, valid, strict=True)]
    indices = [one.indices[mask] for one, mask in zip(batches, valid, strict=True)]
    lengths = [len(one) for one in rows]
    keys = _keys([one.request.address for one in batches]).repeat(lengths)
    inner = hash64_each(keys + np.uint64(1), np.concatenate(indices))
    mixed = hash64_each(keys, np.concatenate(rows).astype(np.uint64) + inner)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    ends = np.cumsum(lengths)
    return (sums[ends] - sums[ends - lengths]).tolist()  # modulo 2^64, as all of it


def _keys(addresses: Sequence[Address]) -> KeyArray:
    """`hash64("order", epoch, step)` of each, uint64[n]; almost always they are of one epoch."""
    parts = [
        hash64_last(("order", epoch), [step for _, step in group])
        for epoch, group in groupby(addresses, key=lambda address: address[0])
    ]
    return np.concatenate(parts)


def _rows(batch: Batch) -> list[tuple[int, bytes]] | None:
    return None if batch.hashes is None else row_hashes(batch)


def _step(batch: Batch, loss: float, ranks: tuple[Any, ...]) -> Step:
    counts, orders, rows, left_out = zip(*ranks, strict=True)
    samples = sum(counts)
    digest = None if rows[0] is None else hash_of_rows(chain.from_iterable(rows))
    return Step(
        *batch.request.address, loss / samples if samples else 0.0, samples,
        sum(orders) % 2**64, digest, tuple(chain.from_iterable(left_out)),
    )  # fmt: skip
