"""One way through an epoch of a DataLoader, over the workers of a backend.

    EpochIterator   the iterator: asks a backend for requests and hands on what they made
    Kept    persistent workers, which end with the last that holds them

An error of a person's code is raised when its turn comes, in the type that it had, and the pass can
be gone on with after it. Workers that could not make a batch are told of in torch's words, which
programs look for.
"""

from __future__ import annotations

import signal
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

from pipeline.loading.compat.item_fetch import FetchResult
from pipeline.loading.compat.progress import Progress, State
from pipeline.loading.workers.backends import Backend, Failure, LoaderOptions, WorkerError


class WorkersLostError(WorkerError, RuntimeError):
    """Workers died or hung, again and again; a RuntimeError, as torch raises."""


class KeptWorkers:
    """A backend that works for one pass after another; closed when nobody holds it any more."""

    def __init__(self, options: LoaderOptions, backend: Backend) -> None:
        self.options, self.backend = options, backend

    def __del__(self) -> None:
        self.backend.close()


class StatedLength(NamedTuple):
    """What `len()` of a loader has said of an iterable dataset.

    Attributes:
        dataset: in words.
        samples: that it has.
        batches: that they make.
        size: samples of a batch.
    """

    dataset: str
    samples: int
    batches: int
    size: int


class EpochIterator(Iterator[Any]):
    """The iterator over one epoch.

    Args:
        progress: what to ask for.
        backend: which works on it; a kept one stays open, any other is closed with the pass.
        pin: put batches into page-locked memory where the backend has not.
        claim: what the loader said; None: nothing.
    """

    def __init__(
        self,
        progress: Progress,
        backend: Backend | KeptWorkers,
        pin: bool,
        claim: StatedLength | None,
    ) -> None:
        self.progress = progress
        self._kept = backend if isinstance(backend, KeptWorkers) else None
        works = backend.backend if isinstance(backend, KeptWorkers) else backend
        self._backend = works
        self._pins = pin and not works.pins
        self._claim = claim
        self._delivered = 0
        self._closed = self._is_superseded = False
        self._early: deque[Any] = deque()  # results, or an error, that were waited for before
        self._open = ExitStack()
        if self._kept is None:
            self._open.callback(works.close)
        try:
            self._results = self._open.enter_context(works.run(progress.requests()))
        except BaseException:
            self.close()
            raise

    def __next__(self) -> Any:
        while (made := self._take()) is not None:
            if self.progress.accept(made):
                self._delivered += 1
                if self._claim is not None and self._delivered > self._claim.batches:
                    self._warn(self._claim)
                return (made.pin_memory() if self._pins and made.error is None else made).get()
        raise StopIteration

    def __len__(self) -> int:
        return len(self.progress)

    def __getstate__(self) -> Any:
        raise NotImplementedError("an iterator of a DataLoader cannot be copied or pickled")

    @property
    def _workers(self) -> list[Any]:
        """The worker processes, by torch's name for them, which other code looks at."""
        workers = getattr(self._backend, "workers", None)
        return [] if workers is None else workers()

    def state(self) -> State:
        """Of the progress; waits until the readers have said with what they began."""
        while self.progress.is_waiting and not self._closed:
            try:
                result = next(self._results, None)
            except Exception as error:
                self._early.append(error)
                break
            self._early.append(result)
            if result is None:
                break
            if isinstance(result, FetchResult):
                self.progress.note(result)
        return self.progress.state()

    def supersede(self) -> None:
        """Another pass takes over the workers of this one."""
        self._is_superseded = not self.progress.finished
        self.close()

    def close(self) -> None:
        """End it; workers that are not kept end, too."""
        self._results = iter(())
        self._closed = True
        self._early.clear()
        self._open.close()
        self._kept = None

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.close()

    def _take(self) -> Any:
        """The next result, a `FetchResult`; None at the end."""
        if self._closed:
            if self._is_superseded:
                raise RuntimeError(
                    "another iterator of this DataLoader was made, and its persistent workers go "
                    "through one epoch at a time; use persistent_workers=False for several at once"
                )
            return None
        try:
            result: Any = self._next_early() if self._early else next(self._results, None)
        except BaseException as error:
            self.close()
            if isinstance(error, WorkerError):
                raise _lost(error) from None
            raise
        if isinstance(result, Failure):
            self.progress.accept(FetchResult(result.request))
            raise _lost(result.error) from None
        if result is None:
            self.progress.finished = True
            self.close()
        return result

    def _next_early(self) -> Any:
        result = self._early.popleft()
        if isinstance(result, Exception):
            raise result
        return result

    def _warn(self, claim: StatedLength) -> None:
        fetched = (self._delivered - 1) * claim.size + 1
        warnings.warn(
            f"Length of IterableDataset {claim.dataset} was reported to be {claim.samples} (when "
            f"accessing len(dataloader)), but {fetched} samples have been fetched. For "
            "multiprocessing data-loading, this could be caused by not properly configuring the "
            "IterableDataset replica at each worker: its __iter__ has to divide itself by "
            "get_worker_info(), or each worker gives all of it",
            stacklevel=3,
        )


def _lost(error: Exception) -> Exception:
    """What to raise where workers could not make a batch."""
    if not isinstance(error, WorkerError):
        return error
    text = str(error)
    if "file descriptor" in text or "Too many open files" in text:
        text += (
            ". Each tensor that came from a worker keeps a file open: keep fewer, raise the limit "
            "(ulimit -n), or call torch.multiprocessing.set_sharing_strategy('file_system')"
        )
    if error.died is not None:
        text = f"{_in_torchs_words(*error.died)}\n{text}"
    return WorkersLostError(text)


def _in_torchs_words(pid: int, code: int) -> str:
    how = f"exited unexpectedly with exit code {code}"
    if code < 0:
        how = f"is killed by signal: {signal.strsignal(-code) or -code}"
    return (
        f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) {how}"
    )
