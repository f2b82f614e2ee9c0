"""A worker of a Ray pool, as the loader's process sees it: an actor, replaced when it dies."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import socket
import time
from array import array
from collections import deque
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from penstock.addons.ray import cluster as ray_cluster
from penstock.addons.ray.actor import ActorContext, BatchActor, Begun
from penstock.errors import ConfigError, Problem
from penstock.loading import worker_status
from penstock.loading.worker_status import WorkerStatus
from penstock.loading.workers import failures
from penstock.loading.workers.options import LoaderOptions
from penstock.terminal import one_line

_ASK_SECONDS = 1.0  # between two questions for the status of an actor on another node
_STACK_SECONDS = 1.0


class RayWorker:
    """One worker.

    Args:
        options: of the loader.
        context: what its actor is given: among others a folder for its status and its stack.

    Attributes:
        tasks: handed to its actor and without a result, in order.
        deaths: of its actors.
        failed_starts: of these, those in a row that died before they could work.
        begun: None until the actor has begun.
        silent: seconds without a sign of life, as the loader's process has seen it.
        error: why its actor is no more.
    """

    def __init__(self, context: ActorContext, options: LoaderOptions) -> None:
        self.number = context.number
        self.tasks: deque[Any] = deque()
        self.deaths = self.failed_starts = 0
        self.begun: Begun | None = None
        self.silent = 0.0
        self.error: RayError | None = None
        self._context, self._options = context, ray_cluster.options_of(options)
        self._name = Path(context.folder) / str(context.number)
        self._actor: Any = None
        self._make: Any = None
        self._starting: Any = None
        self._life: Any = None
        self._asked: Any = None
        self._asked_at = 0.0
        self._told = False
        self._seen: Any = None
        self._cell: Any = memoryview(array("q", bytes(8 * worker_status.FIELDS)))

    @property
    def refs(self) -> list[Any]:
        """The awaited answers besides results."""
        refs = (self._life, self._starting, self._asked)
        return [ref for ref in refs if ref is not None]

    def start(self, fetch: Any) -> None:
        """Start an actor; `fetch` is a reference to the pickled fetch."""
        self.begun, self.error, self.silent, self._seen = None, None, 0.0, None
        self._name.with_suffix(".status").write_bytes(bytes(8 * worker_status.FIELDS))
        self._name.with_suffix(".stack").write_bytes(b"")
        with open(self._name.with_suffix(".status"), "r+b") as file:
            self._cell = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        worker_status.clear(self._cell)
        options = ray_cluster.actor_options(self._options)
        actor: Any = ray.remote(**options)(BatchActor)
        self._actor = actor.remote(self._context)
        self._make = self._actor.make
        self._life = self._actor.live.remote()
        self._starting = self._actor.begin.remote(fetch)

    def make(self, task: Any) -> Any:
        """Hand a task to the actor; a reference to its result."""
        self.tasks.append(task)
        self._told = False
        task.worker = self
        return self._make.remote(pickle.dumps(task.request))

    def hears(self, ready: Container[Any]) -> bool:
        """Take what has come of `refs`; whether the actor is no more.

        Raises:
            ConfigError: it cannot be a worker where it is.
        """
        try:
            if self._starting in ready:
                ref, self._starting = self._starting, None
                self.begun = ray.get(ref)
                self.failed_starts = 0
            if self._asked in ready:
                ref, self._asked = self._asked, None
                for field, number in enumerate(ray.get(ref)):
                    self._cell[field] = number
                self._told = True
            if self._life in ready:
                ray.get(self._life)
        except RayTaskError as error:
            raise _unable(str(error)) from None
        except RayError as error:
            if getattr(error, "actor_init_failed", False):
                raise _unable(str(error)) from None
            self.error = error
            return True
        return False

    @property
    def status(self) -> WorkerStatus:
        """Where it stands; UNKNOWN if it is on another node and has not been asked."""
        knows = self.begun is None or self.begun.shares or self._told
        return worker_status.read(self._cell) if knows else worker_status.UNKNOWN

    @property
    def who(self) -> str:
        """Its number, with the pid and, where that is another one, the host of its actor."""
        begun = self.begun
        if begun is None:
            return f"DataLoader worker {self.number} (a Ray actor)"
        host = "" if begun.host == socket.gethostname() else f" on {begun.host}"
        return f"DataLoader worker {self.number} (pid {begun.pid}{host})"

    def look(self, passed: float) -> None:
        """Count the time without a sign of life."""
        seen = self.status, len(self.tasks)
        alive = seen != self._seen or not self.tasks or self.begun is None
        self.silent = 0.0 if alive else self.silent + passed
        self._seen = seen
        asks = self.begun is not None and not self.begun.shares and self.silent >= _ASK_SECONDS
        if asks and self._asked is None and time.monotonic() - self._asked_at >= _ASK_SECONDS:
            self._asked, self._asked_at = self._actor.status.remote(), time.monotonic()

    def stack(self) -> str:
        """The stack that a crash has left, or that of an actor that can still tell it."""
        if self.error is None:
            with suppress(RayError):
                stack: str = ray.get(self._actor.stack.remote(), timeout=_STACK_SECONDS)
                return failures.without_start(stack)
        with open(self._name.with_suffix(".stack"), "rb") as file:
            return failures.stack_of(file.fileno())

    def end(self) -> None:
        """Kill the actor if it is there."""
        actor, self._actor, self._make = self._actor, None, None
        self._starting = self._life = self._asked = None
        if actor is None:
            return
        with suppress(RayError, ValueError):  # gone already, or Ray is
            ray.kill(actor)
        if self.begun is not None and self.begun.shares and self.error is None:
            # It is on this node. Ray asks it to end, which one that is stopped does not hear; of
            # others that are killed, Ray would tell a person that they have crashed.
            with suppress(OSError):
                if _is_stopped(self.begun.pid):
                    os.kill(self.begun.pid, signal.SIGKILL)
        self.begun = None


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"


def _unable(text: str) -> ConfigError:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ConfigError(
        Problem(
            "loader.backend",
            f"a Ray actor cannot load this dataset and its transforms: "
            f"{one_line(lines[-1] if lines else text)}. Each node needs the same packages; "
            "install those of your own on the nodes, or start Ray with PYTHONPATH",
        )
    )
