"""Loader workers as Ray actors, on this machine or on a cluster.

Where a program has called `ray.init` itself, or runs in a Ray Train worker, that Ray is used and
left as it was. Otherwise `loader.ray.address` says which: null starts one on this machine, which
listens on the loopback interface, demands a token and ends with this process; auto joins the one
that RAY_ADDRESS names. Ray starts an actor again when it dies, and asks it again for what it had:
a batch that is made twice is the same batch.

Cost: 3 s to start Ray; a batch takes 1 ms more than from a worker process.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field

from penstock.distributed.stop import SIGNALS
from penstock.errors import ConfigError, Problem
from penstock.loading import worker_status
from penstock.loading.workers.executors import (
    LoaderOptions,
    Silence,
    Task,
    WorkerError,
    attempt,
    report_of,
)
from penstock.loading.workers.pool import as_worker, wrapped
from penstock.torch_internals import share_by

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RayOptions:
    """Where actors run, and what each of them needs; the section `loader.ray`.

    Attributes:
        address: None starts Ray here; "auto" joins the one of RAY_ADDRESS.
        cpus_per_actor: that Ray reserves.
    """

    address: Literal["auto"] | None = None
    cpus_per_actor: Annotated[float, Field(ge=0, le=10_000)] = 1.0


def _connected(options: RayOptions, actors: int) -> Any:
    """The package `ray`, once a Ray runs.

    Raises:
        ConfigError: it is not installed, or there is none at the address.
    """
    try:
        import ray
    except ImportError as error:
        advice = "pip install penstock-loader[ray], or loader.backend=process"
        raise ConfigError(
            Problem("loader.backend", f"ray needs the package ray: {advice}")
        ) from error
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS")
    if options.address and not address:
        reason = "auto joins the Ray that RAY_ADDRESS names, as host:port, and it is not set"
        raise ConfigError(Problem("loader.ray.address", reason))
    where: dict[str, Any] = {"address": address}
    if not options.address:
        # Whoever reaches the ports of a Ray can run code in it.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        of_ray: Any = ray._raylet  # which has read them when it was imported
        of_ray.Config.initialize("")
        of_ray.AuthenticationTokenLoader.instance().reset_cache()
        cpus = max(actors, 1) * options.cpus_per_actor + 1
        where = {"address": "local", "_node_ip_address": "127.0.0.1", "num_cpus": int(cpus)}
        where["include_dashboard"] = False
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        ray.init(**where, log_to_driver=False, configure_logging=False)
    except Exception as error:
        reason = f"there is no Ray to be had: {type(error).__name__}: {error}"
        raise ConfigError(Problem("loader.ray.address", reason)) from error
    finally:  # Ray takes the signals by which a run is stopped
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return ray


class _Setup(NamedTuple):
    """What an actor needs besides requests; `fetch` is a reference, which it looks up itself."""

    fetch: Any
    init: Callable[[int], None] | None
    number: int
    workers: int
    seed: int


class Actors:
    """Ray actors that work on requests; see `workers/executors.py`."""

    def __init__(self, fetch: Any, options: LoaderOptions, seed: int) -> None:
        own = options.own if isinstance(options.own, RayOptions) else RayOptions()
        self.finished, self.deaths = threading.Event(), 0
        self._ray, self._options = _connected(own, options.num_workers), options
        self._dataset = fetch.dataset
        _send_tensors_as_arrays()
        kind = self._ray.remote(
            num_cpus=own.cpus_per_actor, max_restarts=-1, max_task_retries=options.max_deaths - 1
        )(_Actor)
        size, sent, init = options.num_workers, self._ray.put(fetch), options.worker_init_fn
        self._setups = [_Setup(sent, init, number, size, seed) for number in range(size)]
        self._actors = [kind.remote() for _ in range(size)]
        self._tasks: list[list[Task]] = [[] for _ in range(size)]
        self._silences = [Silence() for _ in range(size)]
        self._pids: dict[int, int] = {}

    def submit(self, request: Any) -> Task:
        """Hand a request to the actor that has the fewest."""
        number, task = self._tasks.index(min(self._tasks, key=len)), Task(request)
        self._tasks[number].append(task)
        future = self._actors[number].make.remote(self._setups[number], request).future()
        future.add_done_callback(partial(self._done, number, task))
        return task

    def _done(self, number: int, task: Task, future: Any) -> None:
        try:
            pid, task.result = future.result()
        except Exception as error:
            who, most = f"DataLoader worker {number} (Ray actor)", self._options.max_deaths
            status = worker_status.WorkerStatus(-1, -1, -1, worker_status.READ, -1)
            how = f"died {most} times (loader.max_deaths), or could not start"
            text = report_of(who, how, status, task.request, self._dataset, "", str(error))
            task.result = WorkerError(text)
        else:
            if pid != self._pids.setdefault(number, pid):
                self._pids[number], self.deaths = pid, self.deaths + 1
                log.warning("DataLoader worker %d (Ray actor) died, and was started again", number)
        self._tasks[number].remove(task)
        self.finished.set()

    def check(self) -> None:
        """Start actors again that have made no batch for `loader.timeout`."""
        limit = self._options.timeout
        for number, silence in enumerate(self._silences):
            tasks = self._tasks[number]
            if limit and silence.look(tasks[:1], bool(tasks)) >= limit:
                self._silences[number] = Silence()
                log.warning(
                    "DataLoader worker %d (Ray actor) made no batch for %g s", number, limit
                )
                self._ray.kill(self._actors[number], no_restart=False)

    def drop(self) -> None:
        """Submitted requests are still computed; their results are dropped."""

    def close(self) -> None:
        for actor in self._actors if self._ray.is_initialized() else ():
            self._ray.kill(actor)


class _Actor:
    """One worker, in a process that Ray has started, perhaps not for the first time."""

    def __init__(self) -> None:
        self._fetch: Any = None

    def make(self, setup: _Setup, request: Any) -> tuple[int, Any]:
        """The pid of this process, and the result."""
        try:
            if self._fetch is None:
                self._begin(setup)
            return os.getpid(), attempt(self._fetch, request)
        except BaseException as error:
            return os.getpid(), wrapped(error, setup.number)

    def _begin(self, setup: _Setup) -> None:
        import ray

        _send_tensors_as_arrays()
        share_by(torch.UntypedStorage)  # batches leave this process as copies
        fetch = ray.get(setup.fetch)
        self._as_worker = as_worker(fetch, setup.number, setup.workers, setup.seed)
        self._as_worker.__enter__()  # it ends with its object
        if setup.init is not None:
            setup.init(setup.number)
        self._fetch = fetch


def _send_tensors_as_arrays() -> None:
    """Let Ray carry tensors as it does arrays, whose memory it does not pickle."""
    import ray

    ray.util.register_serializer(torch.Tensor, serializer=_to_array, deserializer=_from_array)


def _to_array(tensor: torch.Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return tensor.dtype, tensor.shape, flat.view(torch.uint8).numpy()


def _from_array(parts: Any) -> torch.Tensor:
    dtype, shape, array = parts
    return torch.from_numpy(array.copy()).view(dtype).reshape(shape)  # the consumer writes into it
