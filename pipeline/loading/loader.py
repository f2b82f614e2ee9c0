"""Runs fetch over the plan's requests, ahead of the consumer and in order.

    plan -> requests -> backend (main | process | thread ...) -> pin, move, transform -> consumer

The backend decides who works on a request and when, never the result. The state is the address of
the next batch to deliver; batches that workers have prefetched beyond it are requested again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from penstock.distributed.world import World, has_accelerator
from penstock.errors import ConfigError, Problem
from penstock.loading.bad_samples import Budget
from penstock.loading.batch import Batch
from penstock.loading.facts import unfiltered
from penstock.loading.fetch import Fetch
from penstock.loading.workers.executors import LoaderOptions, Workers
from penstock.order.address import differing
from penstock.order.plan import End, Plan, StreamPlan

STATE_VERSION = 1
log = logging.getLogger(__name__)


class Transfer:
    """Moves batches to a CUDA device through pinned memory, on a stream of its own, one ahead.

    1. A batch that is not in pinned memory yet is copied into some; torch uses that again as soon
       as the copy out of it is done. Those of worker processes are pinned by the pool's thread.
    2. The copy to the device runs on its own stream, beside the computation.
    3. The consumer's stream waits for that copy, not the program; the memory is marked as in use
       there.
    4. From the second batch on, the next one's copy begins before a batch is handed out. The first
       one would have to wait for the second.

    Cost: a copy in memory where nothing was pinned, about 0.1 ms a MiB; two batches on the device.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream: torch.cuda.Stream | None = None  # CUDA must not be begun before workers fork

    def __call__(self, results: Iterable[Any]) -> Iterator[Any]:
        """`results` in their order, the batches among them on the device."""
        begun = map(self._begin, results)
        yield from map(self._ready, islice(begun, 1))
        waiting = next(begun, None)
        while waiting is not None:
            following = next(begun, None)
            yield self._ready(waiting)
            waiting = following

    def _begin(self, result: object) -> tuple[Any, Any]:
        """A result, and the event behind its copy to the device; None where nothing is copied."""
        if not isinstance(result, Batch):  # an error or the end, which stands in a batch's place
            return result, None
        self._stream = self._stream or torch.cuda.Stream(self._device)
        with torch.cuda.stream(self._stream):
            result = result.map(self._moved)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        return result, copied

    def _moved(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    def _ready(self, begun: tuple[Any, Any]) -> Any:
        """A batch that the consumer's stream may use."""
        result, copied = begun
        if copied is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(copied)
            result.map(partial(_mark, stream))
        return result


def _mark(stream: torch.cuda.Stream, tensor: Tensor) -> Tensor:
    """Keep the memory of `tensor` from being reused before `stream` is done with it."""
    if tensor.device.type == "cuda":
        tensor.record_stream(stream)
    return tensor


@dataclass
class LoaderStats:
    """Counts of one rank's epoch so far.

    Attributes:
        wait_seconds: time spent waiting inside the loader.
        total_seconds: time since the epoch's first batch was requested.
        samples: rows delivered, padding included.
        batches: batches delivered.
        stages: seconds by stage of fetch, summed over all executors.
        deaths: workers that died or stopped answering and were replaced.
    """

    wait_seconds: float = 0.0
    total_seconds: float = 0.0
    samples: int = 0
    batches: int = 0
    stages: Counter[Any] = field(default_factory=Counter)
    deaths: int = 0

    @property
    def wait_share(self) -> float:
        """Share of the time in which the consumer waited for data, in [0, 1]."""
        return self.wait_seconds / self.total_seconds if self.total_seconds else 0.0


class Loader:
    """Batches of one split for one rank.

    `for batch in loader` goes through one epoch; the next `for` through the next. `epoch(e, start)`
    goes through any epoch from any step.

    Args:
        plan: the samples at each address.
        fetch: request to batch.
        options: who works, and how far ahead.
        world: the rank, and the device that batches are delivered on.
        fingerprint: what the addresses depend on, by name; a state with another one is refused. A
            function that returns it is called after the first batch, or by `state_dict`.
        budget: how many samples may be left out of this rank's part of an epoch; None: any.
        batch_transform: transforms a batch on the device; None if fetch has done all of it.
    """

    def __init__(
        self,
        plan: Plan | StreamPlan,
        fetch: Fetch,
        options: LoaderOptions | None = None,
        world: World | None = None,
        fingerprint: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        budget: Budget | None = None,
        batch_transform: Callable[[Batch], Batch] | None = None,
    ) -> None:
        self.plan, self.fetch, self.budget = plan, fetch, budget
        self.options, self.world = options or LoaderOptions(), world or World()
        self.batch_transform, self._fingerprint = batch_transform, fingerprint
        self.stats = LoaderStats()
        if isinstance(plan, StreamPlan) and not self.options.in_order:
            raise ConfigError(
                Problem("loader.in_order", "must be true for a stream, whose end is found in order")
            )
        pins = self.options.pin_memory and has_accelerator()
        on_cuda = self.world.device.startswith("cuda")
        self._transfer = Transfer(self.world.device) if pins and on_cuda else None
        self.workers = Workers(fetch, self.options, pins)
        self._ahead: Any = None  # `Ahead`, which is part of an add-on
        # Only data in a store is fetched ahead; rows on this machine's disk are not.
        if isinstance(plan, Plan) and getattr(fetch.dataset, "want", None) is not None:
            from penstock.addons.storage.ahead import Ahead

            self._ahead = Ahead(plan, fetch.dataset, self.world.rank, self.world.size)
        # The address that a state has, and that of the next `for`.
        self._next = self._following = (0, 0)
        self._warned = set[str]()

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """The values that decide the batches, by name."""
        fingerprint = self._fingerprint
        return dict((fingerprint() if callable(fingerprint) else fingerprint) or {})

    def __len__(self) -> int:
        """Steps in an epoch."""
        return len(self.plan)

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(*self._following)

    def epoch(self, epoch: int, start: int = 0) -> Generator[Batch]:
        """Batches of `epoch` from step `start` on, on the world's device.

        Raises:
            DataError, SampleError: as fetch does, when the batch's turn comes.
            ConfigError: the epoch has no batch, and `start` is 0.
            DataError: more was left out than the budget allows; after the batch that went over.
        """
        self.stats, deaths_before = (stats := LoaderStats()), self.workers.deaths
        self._next = epoch, start
        self._following = epoch + 1, 0  # as with torch's loader, leaving an epoch early ends it
        if self.budget is not None:
            self.budget.begin(epoch)
        name, world = type(unfiltered(self.fetch.dataset)).__name__, self.world
        requests: Iterator[Any] = (
            self.plan.request(epoch, step, world.rank, world.size)
            for step in self.plan.skipped.steps(epoch, start, self.plan.limit(epoch))
        )
        if self._ahead is not None:
            self._ahead.move(epoch, start)
        # Making workers counts as waiting: the consumer waits for it, too.
        since = began = time.perf_counter()
        with self.workers.run(requests) as results:
            made = (result for _, result in results)
            for result in self._transfer(made) if self._transfer else made:
                stats.deaths = self.workers.deaths - deaths_before
                if isinstance(result, End):
                    if (
                        isinstance(self.plan, StreamPlan)
                        and self.plan.length is not None
                        and self.plan.steps(epoch) != result.request.step
                    ):
                        log.warning(
                            "%s has not as many records as it says: %d", name, self.plan.length
                        )
                    break
                batch = self._received(result)
                # Before the batch is handed out: a state that is taken while it is trained on
                # counts it.
                self._next = epoch, batch.request.step + 1
                stats.samples += len(batch.indices)
                stats.stages.update(batch.timing)
                now = time.perf_counter()
                stats.wait_seconds += now - since
                stats.total_seconds = now - began
                stats.batches += 1
                yield batch
                since = time.perf_counter()
                if self.budget is not None:  # only now, so that what was left out is on record
                    self.budget.add(batch.request.valid, batch.left_out)
                if self._ahead is not None:
                    self._ahead.move(epoch, batch.request.step + 1)
                _ = self.fingerprint  # while the next ones are made, and fetched
        stats.total_seconds = time.perf_counter() - began
        if not stats.batches and not start and not self.plan.skipped:
            full = f"full batch of {self.plan.batch_size}; set batch.tail=keep or lower batch.size"
            key, what = ("batch.tail", full) if self.plan.tail == "drop" else ("dataset", "sample")
            raise ConfigError(Problem(key, f"epoch {epoch} of {name} has no {what}"))
        self._next = epoch + 1, 0

    def _received(self, batch: Batch) -> Batch:
        """A batch of an executor on the world's device, transformed there."""
        for kind, warning in batch.warnings.items():
            if kind not in self._warned:  # by another worker
                self._warned.add(kind)
                log.warning("%s", warning)
        if self._transfer is None and self.world.device != "cpu":
            batch = batch.to(self.world.device)
        return batch if self.batch_transform is None else self.batch_transform(batch)

    def state_dict(self) -> dict[str, object]:
        """The address of the next batch to deliver, and the fingerprint."""
        epoch, step = self._next
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "step": step,
            "fingerprint": dict(self.fingerprint),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the address of `state`, which may come from anybody.

        Raises:
            ConfigError: the addresses of the state mean other batches, or it is damaged.
        """
        own = {"version": STATE_VERSION, **self.fingerprint}
        saved = {"version": state.get("version"), **state.get("fingerprint", {})}
        # All that differs comes in one message, each with both values.
        keys = differing(own, saved)
        if keys:
            raise ConfigError(
                Problem(
                    str(key)[:200],
                    f"is {own.get(key)!r} here and was {saved.get(key)!r:.60} when the state was "
                    "saved, so its address means another batch",
                )
                for key in keys
            )
        self._next = self._following = int(state["epoch"]), int(state["step"])

    def close(self) -> None:
        """Stop the workers."""
        self.workers.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
