"""One pass through an epoch of a DataLoader.

An error of a person's code is raised when its turn comes, in its original type, and the pass can be
continued after it. Where workers could not make a batch, the error begins with torch's words, which
programs look for.
"""

from __future__ import annotations

import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from penstock.addons.dataloader.item_fetch import FetchResult
from penstock.addons.dataloader.progress import Progress, State
from penstock.loading.workers.backends import Backend
from penstock.loading.workers.results import Failure, WorkerError


class WorkersLostError(WorkerError, RuntimeError):
    """Workers died or hung, again and again; a RuntimeError, as torch raises."""


class EpochIterator(Iterator[Any]):
    """The iterator over one epoch.

    Args:
        progress: what to ask for.
        backend: works on it.
        keeps: leave the backend open, for the next pass.
        pin: put batches into page-locked memory where the backend has not.
        delivers: called for each batch with the number of those delivered.
    """

    def __init__(
        self,
        progress: Progress,
        backend: Backend,
        keeps: bool,
        pin: bool,
        delivers: Callable[[int], None] | None,
    ) -> None:
        self.progress = progress
        self._backend: Backend | None = backend
        self._keeps = keeps
        self._pins = pin and not backend.pins
        self._delivers = delivers
        self._delivered = 0
        self._closed = self._is_superseded = False
        self._early: deque[Any] = deque()  # results, or an error, that were waited for before
        self._open = ExitStack()
        if not keeps:
            self._open.callback(backend.close)
        try:
            self._results = self._open.enter_context(backend.run(progress.requests()))
        except BaseException:
            self.close()
            raise

    def __next__(self) -> Any:
        while (result := self._next_result()) is not None:
            if self.progress.accept(result):
                self._delivered += 1
                if self._delivers is not None:
                    self._delivers(self._delivered)
                if self._pins and result.error is None:
                    result.pin_memory()
                return result.get()
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
        """Of the progress; waits until the shards have said with which state they began."""
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
        if self._keeps:  # it ends with whoever holds it last
            self._backend = None

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.close()

    def _next_result(self) -> FetchResult | None:
        """None at the end."""
        if self._is_superseded:
            raise RuntimeError(
                "another iterator of this DataLoader was made, and its persistent workers go "
                "through one epoch at a time; use persistent_workers=False for several at once"
            )
        if self._closed:
            return None
        try:
            result: Any = self._early.popleft() if self._early else next(self._results, None)
            if isinstance(result, Exception):
                raise result
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


def check_length(dataset: str, samples: int, batches: int, size: int, delivered: int) -> None:
    """Warn if `len()` of the loader claimed fewer batches of an iterable dataset."""
    if delivered > batches:
        warnings.warn(
            f"Length of IterableDataset {dataset} was reported to be {samples} (when accessing "
            f"len(dataloader)), but {(delivered - 1) * size + 1} samples have been fetched. For "
            "multiprocessing data-loading, this could be caused by not properly configuring the "
            "IterableDataset replica at each worker: its __iter__ has to divide itself by "
            "get_worker_info(), or each worker gives all of it",
            stacklevel=3,
        )


def _lost(error: Exception) -> Exception:
    """The error to raise where workers could not make a batch."""
    if not isinstance(error, WorkerError):
        return error
    text = str(error)
    if "file descriptor" in text or "Too many open files" in text:
        text += (
            ". Each tensor that came from a worker keeps a file open: keep fewer, raise the limit "
            "(ulimit -n), or call torch.multiprocessing.set_sharing_strategy('file_system')"
        )
    if error.died is not None:
        pid, code = error.died
        how = f"exited unexpectedly with exit code {code}"
        if code < 0:
            how = f"is killed by signal: {signal.strsignal(-code) or -code}"
        # torch's words
        text = (
            f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) "
            f"{how}\n{text}"
        )
    return WorkersLostError(text)
