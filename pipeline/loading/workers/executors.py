"""Who works on requests, and how far ahead of the consumer.

    submit(request) -> Task     hands a request to whoever is free; never waits
    finished                    an Event, set whenever a task has its result
    check()                     raises what keeps all results from coming
    drop()                      forgets the requests that no worker has begun
    deaths                      how many workers died or hung, and were replaced
    close()

Executors are worker processes (pool.py), threads (below) and Ray's actors (addons/ray). All of
them run the same fetch, so that none changes a batch. `Workers` is what a loader holds: it opens
one of them for an epoch, and takes its results in order. Without workers it calls the fetch itself.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields
from itertools import islice, takewhile
from multiprocessing.util import Finalize
from typing import Any

from penstock.distributed import world
from penstock.distributed.stop import requested, waiting
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.loading import worker_status
from penstock.loading.bad_samples import path_of
from penstock.loading.facts import own_row, sample_name
from penstock.loading.worker_status import WorkerStatus
from penstock.order.keys import begin_sample, hash64
from penstock.order.seeding import scope
from penstock.torch_internals import ExceptionWrapper, tree_leaves

POLL = 0.2  # seconds between two looks at workers that report nothing
_MOST = 8  # batches beyond the normal window, for each worker
_SHRINK = 64  # batches after which the window is one smaller
_MOST_LISTED = 32  # samples of a batch in a message
_MOST_WORKERS = 16  # of `auto`
# What only worker processes have, and what all workers have.
_OF_PROCESSES = ("timeout", "worker_init_fn", "multiprocessing_context", "persistent_workers")
_OF_WORKERS = ("prefetch_factor", *_OF_PROCESSES)


class WorkerError(PenstockError):
    """Workers died again and again on one batch.

    Attributes:
        pid: of the process that died last, if one did.
    """

    pid: int | None = None


class Task:
    """A request that was handed over.

    Attributes:
        result: None until it is there: a batch, End, or an error to raise.
        deaths: of the workers that had it.
    """

    def __init__(self, request: Any) -> None:
        self.request, self.deaths = request, 0
        self.result: Any = None

    def take(self) -> Any:
        """The result, which belongs to its consumer alone; raises an error that stands for it."""
        result, self.result = self.result, None
        if isinstance(result, ExceptionWrapper):
            result.reraise()
        if isinstance(result, BaseException):
            raise result
        return result


class Silence:
    """How long a worker has given no sign of life, not counting pauses of the thread that looks."""

    def __init__(self) -> None:
        self._seen: Any = None
        self._seconds, self._looked = 0.0, time.monotonic()

    def look(self, seen: Any, is_busy: bool) -> float:
        """Seconds for which a worker that is busy has shown `seen`, as far as this was called."""
        now = time.monotonic()
        # A program that was stopped or that trains for long has not looked; no worker hung
        # meanwhile.
        passed, self._looked = min(now - self._looked, 2 * POLL), now
        self._seconds = self._seconds + passed if is_busy and seen == self._seen else 0.0
        self._seen = seen
        return self._seconds


def attempt(fetch: Callable[[Any], Any], request: Any) -> Any:
    """The batch of `request`; meanwhile this executor's status says that it works on it."""
    worker_status.report(worker_status.WHOLE, worker_status.READ, (request.epoch, request.step))
    try:
        return fetch(request)
    finally:
        begin_sample(None)
        worker_status.report(worker_status.WHOLE, worker_status.IDLE)


def results(
    executor: Any, pending: deque[Task], requests: Iterator[Any], options: LoaderOptions
) -> Iterator[Any]:
    """Requests with their results: of `pending`, which is the window, and then of `requests`.

    The window is workers times `prefetch_factor`, as torch's. While a batch with a slow sample is
    waited for, those behind it get ready, and the workers would have nothing to do: then it grows,
    within `slow_memory`, so that the next slow one begins earlier. It shrinks again slowly.
    """
    window = normal = options.num_workers * options.prefetch_factor
    limit, delivered, since = options.batch_timeout, 0, time.monotonic()
    while pending:
        # Before the look at results: one that comes in between sets it again.
        executor.finished.clear()
        ready = [task for task in pending if task.result is not None]
        if ready and (ready[0] is pending[0] or not options.in_order):
            pending.remove(ready[0])
            delivered += 1
            window -= window > normal and delivered % _SHRINK == 0
            pending.extend(map(executor.submit, islice(requests, max(window - len(pending), 0))))
            task = ready.pop(0)
            yield task.request, task.take()
            since = time.monotonic()
            continue
        beyond = window + 1 - normal
        if (
            ready
            and options.in_order
            and len(pending) - len(ready) <= options.num_workers
            and beyond <= _MOST * options.num_workers
            and 0 < beyond * max(map(nbytes, ready)) <= options.slow_memory
        ):
            window += 1
            pending.extend(map(executor.submit, islice(requests, 1)))
        with waiting():
            # In short turns: a signal and a dead worker are noticed only between them.
            has_result = executor.finished.wait(min(limit or POLL, POLL))
        if has_result:
            since = time.monotonic()
        elif limit and time.monotonic() - since >= limit:
            raise RuntimeError(f"DataLoader timed out after {limit} seconds")  # torch's words
        executor.check()


def nbytes(result: Any) -> int:
    """Bytes of the tensors and arrays of a batch, and one more."""
    leaves = tree_leaves(dict(result) if isinstance(result, dict) else result)
    return 1 + sum(getattr(leaf, "nbytes", 0) for leaf in leaves)


def report_of(
    who: str, how: str, status: WorkerStatus, request: Any, dataset: Any, stack: str, hint: str = ""
) -> str:
    """What is said of a worker that died or hangs, without an end of line.

    Args:
        who: which worker, with its pid where it has one.
        how: what happened to it, as the end of a sentence about it.
        status: where it stood last.
        request: that it had, if any.
        stack: most recent call first; what lies below our own code that calls the fetch is cut off.
        hint: what else is known.
    """
    rows = [*getattr(request, "indices", ())]
    names = [_name(row, dataset) for row in rows[:_MOST_LISTED]]
    where = worker_status.STAGES[status.stage]
    if status.stage not in (worker_status.STARTING, worker_status.IDLE):
        where = f"at stage '{where}' of epoch {status.epoch}, step {status.step}"
        if 0 <= status.place < len(rows):
            where += f", sample {_name(rows[status.place], dataset, '{} ({})')}"
            where += f", {status.place + 1} of {len(rows)}"
    lines = [f"{who} {how}", f"    it was {where}"]
    if request is not None:
        more = f" and {len(rows) - _MOST_LISTED} more" if len(rows) > _MOST_LISTED else ""
        samples = f": samples {', '.join(names)}{more}" if rows else " of a stream"
        lines.append(f"    it held epoch {request.epoch}, step {request.step}{samples}")
    lines += [f"    {hint}"] if hint else []
    of_work = [*takewhile(lambda line: "loading/workers/" not in line, stack.splitlines())]
    lines += ["    its stack:", *(f"      {line}" for line in of_work)] if of_work else []
    return "\n".join(lines)


def _name(row: Any, dataset: Any, form: str = "{} {}") -> str:
    """A sample's number, with its path where the dataset knows one."""
    name, path = sample_name(row, own_row(dataset, row)), path_of(dataset, row)
    return form.format(name, path) if path else name


def by_exit_code(code: int) -> tuple[str, str]:
    """An exit code of multiprocessing in words, and a hint on it."""
    if code >= 0:
        return f"exited unexpectedly with code {code}", ""
    name = next((f" ({one.name})" for one in signal.Signals if one == -code), "")
    hints: dict[int, str] = {
        signal.SIGKILL: "SIGKILL leaves no stack behind; the system also sends it when memory runs "
        "out (dmesg tells)",
        signal.SIGBUS: "SIGBUS also comes when shared memory or a mapped file runs out of space",
    }
    return f"was killed by signal {-code}{name}", hints.get(-code, "")


class Workers:
    """The executor of a loader: opened with an epoch, and kept for the next one if persistent.

    Args:
        fetch: request to batch.
        pin: executors that can put batches into page-locked memory shall do it.

    Raises:
        ConfigError: names the parts that cannot be sent to workers.
    """

    def __init__(self, fetch: Any, options: LoaderOptions, pin: bool = False) -> None:
        self._fetch, self._options, self._pin = fetch, options, pin
        self.executor: Any = None
        self._deaths = self._opened = 0
        self.in_main = options.backend == "main" or options.num_workers == 0
        if not self.in_main and options.backend == "process":
            from penstock.loading.workers import pool

            pool.refuse_unsendable(fetch, options)

    @property
    def deaths(self) -> int:
        """Workers that died or hung, and were replaced."""
        return self._deaths + (self.executor.deaths if self.executor else 0)

    def processes(self) -> list[Any]:
        """The worker processes, as multiprocessing has them."""
        return list(getattr(self.executor, "processes", list)())

    @contextmanager
    def run(self, requests: Iterator[Any]) -> Iterator[Iterator[Any]]:
        """`requests` with their results; leaving the context drops what was not taken."""
        if self.in_main:
            # As a generator, which makes RuntimeError of a StopIteration that data code lets out.
            yield ((request, self._work(request)) for request in requests)
            return
        if self.executor is None:
            self.executor = self._open()
            # Once: here, when this is collected, or at exit, where multiprocessing waits for
            # its processes only afterwards. A forked process has none of them.
            self._close = Finalize(self, self.executor.close, exitpriority=100)
        try:  # submit the first requests now, not with the first `next`
            first = islice(requests, self._options.num_workers * self._options.prefetch_factor)
            pending = deque(map(self.executor.submit, first))
            yield results(self.executor, pending, requests, self._options)
        finally:
            self.close() if not self._options.persistent_workers else self.executor.drop()

    def _work(self, request: Any) -> Any:
        # The training loop draws from the same generators.
        with nullcontext() if getattr(self._fetch, "draws_nothing", False) else scope(), waiting():
            return attempt(self._fetch, request)

    def _open(self) -> Any:
        """An executor; its modules alone are imported."""
        seed, self._opened = self._options.generator, self._opened + 1
        seed = hash64(self._fetch.seed if seed is None else seed, "workers", self._opened) >> 1
        if self._options.backend == "thread":
            return Threads(self._fetch, self._options.num_workers)
        if self._options.backend == "process":
            from penstock.loading.workers.pool import Pool

            return Pool(self._fetch, self._options, seed, self._pin)
        from penstock.addons.ray.actors import Actors

        return Actors(self._fetch, self._options, seed)

    def close(self) -> None:
        """End the workers that were kept."""
        executor, self.executor = self.executor, None
        if executor is not None:
            self._close()
            self._deaths += executor.deaths


class Threads:
    """Threads of this process, as an executor; requests are begun in the order in which they come.

    They are daemons, so that one that hangs does not keep the program from ending.
    """

    deaths = 0

    def __init__(self, fetch: Any, workers: int) -> None:
        self._fetch, self.finished = fetch, threading.Event()
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._first = threading.Lock()
        self._threads = [threading.Thread(target=self._live, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, request: Any) -> Task:
        task = Task(request)
        self._tasks.put(task)
        return task

    def _live(self) -> None:
        """Work on one task after another."""
        while (task := self._tasks.get()) is not None:
            # The first batch, made alone, shows whether data code draws from what threads share.
            with nullcontext() if self._fetch.draws_nothing else self._first:
                is_known = self._fetch.draws_nothing
                make = self._fetch if is_known else self._fetch.first_of_threads
                try:
                    task.result = attempt(make, task.request)
                except BaseException as error:
                    task.result = error
            del task  # a batch is its consumer's alone
            self.finished.set()

    def check(self) -> None:
        """Nothing: a thread that hangs cannot be replaced, so its batch is awaited for ever."""

    def drop(self) -> None:
        """Forget the requests that no thread has begun."""
        with suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()

    def close(self) -> None:
        """Wait for what was begun, unless the run is to stop."""
        self.drop()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            while thread.is_alive() and not requested():
                thread.join(POLL)


@dataclass(frozen=True)
class LoaderOptions:
    """Who works, and how far ahead.

    All but `backend` and `max_deaths` have torch's names and meanings, except that workers which
    die or hang are replaced.

    Attributes:
        backend: "main", "process", "thread", or one of an add-on; with no workers it is "main".
        num_workers: processes, threads or actors, per rank.
        prefetch_factor: batches each worker is ahead.
        timeout: seconds without a sign of life from a worker (a sample begun, a stage) after which
            it hangs; 0 waits for ever, for debuggers.
        max_deaths: of worker processes at one address, after which the run stops.
        batch_timeout: seconds without a batch, while one is waited for, after which the run ends,
            like torch's `timeout`; 0 waits for ever.
        generator: seed of the generator that worker seeds are drawn from; None derives it from the
            run's. No batch depends on it.
        slow_memory: bytes of batches that may wait, beyond the window, behind a slow one.
        own: what else the backend takes, where an add-on brings it.
    """

    backend: str = "main"
    num_workers: int = 0
    prefetch_factor: int = 2
    persistent_workers: bool = False
    pin_memory: bool = False
    timeout: float = 120.0
    batch_timeout: float = 0.0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: str | None = None
    in_order: bool = True
    generator: int | None = None
    max_deaths: int = 3
    slow_memory: int = 256 << 20
    own: object = None


def check(section: Any) -> None:
    """Raise ConfigError for options of a section `loader` that torch's DataLoader refuses too."""
    none = section.backend == "main" or section.num_workers == 0
    refused = _OF_WORKERS if none else _OF_PROCESSES if section.backend == "thread" else ()
    problems = [
        Problem(
            f"loader.{name}",
            f"{value!r} needs worker{'s' if none else ' processes'}, and "
            f"loader.backend={section.backend} with loader.num_workers={section.num_workers} has "
            "none; leave it out, or set "
            "loader.backend=process and loader.num_workers=1 or more",
        )
        for name in refused
        if (value := getattr(section, name))
    ]
    if problems:
        raise ConfigError(problems)


def options_of(
    section: Any, threads: bool, worker_init_fn: Callable[[int], None] | None, own: Any
) -> LoaderOptions:
    """The options of a section `loader`, with values for "auto" and null.

    Args:
        threads: "auto" is threads, unless an option needs processes.
        worker_init_fn: what the name in the section stands for.
        own: of an add-on's backend.

    Raises:
        ConfigError: as `check`.
    """
    check(section)
    backend, count = section.backend, section.num_workers
    if backend == "auto":
        processes = worker_init_fn or section.multiprocessing_context or section.timeout
        backend = "thread" if threads and not processes else "process"
    if count == "auto":
        count = min(world.usable_cpus(), _MOST_WORKERS)
    kept, pins = backend not in ("main", "thread") and count > 0, section.pin_memory
    values = section.model_dump(include={field.name for field in fields(LoaderOptions)}) | {
        "backend": backend,
        "num_workers": count,
        "prefetch_factor": section.prefetch_factor or LoaderOptions.prefetch_factor,
        "timeout": LoaderOptions.timeout if section.timeout is None else section.timeout,
        "persistent_workers": kept and section.persistent_workers is not False,
        "slow_memory": int(section.slow_memory * 2**30),
        "pin_memory": world.has_accelerator() if pins is None else pins,
        "worker_init_fn": worker_init_fn,
        "own": own,
    }
    return LoaderOptions(**values)
