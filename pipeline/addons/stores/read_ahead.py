"""A process beside the loader that fetches files before the samples in them are read.

    loader -> "step 12 delivered, workers have steps to 15" -> this process -> the cache of files

The next requests are known, so it needs no more than that. It is not a thread: threads of a store's
library don't survive the forks that start workers, and would take the training's turns. It only
fills the cache. Whatever becomes of it, workers fetch what is missing, and report what is wrong.

Only for rows whose dataset names their files (`files_of`), and for shards of streams
whose dataset names theirs (`files_of_shard`), where some are at addresses.
Cost: a fork and a few MiB for each loader of remote files; 5 us a batch.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import select
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from penstock.addons.stores.stream_ahead import StreamPrefetcher
from penstock.errors import PenstockError
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.pool import start_method
from penstock.order.address import Address
from penstock.order.plan import Plan, StreamPlan

log = logging.getLogger(__name__)

_NEWS = struct.Struct("<qqqq")  # epoch, steps delivered, steps handed out, whether it goes on
_MOST_STARTS = 3


class ReadAhead:
    """The loader's side.

    Args:
        plan, rank, world: whose rows are read.
        dataset: names their files.
        window: batches that workers have in hand or that wait for their turn.
        method: how the process is started.
    """

    def __init__(
        self,
        plan: Plan | StreamPlan,
        dataset: Any,
        rank: int,
        world: int,
        window: int,
        method: str,
    ) -> None:
        self._given = plan, dataset, rank, world
        self._window, self._method = window, method
        self._process: Any = None
        self._socket: socket.socket | None = None
        self._starts = 0
        self._owner = os.getpid()
        self._news = (0, 0, 0)

    def requests(self, epoch: int, step: int, requests: Iterator[Any]) -> Iterator[Any]:
        """`requests` from `step` on, noted as they are handed out."""
        self._news = epoch, step, step + self._window  # which are about to be handed out
        self._tell()
        for request in requests:
            _, delivered, handed = self._news
            self._news = epoch, delivered, max(handed, request.step + 1)
            self._tell()
            yield request

    def delivered(self, step: int) -> None:
        """The batch of `step` is done with."""
        epoch, _, handed = self._news
        self._news = epoch, step + 1, max(handed, step + 1)
        self._tell()

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        """No more batches are asked for now."""
        self._tell(goes_on=False)

    def close(self) -> None:
        """End the process."""
        if self._socket is not None and self._owner == os.getpid():
            self._starts = _MOST_STARTS
            self._end()

    def _tell(self, goes_on: bool = True) -> None:
        if self._owner != os.getpid():
            return
        if self._socket is None and not (goes_on and self._starts < _MOST_STARTS and self._start()):
            return
        assert self._socket is not None
        try:
            sent = self._socket.send(_NEWS.pack(*self._news, goes_on))
        except BlockingIOError:  # the next news say more
            return
        except OSError:
            sent = 0
        if sent != _NEWS.size:
            code = self._end()
            again = "is started again" if self._starts < _MOST_STARTS else "is not started again"
            log.warning(
                "the process that fetches files ahead (loader) ended with code %s; it %s, "
                "and no batch depends on it",
                code,
                again,
            )

    def _start(self) -> bool:
        self._starts += 1
        ours, theirs = socket.socketpair()
        context: Any = multiprocessing.get_context(self._method)
        with theirs:
            self._process = context.Process(
                target=_run,
                args=(*self._given, ours if self._method == "fork" else None, theirs),
                name="penstock-ahead",
                daemon=True,
            )
            try:
                self._process.start()
            except Exception as error:  # a process of somebody's own that may have no children
                ours.close()
                self._process, self._starts = None, _MOST_STARTS
                log.info("no files are fetched ahead: %s", error)
                return False
        ours.setblocking(False)
        self._socket = ours
        # Before multiprocessing waits for it at exit, and where nobody calls `close`.
        self._at_exit = Finalize(self, self._process.kill, exitpriority=100)
        return True

    def _end(self) -> int | None:
        assert self._socket is not None
        self._socket.close()
        self._at_exit()
        self._process.join()
        code: int | None = self._process.exitcode
        self._process.close()
        self._socket = None
        return code


def read_ahead(
    plan: Any, dataset: Any, rank: int, world: int, options: LoaderOptions
) -> ReadAhead | None:
    """The part that reads ahead for a loader; None where nothing can be read ahead."""
    ahead = getattr(getattr(dataset, "remote_files", None), "ahead", 0)
    known = isinstance(plan, Plan) and hasattr(dataset, "files_of")
    known = known or (isinstance(plan, StreamPlan) and hasattr(dataset, "files_of_shard"))
    if not ahead or not known or not hasattr(os, "fork"):
        return None
    window = max(options.num_workers * options.prefetch_factor, 1)
    return ReadAhead(plan, dataset, rank, world, window, start_method(options))


def _run(
    plan: Plan | StreamPlan,
    dataset: Any,
    rank: int,
    world: int,
    other: socket.socket | None,
    news: socket.socket,
) -> None:
    """The process. Ends with its loader, and at any signal but Ctrl-C, which the loader gets."""
    gc.freeze()  # as in a worker: what a fork has copied is its owner's to collect
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    if other is not None:
        other.close()
    try:
        _serve(plan, dataset, rank, world, news)
    except PenstockError:  # the workers find the same, and report it
        pass
    except Exception:
        log.exception("the process that fetches files ahead ended")
    os._exit(0)  # downloads under way are left, and with them their locks


def _serve(
    plan: Plan | StreamPlan, dataset: Any, rank: int, world: int, news: socket.socket
) -> None:
    def shards_of(epoch: int, step: int) -> list[str]:
        assert isinstance(plan, StreamPlan)
        shards = dataset.shards()
        numbers = plan.sampler.shards(epoch, len(shards)).tolist()
        lengths = getattr(dataset, "shard_lengths", lambda: None)()
        if lengths is not None:  # else a reader goes through all from the first
            first, _ = plan.sampler.block(epoch, step * plan.batch_size)
            ends = np.cumsum([lengths[number] for number in numbers])
            numbers = numbers[int(np.searchsorted(ends, first, side="right")) :]
        return [file for number in numbers for file in dataset.files_of_shard(shards[number])]

    def rows_of(epoch: int, step: int) -> Sequence[Sequence[str]]:
        assert isinstance(plan, Plan)
        if Address(epoch, step) in plan.skipped:
            return ()
        request = plan.request(epoch, step, rank, world)
        files: Sequence[Sequence[str]] = dataset.files_of(request.indices)
        return files

    files = dataset.remote_files
    prefetcher: Any
    if isinstance(plan, StreamPlan):
        prefetcher = StreamPrefetcher(files, files.cache, shards_of)
    else:
        prefetcher = files.prefetcher(rows_of, lru_cache(plan.steps))
    parent = multiprocessing.parent_process()
    sentinels = [] if parent is None else [parent.sentinel]  # ready when it has ended
    heard = [news, prefetcher.bell, *sentinels]
    wait, record = 0.0, b""
    while True:
        ready, _, _ = select.select(heard, [], [], wait)
        if sentinels and sentinels[0] in ready:
            return
        if news in ready:
            received = news.recv(_NEWS.size << 10)
            if not received:
                return
            record += received
            ends = len(record) - len(record) % _NEWS.size
            if ends:  # only the last counts
                epoch, delivered, handed, goes_on = _NEWS.unpack_from(record, ends - _NEWS.size)
                prefetcher.go_to(epoch, delivered, handed, bool(goes_on))
                record = record[ends:]
        wait = prefetcher.work()
