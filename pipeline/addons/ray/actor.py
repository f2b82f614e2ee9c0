"""The actor: one worker, in a process that Ray started, on this node or another.

    begin(fetch)     once; seeded and described (`get_worker_info()`) as worker processes are
    make(request)    a batch, whose large buffers Ray puts into its object store
    live()           never returns, so that its caller hears at once when this process dies
    status(), stack()    where it stands, from a thread of its own

On the node of its loader its status lies in a file that both map, and a crash writes its stack into
another: both outlive it.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import pickle
import random
import socket
import sys
import threading
import traceback
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import ray
import torch

from penstock import torch_internals
from penstock.addons.ray.cluster import LAST_ON_PATH
from penstock.addons.ray.message import pack
from penstock.loading import output, worker_status
from penstock.loading.workers.backends import attempt
from penstock.torch_internals import ExceptionWrapper, WorkerInfo, numpy_seed

# Before anything of a person's is unpickled: folders that PYTHONPATH would put in front of what is
# installed.
sys.path.extend(filter(None, os.environ.get(LAST_ON_PATH, "").split(os.pathsep)))


@dataclass(frozen=True)
class ActorContext:
    """The arguments of an actor besides the fetch.

    Attributes:
        number: its place in the pool; `workers` are in it.
        seed: of its generators.
        worker_init_fn: called with `number` before the first request.
        node: of the loader, where there are files called `folder`/`number`.status and .stack.
    """

    number: int
    workers: int
    seed: int
    worker_init_fn: Callable[[int], None] | None
    node: str
    folder: str


class Begun(NamedTuple):
    """An actor that is ready for requests.

    Attributes:
        shares: whether its status is to be read in its file.
    """

    pid: int
    host: str
    node: str
    shares: bool


class BatchActor:
    """Makes batches; each public method is called by `pool.py` alone."""

    def __init__(self, context: ActorContext) -> None:
        self._given = context
        self._cell: Any = memoryview(array("q", bytes(8 * worker_status.FIELDS)))
        self._thread: int | None = None
        self._fetch: Any = None
        self._error: ExceptionWrapper | None = None

    def begin(self, fetch: npt.NDArray[np.uint8]) -> Begun:
        """Unpickle the fetch, and be a worker; may raise anything that a person's code raises."""
        context, number = self._given, self._given.number
        node = ray.get_runtime_context().get_node_id()
        shares = node == context.node and self._share(Path(context.folder) / str(number))
        worker_status.clear(self._cell)
        self._thread = threading.get_ident()
        worker_status.use(self._cell)
        torch.set_num_threads(1)
        # Batches leave this process as copies, so nothing need lie in shared memory, and the memory
        # of one can be that of the next.
        torch_internals.share_by(torch.UntypedStorage)
        output.reuse()
        self._fetch = pickle.loads(fetch.data)
        random.seed(context.seed)
        torch.manual_seed(context.seed)
        np.random.seed(numpy_seed(context.seed - number, number))
        info = WorkerInfo(
            id=number,
            num_workers=context.workers,
            seed=context.seed,
            dataset=self._fetch.dataset_of_worker(),
        )
        self._as_worker = torch_internals.worker_info(info)  # which ends with its object
        self._as_worker.__enter__()
        try:
            if context.worker_init_fn is not None:
                context.worker_init_fn(number)
        except Exception:
            self._error = self._wrapped()  # the first result
        worker_status.report(worker_status.WHOLE, worker_status.IDLE)
        return Begun(os.getpid(), socket.gethostname(), node, shares)

    def _share(self, name: Path) -> bool:
        """Whether the files could be opened."""
        try:
            status = os.open(name.with_suffix(".status"), os.O_RDWR)
            stack = os.open(name.with_suffix(".stack"), os.O_WRONLY)
        except OSError:
            return False
        self._cell = memoryview(mmap.mmap(status, 8 * worker_status.FIELDS)).cast("q")
        os.close(status)
        faulthandler.enable(stack, all_threads=False)  # of the others, none is a person's
        return True

    def make(self, request: bytes) -> Any:
        """The result of a pickled request, packed; an error is wrapped, to be raised there."""
        error, self._error = self._error, None
        try:
            return pack(error or attempt(self._fetch, pickle.loads(request)))
        except Exception:
            return pack(self._wrapped())

    def _wrapped(self) -> ExceptionWrapper:
        return ExceptionWrapper(where=f"in DataLoader worker {self._given.number} (Ray actor)")

    @ray.method(concurrency_group="life")
    def live(self) -> None:
        threading.Event().wait()

    @ray.method(concurrency_group="watch")
    def status(self) -> list[int]:
        """The content of its cell."""
        numbers: list[int] = self._cell.tolist()
        return numbers

    @ray.method(concurrency_group="watch")
    def stack(self) -> str:
        """Of the thread that makes batches, most recent call first, as faulthandler writes it."""
        frame = sys._current_frames().get(self._thread or 0)
        calls = reversed(traceback.extract_stack(frame)) if frame else ()
        return "\n".join(f'  File "{c.filename}", line {c.lineno} in {c.name}' for c in calls)
