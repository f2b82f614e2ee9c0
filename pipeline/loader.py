"""Runs fetch over the plan's requests, ahead of the consumer and in order.

    plan -> requests -> backend (main | process | thread) -> pin, move -> consumer

The backend decides who works on a request and when, never what comes out. Worker processes are
torch's own: its DataLoader is given requests in place of indices and told not to batch, so that all
of its options keep their meaning. The state is the address of the next batch to deliver; what
workers have prefetched beyond it is simply asked for again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pipeline.backends import Failure, LoaderOptions, open_backend
from pipeline.errors import ConfigError, Problem
from pipeline.fetch import Batch, Fetch
from pipeline.plan import Plan, Request
from pipeline.streams import End, StreamPlan, StreamRequest
from pipeline.world import World, has_accelerator

STATE_VERSION = 1


@dataclass
class LoaderStats:
    """What the consumer of this rank met since the epoch began.

    Attributes:
        wait_seconds: time spent waiting inside the loader.
        total_seconds: time since the epoch's first batch was asked for.
        samples: rows delivered, padding included.
        batches: batches delivered.
        stages: seconds by stage of fetch, summed over all executors.
    """

    wait_seconds: float = 0.0
    total_seconds: float = 0.0
    samples: int = 0
    batches: int = 0
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def wait_share(self) -> float:
        """Share of the time in which the consumer waited for data, in [0, 1]."""
        return self.wait_seconds / self.total_seconds if self.total_seconds else 0.0

    def count(self, batch: Batch) -> None:
        self.batches += 1
        self.samples += len(batch.indices)
        for stage, seconds in batch.timing.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + seconds


class Loader:
    """Batches of one split for one rank.

    `for batch in loader` goes through one epoch; the next `for` through the next. `epoch(e, start)`
    goes through any epoch from any step.

    Args:
        plan: which samples stand at which address.
        fetch: request to batch.
        options: who works, and how far ahead.
        world: whose share, and the device that batches are delivered on.
        fingerprint: what the addresses depend on, by name; a state of another one is refused.
    """

    def __init__(
        self,
        plan: Plan | StreamPlan,
        fetch: Fetch,
        options: LoaderOptions | None = None,
        world: World | None = None,
        fingerprint: Mapping[str, str] | None = None,
    ) -> None:
        self.plan = plan
        self.fetch = fetch
        self.options = options or LoaderOptions()
        self.world = world or World()
        self.fingerprint = dict(fingerprint or {})
        self.stats = LoaderStats()
        if isinstance(plan, StreamPlan) and not self.options.in_order:
            raise ConfigError(
                Problem("loader.in_order", "must be true for a stream, whose end is found in order")
            )
        self._pin = self.options.pin_memory and has_accelerator()
        self._backend = open_backend(fetch, self.options, self._pin)
        self._next = (0, 0)
        self._broken_off = False

    def __len__(self) -> int:
        """Steps in an epoch."""
        return len(self.plan)

    def __iter__(self) -> Iterator[Batch]:
        epoch, step = self._next
        if self._broken_off:  # as with torch's loader, leaving an epoch early ends it
            epoch, step = epoch + 1, 0
        return self.epoch(epoch, step)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Batches of `epoch` from step `start` on, on the world's device.

        Raises:
            DataError, SampleError: as fetch does, when the batch's turn comes.
        """
        requests = self._requests(epoch, start)
        self.stats = LoaderStats()
        self._next, self._broken_off = (epoch, start), True
        began = time.perf_counter()
        asked = began
        with self._backend.run(requests) as results:
            for result in results:
                if isinstance(result, End):
                    break
                batch = self._delivered(result)
                self._next = (epoch, batch.request.step + 1)
                now = time.perf_counter()
                self.stats.wait_seconds += now - asked
                self.stats.total_seconds = now - began
                self.stats.count(batch)
                yield batch
                asked = time.perf_counter()
        self._next, self._broken_off = (epoch + 1, 0), False
        self.stats.total_seconds = time.perf_counter() - began

    def _requests(self, epoch: int, start: int) -> Iterator[Request | StreamRequest]:
        limit = self.plan.limit(epoch)
        for step in count(start) if limit is None else range(start, limit):
            yield self.plan.request(epoch, step, self.world.rank, self.world.size)

    def _delivered(self, result: Batch | Failure) -> Batch:
        if isinstance(result, Failure):
            raise result.error
        if self._pin and not self._backend.pins:
            result = result.pin_memory()
        return result if self.world.device == "cpu" else result.to(self.world.device)

    def state_dict(self) -> dict[str, Any]:
        """The address of the next batch to deliver, and what addresses depend on here."""
        epoch, step = self._next
        return {
            "version": STATE_VERSION, "epoch": epoch, "step": step,
            "fingerprint": dict(self.fingerprint),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at the address of `state`.

        Raises:
            ConfigError: the state's addresses mean other batches than this loader's.
        """
        if state.get("version") != STATE_VERSION:
            raise ConfigError(
                f"the loader state has version {state.get('version')}; this one reads "
                f"{STATE_VERSION}"
            )
        saved = dict(state["fingerprint"])
        problems = [
            Problem(key, f"is {self.fingerprint.get(key)!r} here and was {saved.get(key)!r} when "
                    "the state was saved, so its address means another batch")
            for key in sorted(saved.keys() | self.fingerprint.keys())
            if saved.get(key) != self.fingerprint.get(key)
        ]  # fmt: skip
        if problems:
            raise ConfigError(problems)
        self._next = (int(state["epoch"]), int(state["step"]))
        self._broken_off = False

    def close(self) -> None:
        """Stop workers that were kept for the next epoch."""
        self._backend.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
