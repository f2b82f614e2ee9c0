"""A pool of Ray actors, which are replaced when they or their nodes die, or when they hang.

As with worker processes, deaths are looked for while somebody waits for a result. Any free actor
gets the requests that the dead one had not answered, the oldest request first; after `max_deaths`
at one address, an error takes that batch's place in the order.

Requests go out in order, while the batches that are ahead of the consumer fit into the window; the
largest one so far stands for those that are not there yet.

Which worker a request goes to, so that files and shards are read where they were read before.

Each shard has a home: the worker with the highest hash of (worker, shard) (rendezvous hashing;
Thaler and Ravishankar, 1998), so one worker more or less moves only the shards that it wins or had.
Each row of a request votes for the home of its shard. The node with the most votes gets the request
and on it the worker with the most, among those that have less than LOAD times the average to do
(Mirrokni, Thorup, Zadimoghaddam: "Consistent hashing with bounded loads", 2016).

It decides who makes a batch, never what is in it. Cost for a request of 64 rows: 20 us with 8
workers, 50 us with 64.
"""

from __future__ import annotations

import heapq
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, ObjectLostError, RayError, RayTaskError

from penstock.addons.ray import cluster as ray_cluster
from penstock.addons.ray.actor import ActorContext
from penstock.addons.ray.message import StoreMemory, unpack
from penstock.addons.ray.worker import RayWorker
from penstock.distributed.preemption import held, waiting
from penstock.errors import ConfigError, Problem
from penstock.loading.fetch import Fetch
from penstock.loading.workers.backends import Asked, Failure, Result, WorkerError
from penstock.loading.workers.failures import FailureReport
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.pool import parts_of
from penstock.loading.workers.window import PoolBackend, Task
from penstock.order.keys import IntArray, KeyArray, hash64, hash64_each
from penstock.order.plan import Request, StreamRequest
from penstock.terminal import one_line

log = logging.getLogger(__name__)

_POLL = 0.2  # seconds between two looks at actors that report nothing
_QUICK = 0.02  # seconds in which only results are waited for
_OFTEN = 0.02  # seconds between two looks at all that has come
_PATIENCE = 30.0  # seconds without a place for an actor, after which a message says so
_LAST = 1.0  # seconds for what a dead actor has made to arrive


class RayTask(Task):
    """A request, wherever it is.

    Attributes:
        worker: that has it.
        ref: to its result, once it was handed to an actor.
        size: bytes of its result that count as ready.
        losses: results that were made and lost with their node.
        is_dropped: nobody waits for it any more.
    """

    def __init__(self, request: Asked, number: int, pool: RayPool) -> None:
        super().__init__(request)
        self._number, self._pool = number, pool
        self.worker: Any = None
        self.ref: Any = None
        self.size = self.losses = 0
        self.is_dropped = False

    def __lt__(self, other: RayTask) -> bool:
        return self._number < other._number

    def take(self) -> Result:
        self._pool.taken(self)
        return super().take()


class RayPool:
    """Ray actors, and the results that they make.

    Args:
        fetch: what they do.
        seed: of the first actor's generators.
        options: how many there are, and when one is given up.

    Attributes:
        largest: bytes of the largest result so far.
    """

    def __init__(self, fetch: Fetch, seed: int, options: LoaderOptions) -> None:
        self._owner, self._options, self._dataset = os.getpid(), options, fetch.dataset
        size, self._given = options.num_workers, ray_cluster.options_of(options)
        self._window = int(self._given.window * ray_cluster.GIB)
        self._memory = StoreMemory(2 * self._window)
        self._placement: Placement | None = None
        self._nodes: list[str] = []  # of the actors that it is for
        self._numbers = count()
        self._backlog: list[RayTask] = []  # a heap
        self._flying: dict[Any, RayTask] = {}  # by reference, in order
        self._ready = self.largest = 0  # bytes of what waits for the consumer
        self._waits = True
        self._began = self._looked = self._drained = time.monotonic()
        self._is_over = False
        self.workers: list[RayWorker] = []
        payload = cloudpickle.dumps(fetch)
        ray_cluster.connect(self._given)
        self._folder = TemporaryDirectory(prefix="penstock-")
        try:
            node = ray.get_runtime_context().get_node_id()
            self._fetch: Any = ray.put(np.frombuffer(payload, np.uint8))
            for number in range(size):
                context = ActorContext(
                    number, size, seed + number, options.worker_init_fn, node, self._folder.name
                )
                self.workers.append(RayWorker(context, options))
                self.workers[-1].start(self._fetch)
        except BaseException:
            self.shut_down()
            raise

    @property
    def deaths(self) -> int:
        return sum(worker.deaths for worker in self.workers)

    def begin(self) -> None:
        """Another run: what the last one asked for and did not take is dropped."""
        for task in self._flying.values():
            task.is_dropped = True
        self._backlog.clear()
        self._ready = 0

    def submit(self, request: Asked) -> Task:
        """Hand a request to an actor, or keep it until there is room; never waits."""
        task = RayTask(request, next(self._numbers), self)
        heapq.heappush(self._backlog, task)
        self._dispatch()
        return task

    def taken(self, task: RayTask) -> None:
        """The consumer takes the result of a task."""
        self._ready -= task.size
        self._dispatch()

    def wait(self, seconds: float) -> bool:
        """Look after the actors, then wait at most so long for results; whether there are any."""
        if time.monotonic() - self._looked >= _POLL:
            self._supervise()
        ready = self._come(_QUICK, list(self._flying))
        if not ready:
            others = [ref for worker in self.workers for ref in worker.refs]
            ready = self._come(min(seconds, _POLL), [*self._flying, *others])
        with waiting():  # a request to stop is raised here, since inside of Ray it gets lost
            heard = False
        for ref in ready:
            if ref in self._flying:
                heard |= self._receive(self._flying[ref])
        for worker in self.workers:
            if worker.hears(ready):
                heard |= self._reap(worker)
        self._dispatch()
        return heard

    def _come(self, seconds: float, refs: list[Any]) -> list[Any]:
        """Those of `refs` that are there, after so many seconds at most."""
        if not refs:
            return []
        try:
            with held():
                ready, _ = ray.wait(refs, timeout=seconds)
            now = time.monotonic()
            if ready and now - self._drained >= _OFTEN:
                self._drained = now  # to know who is free; it costs as much as to wait
                ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        except RayError as error:
            raise WorkerError(f"the connection to Ray was lost: {one_line(error)}") from error
        except SystemError as error:  # which Ray makes of a Ctrl-C
            raise error.__cause__ or error from None
        return ready

    def late(self, limit: float) -> str:
        return ""

    def shut_down(self) -> None:
        """End the actors, and Ray if it was begun here and nobody else needs it."""
        if self._is_over or self._owner != os.getpid():
            return
        self._is_over = True
        try:
            for worker in self.workers:
                worker.end()
            self._flying.clear()
            self._backlog.clear()
            self._fetch = None
        finally:
            ray_cluster.disconnect()
            self._folder.cleanup()

    def _dispatch(self) -> None:
        """Hand out what there is room for, the oldest request first."""
        while self._backlog and not self._is_over:
            flying, size = len(self._flying), len(self.workers)
            # Of the first batches' size nothing is known.
            most = size * self._options.ahead if self.largest else size
            fits = self._ready + (flying + 1) * self.largest <= self._window
            if flying and (flying >= most or not fits):
                return
            worker = self._worker_for(self._backlog[0].request)
            if worker is None:
                return
            task = heapq.heappop(self._backlog)
            task.ref = worker.make(task)
            self._flying[task.ref] = task

    def _worker_for(self, request: Asked) -> RayWorker | None:
        """Who is to make a batch; None if nobody has room."""
        begun = [worker for worker in self.workers if worker.begun]
        loads = [len(worker.tasks) for worker in begun]
        if sum(loads) >= self._options.ahead * len(begun):
            return None
        nodes = [worker.begun.node for worker in begun if worker.begun]
        if self._placement is None or nodes != self._nodes:
            self._placement, self._nodes = Placement(self._dataset, nodes), nodes
        return begun[self._placement.worker(request, loads)]

    def _receive(self, task: RayTask) -> bool:
        """Take what has come for a task; whether it now has a result."""
        worker = task.worker
        try:
            made = ray.get(task.ref, timeout=_LAST)
        except (GetTimeoutError, ObjectLostError):  # made, and lost with a node
            self._forget(task)
            self._ask_again(task)
        except RayTaskError as error:  # of Ray's own part in it: the store is full, and such
            self._forget(task)
            task.result = error
        except RayError as error:
            worker.error = error
            return self._reap(worker)
        else:
            self._forget(task)
            self._finish(task, made)
        return task.result is not None

    def _forget(self, task: RayTask) -> None:
        del self._flying[task.ref]
        task.worker.tasks.remove(task)
        task.ref = None

    def _ask_again(self, task: RayTask) -> None:
        task.losses += 1
        if task.is_dropped:
            return
        if task.losses < max(3, self._options.max_deaths):
            heapq.heappush(self._backlog, task)
            return
        epoch, step = task.request.epoch, task.request.step
        text = (
            f"epoch {epoch}, step {step} was made {task.losses} times, and lost each time "
            "before it arrived, as are objects on nodes that end"
        )
        task.result = Failure(task.request, WorkerError(text))

    def _finish(self, task: RayTask, made: Any) -> None:
        """Make a result of what an actor has sent."""
        if task.is_dropped:
            return
        task.result, task.size = unpack(made, self._memory)
        self.largest = max(self.largest, task.size)
        self._ready += task.size

    def _supervise(self) -> None:
        """End the actors that hang."""
        now = time.monotonic()
        # Only time spent waiting counts: this process may have been stopped meanwhile.
        passed, self._looked = min(now - self._looked, 2 * _POLL), now
        limit = self._options.limit
        for worker in self.workers:
            worker.look(passed)
            if limit and worker.silent >= limit:
                how = f"gave no sign of life for {limit:g} s (loader.timeout) and was killed"
                self._reap(worker, how)
        waits = self._waits and not any(worker.begun for worker in self.workers)
        self._waits = waits
        if waits and now - self._began > _PATIENCE:
            self._waits = False
            needed = {"CPU": self._given.cpus_per_actor, **self._given.resources}
            there = {name: ray.available_resources().get(name, 0.0) for name in needed}
            if any(there[name] < number for name, number in needed.items()):
                log.warning(
                    "loader.ray: no actor has begun in %g s; each wants %s, and Ray has %s",
                    _PATIENCE,
                    _listed(needed),
                    _listed(there),
                )

    def _reap(self, worker: RayWorker, how: str = "") -> bool:
        """Report a death; continue with another actor or an error. Whether that is there."""
        stack = worker.stack()
        worker.deaths += 1
        held = self._held_by(worker)
        requests = [task.request for task in held]
        how = how or _why(worker.error)
        report = FailureReport(worker.who, how, worker.status, requests, stack)
        text = report.report(self._dataset)
        begun = worker.begun
        worker.end()
        if begun is None:
            worker.failed_starts += 1
            if worker.failed_starts >= self._options.max_deaths:
                raise WorkerError(
                    f"{text}\n    before it could begin, {worker.failed_starts} times"
                )
        worker.start(self._fetch)
        for task in held[1:]:
            heapq.heappush(self._backlog, task)
        if not held:
            log.warning("%s\n    another actor is started", text)
            return False
        task, limit = held[0], self._options.max_deaths
        task.deaths += 1
        if task.deaths < limit:
            heapq.heappush(self._backlog, task)
            log.warning(
                "%s\n    death %d of %d at this address; another actor makes the same batches",
                text,
                task.deaths,
                limit,
            )
            return False
        error = WorkerError(
            f"{text}\n    death {task.deaths} at this address, and loader.max_deaths={limit}. Look "
            "at its samples (task=replay makes that one batch again in this process), or leave "
            "them out"
        )
        task.result = Failure(task.request, error)
        return True

    def _held_by(self, worker: RayWorker) -> list[RayTask]:
        """The requests that a dead actor has not answered; takes the answers that it has."""
        held = []
        for task in list(worker.tasks):
            try:
                made = ray.get(task.ref, timeout=_LAST) if worker.error else None
            except RayError:
                made = None
            self._forget(task)
            if made is not None:
                self._finish(task, made)
            elif not task.is_dropped:
                held.append(task)
        return held


def _why(error: RayError | None) -> str:
    """How an actor died, as far as Ray knows."""
    text = str(error)
    if "node has died" in text or "node was" in text:
        return "died with its node"
    detail = re.search(r"exit detail: ([^.\n]*)", text)
    cause = detail[1] if detail else text.strip().splitlines()[-1]
    return f"died: {one_line(cause)}"


def _listed(resources: dict[str, float]) -> str:
    return ", ".join(f"{number:g} {name}" for name, number in resources.items())


class RayBackend(PoolBackend):
    """Works in Ray actors."""

    pins = False
    executor = "Ray actor"

    def __init__(self, fetch: Fetch, options: LoaderOptions) -> None:
        require_picklable(fetch)
        super().__init__(fetch, options)

    def _new_pool(self) -> RayPool:
        return RayPool(self._fetch, self._seed % 2**62, self._options)

    def pids(self) -> list[int]:
        """Of the actors that have begun, each on its own node."""
        workers = self._pool.workers if isinstance(self._pool, RayPool) else []
        return [worker.begun.pid for worker in workers if worker.begun]


def require_picklable(fetch: Fetch) -> None:
    """Refuse what cannot be sent to an actor before anything has begun; pickles all of it.

    Raises:
        ConfigError: names the parts.
    """
    try:
        cloudpickle.dumps(fetch)
    except Exception as error:
        problems = []
        for key, part in parts_of(fetch).items():
            try:
                cloudpickle.dumps(part)
            except Exception as own:
                problems.append(
                    Problem(key, f"cannot be sent to Ray actors: {own}. Use loader.backend=process")
                )
        if problems:
            raise ConfigError(problems) from error
        raise


LOAD = (5, 4)  # a worker has at most 5/4 of the average, rounded up


class Placement:
    """Requests to workers.

    Args:
        dataset: without a `locality` (docs/own_dataset.md), or a stream, requests go to
            the worker with the least to do.
        nodes: the name of each worker's machine. A worker is known by it and by its number there,
            so another run on the same machines finds what this one has left in their caches.
    """

    def __init__(self, dataset: Any, nodes: Sequence[str]) -> None:
        self._locality: Callable[[IntArray], Any] | None = getattr(dataset, "locality", None)
        self._kind = type(dataset).__name__
        names = sorted(set(nodes))
        self._nodes = np.array([names.index(node) for node in nodes])
        self._keys = keys_of(nodes)

    def worker(self, request: Request | StreamRequest, loads: Sequence[int]) -> int:
        """The number of the worker to make `request`.

        Args:
            loads: requests that each worker has and has not answered.

        Raises:
            ConfigError: the dataset's `locality` fails, or gives other than a number a row.
        """
        votes = np.zeros(len(self._keys), np.int64)
        if self._locality is not None and isinstance(request, Request) and len(votes) > 1:
            shards = self._shards(request.indices[: max(request.valid, 1)])
            votes = np.bincount(homes(shards, self._keys), minlength=len(votes))
        of_nodes = np.bincount(self._nodes, weights=votes)[self._nodes]
        limit = bound(loads)
        free = [worker for worker, load in enumerate(loads) if load < limit]
        return min(free, key=lambda worker: (-of_nodes[worker], -votes[worker], loads[worker]))

    def _shards(self, rows: IntArray) -> IntArray:
        assert self._locality is not None
        try:
            numbers = np.asarray(self._locality(rows))
        except Exception as error:
            raise ConfigError(
                f"{self._kind}.locality failed: {type(error).__name__}: {error}. Repair it, or "
                "take it out: it only keeps caches warm"
            ) from error
        if numbers.dtype.kind not in "iu" or numbers.shape != rows.shape:
            raise ConfigError(
                f"{self._kind}.locality gave {numbers.dtype}{list(numbers.shape)} for {len(rows)} "
                "rows; it has to give a whole number for each of them"
            )
        return numbers.astype(np.int64)


def bound(loads: Sequence[int]) -> int:
    """The load at which a worker gets no more; at least one of `loads` is below it."""
    above, below = LOAD
    return -(-above * (sum(loads) + 1) // (below * len(loads)))


def keys_of(nodes: Sequence[str]) -> KeyArray:
    """A key for each worker, of its node and its number there: uint64[workers]."""
    seen: Counter[str] = Counter()
    keys = []
    for node in nodes:
        keys.append(hash64("locality", node, seen[node]))
        seen[node] += 1
    return np.array(keys, np.uint64)


def homes(shards: IntArray, keys: KeyArray) -> IntArray:
    """The worker of each shard, int64[n]: the one whose key and the shard's have the highest hash.

    Depends on the keys alone: with another worker, a shard stays or goes to that one.
    """
    scores = hash64_each(keys[:, None], shards[None, :])
    return scores.argmax(axis=0)
