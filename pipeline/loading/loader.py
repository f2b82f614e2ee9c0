"""Runs fetch over the plan's requests, ahead of the consumer and in order.

    plan -> requests -> backend (main | process | thread ...) -> pin, move, transform -> consumer

The backend decides who works on a request and when, never the result. The state is the address of
the next batch to deliver; batches that workers have prefetched beyond it are requested again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.distributed.world import World, has_accelerator
from penstock.errors import ConfigError, DataError, PenstockError, Problem
from penstock.loading.bad_samples import Budget
from penstock.loading.batch import Batch
from penstock.loading.encoded import said
from penstock.loading.facts import unfiltered
from penstock.loading.fetch import Fetch
from penstock.loading.fingerprint import differing
from penstock.loading.workers.executors import Workers
from penstock.loading.workers.options import LoaderOptions
from penstock.order.plan import End, Plan, StreamPlan, length_of

if TYPE_CHECKING:
    from penstock.addons.stores.read_ahead import ReadAhead
    from penstock.loading.transfer import Transfer

STATE_VERSION = 1
_MOST_PROBLEMS = 50  # that a message names
log = logging.getLogger(__name__)


@dataclass
class LoaderStats:
    """Counts of one rank's epoch so far.

    Attributes:
        wait_seconds: time spent waiting inside the loader.
        total_seconds: time since the epoch's first batch was asked for.
        samples: rows delivered, padding included.
        batches: batches delivered.
        stages: seconds by stage of fetch, summed over all executors.
        deaths: workers that died or stopped answering and were replaced.
    """

    wait_seconds: float = 0.0
    total_seconds: float = 0.0
    samples: int = 0
    batches: int = 0
    stages: dict[str, float] = field(default_factory=dict)
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
            function of it is called behind the first batch, or when a state is asked for.
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
        self.plan = plan
        self.fetch = fetch
        self.options = options or LoaderOptions()
        self.world = world or World()
        self._fingerprint = fingerprint
        self.budget = budget
        self.stats = LoaderStats()
        if isinstance(plan, StreamPlan) and not self.options.in_order:
            raise ConfigError(
                Problem("loader.in_order", "must be true for a stream, whose end is found in order")
            )
        together = plan.together if isinstance(plan, Plan) else 1
        groups = together * self.world.size
        if together > 1 and plan.batch_size % groups:
            low = plan.batch_size // groups * groups
            ways = " or ".join(str(size) for size in (low, low + groups) if size)
            reason = f"{plan.batch_size} cannot be cut into pairs for {self.world.size} process(es)"
            raise ConfigError(
                Problem("batch.size", f"{reason}, and a step mixes them; take {ways}")
            )
        self.batch_transform = batch_transform
        self._rows = self._row_count()
        self._pin = self.options.pin_memory and has_accelerator()
        moves = self._pin and self.world.device.startswith("cuda")
        self._transfer: Transfer | None = None
        if moves:
            from penstock.loading.transfer import Transfer

            self._transfer = Transfer(self.world.device)
        self._moved_ahead = moves or self.world.device == "cpu"
        self.workers = Workers(fetch, self.options, self._pin)
        self._ahead: ReadAhead | None = None
        if getattr(fetch.dataset, "remote_files", None) is not None:
            from penstock.addons.stores.read_ahead import read_ahead

            rank, size = self.world.rank, self.world.size
            self._ahead = read_ahead(plan, fetch.dataset, rank, size, self.options)
        self._next = (0, 0)
        self._broken_off, self._known_deaths = False, 0
        self._warned: set[str] = set()

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """The values that decide the batches, by name."""
        given = self._fingerprint
        return dict((given() if callable(given) else given) or {})

    @property
    def deaths(self) -> int:
        """Workers that died or stopped answering and were replaced, in all epochs."""
        return self.workers.deaths

    def __len__(self) -> int:
        """Steps in an epoch."""
        return len(self.plan)

    def __iter__(self) -> Iterator[Batch]:
        epoch, step = self._next
        if self._broken_off:  # as with torch's loader, leaving an epoch early ends it
            epoch, step = epoch + 1, 0
        return self.epoch(epoch, step)

    def epoch(self, epoch: int, start: int = 0) -> Generator[Batch]:
        """Batches of `epoch` from step `start` on, on the world's device.

        Raises:
            DataError, SampleError: as fetch does, when the batch's turn comes.
                ConfigError: the epoch has no batch, and `start` is 0.
            DataError: the dataset's length has changed, or more was left out than the budget
                allows; after the batch that went over.
        """
        self.stats = LoaderStats()
        self._next, self._broken_off = (epoch, start), True
        if self.budget is not None:
            self.budget.begin(epoch)
        self._check_rows()
        last = self.plan.limit(epoch)
        asked = began = time.perf_counter()
        results = self._results(epoch, start)
        with self._ahead or nullcontext(), closing(results):
            for result in results:
                self.stats.deaths = self.deaths - self._known_deaths
                if isinstance(result, End):
                    break
                for kind, warning in result.warnings.items():
                    if kind not in self._warned and kind not in said:  # by another worker or loader
                        (said if kind.startswith("lost") else self._warned).add(kind)
                        log.warning("%s", warning)
                self.fetch.compared = True  # workers that begin later need not
                batch = result if self._moved_ahead else self._move(result)
                if self.batch_transform is not None:
                    batch = self.batch_transform(batch)
                self.stats.samples += len(batch.indices)
                for stage, seconds in batch.timing.items():
                    self.stats.stages[stage] = self.stats.stages.get(stage, 0.0) + seconds
                self._next = (epoch, batch.request.step + 1)
                if self._next[1] == last:  # whoever counts batches does not ask for the end
                    self._check_rows()
                now, stats = time.perf_counter(), self.stats
                stats.wait_seconds += now - asked
                stats.total_seconds = now - began
                stats.batches += 1
                yield batch
                asked = time.perf_counter()
                _ = self.fingerprint  # while the next ones are made
                if self.budget is not None:  # only now, so that what was left out is on record
                    self.budget.add(batch.request.valid, batch.left_out)
        self._check_rows()
        if not self.stats.batches and not start and not self.plan.skipped:
            raise self._empty(epoch)
        self._next, self._broken_off = (epoch + 1, 0), False
        self.stats.total_seconds = time.perf_counter() - began
        self.stats.deaths = self.deaths - self._known_deaths
        self._known_deaths = self.deaths

    def _results(self, epoch: int, step: int) -> Generator[Batch | End]:
        """Results from `step` on, in the order of the steps."""
        limit, world = self.plan.limit(epoch), self.world
        steps, delivered = (self.plan.skipped.steps(epoch, step, limit) for _ in range(2))
        requests: Iterator[Any]
        requests = (self.plan.request(epoch, step, world.rank, world.size) for step in steps)
        if self._ahead is not None:
            requests = self._ahead.requests(epoch, step, requests)
        try:
            with self.workers.run(requests) as results:
                for result in self._transfer(results) if self._transfer else results:
                    yield result
                    if self._ahead is not None:
                        self._ahead.delivered(next(delivered))
        except PenstockError:
            self.stats.deaths = self.deaths - self._known_deaths
            self._check_rows()  # rows that are gone would fail
            raise

    def _check_rows(self) -> None:
        """Raise DataError if the dataset has another length than its addresses were made for."""
        before, now = self._rows, self._row_count()
        if now != before:
            raise DataError(
                f"{type(self.fetch.dataset).__name__} had {before} rows when its order was made, "
                f"and has {now} now, so rows would be at other addresses; its length must not "
                "change during a run"
            )

    def _row_count(self) -> int | None:
        return None if isinstance(self.plan, StreamPlan) else length_of(self.fetch.dataset)

    def _empty(self, epoch: int) -> ConfigError:
        """The error of an epoch that turns out to have no batch."""
        plan, name = self.plan, type(unfiltered(self.fetch.dataset)).__name__
        if plan.tail == "drop":
            return ConfigError(
                Problem(
                    "batch.tail",
                    f"drop leaves out what is less than a batch of "
                    f"{plan.batch_size}, and epoch {epoch} of {name} has no full one; set "
                    "batch.tail=keep or a smaller batch.size",
                )
            )
        stream = isinstance(plan, StreamPlan)
        what = f"{name} gives no record" if stream else f"the sampler gives no row of {name}"
        return ConfigError(Problem("dataset" if stream else "sampler", f"{what} in epoch {epoch}"))

    def _move(self, batch: Batch) -> Batch:
        """The batch on the world's device, where no transfer has brought it there."""
        began = time.perf_counter()
        batch = batch.to(self.world.device)
        took = time.perf_counter() - began
        return batch.replace(timing={**batch.timing, "transfer": took})

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
        try:
            address = int(state["epoch"]), int(state["step"])
            saved = {"version": state.get("version"), **state["fingerprint"]}
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"the loader state is damaged: {error}") from error
        keys = differing(own, saved)
        if keys:
            raise ConfigError(
                Problem(
                    str(key)[:200],
                    f"is {own.get(key)!r} here and was {saved.get(key)!r:.60} when the state was "
                    "saved, so its address means another batch",
                )
                for key in keys[:_MOST_PROBLEMS]
            )
        self._next = address
        self._broken_off = False

    def close(self) -> None:
        """Stop the workers."""
        self.workers.close()
        if self._ahead is not None:
            self._ahead.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
