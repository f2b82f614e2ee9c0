"""torch's DataLoader, on Penstock's backends: one line to change.

    from penstock import DataLoader                                   # instead of torch.utils.data

It takes all of torch's arguments, with the same meanings, and is a subclass, so that other
libraries know it. The differences (docs/dataloader.md has them in full):

1. Workers that die are replaced, and make the same batches again.
2. A sample's draws depend on the seed of the epoch and its place in it, and not on the worker.
3. `state_dict` and `load_state_dict` are those of torchdata's StatefulDataLoader, and the rest of
   an epoch is the same with any other number of workers.
4. `seed=` makes every epoch a function of (seed, epoch), whatever else draws at random.

Cost beside torch's: 5 to 10 us a batch, and 8 us a sample, for seeding, where something draws.
"""

from __future__ import annotations

import signal
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from copy import copy, deepcopy
from functools import partial
from typing import Any, Literal, TypeVar

from torch import distributed
from torch.utils import data as torch_data
from torch.utils.data import IterableDataset

from penstock.addons.dataloader.askers import KeptByAccelerate, is_fabric, is_lightning, or_next
from penstock.addons.dataloader.epoch_draws import (
    EpochDraws,
    from_plain,
    is_stateful,
    plain,
    wrapped,
)
from penstock.addons.dataloader.item_fetch import (
    FetchResult,
    ItemFetch,
    ShardFetch,
    is_pipe,
    shuffled_by,
)
from penstock.addons.dataloader.progress import Progress, RowsProgress, ShardsProgress, State
from penstock.distributed.world import has_accelerator
from penstock.loading.loader import open_backend
from penstock.loading.workers.backends import Backend, Failure, WorkerError
from penstock.loading.workers.options import SLOW_MEMORY, LoaderOptions
from penstock.order.keys import hash64
from penstock.order.seeding import Seeding

STATE_VERSION = 1

Sample = TypeVar("Sample", covariant=True)


class DataLoader(KeptByAccelerate, torch_data.DataLoader[Sample]):
    """Batches of a dataset, as torch's DataLoader gives them.

    Args:
        dataset: map-style, or an IterableDataset, which divides itself by `get_worker_info()`.
        batch_size, shuffle, sampler, batch_sampler, num_workers: as torch has them.
        *args, **kwargs: torch's other arguments, as torch has them: `collate_fn`, `pin_memory`,
            `drop_last`, `timeout`, `worker_init_fn`, `multiprocessing_context`, `generator`,
            `prefetch_factor`, `persistent_workers`, `in_order`.
        worker_timeout: seconds without a sign of life after which a worker is replaced; 0: never.
            `timeout` is torch's: seconds without a batch, then an error.
        keyed: seed the generators for each sample; False: draw as torch's class does, so that a
            person's own seeds count, and no draw can be repeated.
        backend: "process", "thread" or "main"; threads are for map-style datasets.
        seed: of all epochs' orders and samples; None draws a seed for each epoch as torch does.
        snapshot_every_n_steps: batches between two states of a dataset or a sampler that has a
            `state_dict`; what comes after the last one is read again. 0: only the first.

    Raises:
        ValueError, TypeError: arguments contradict each other, as with torch.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        *args: Any,
        backend: Literal["process", "thread", "main"] = "process",
        seed: int | None = None,
        snapshot_every_n_steps: int = 1,
        worker_timeout: float = 0.0,
        keyed: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, *args, **kwargs
        )
        self.backend = backend
        self.seed = seed
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.worker_timeout = worker_timeout
        self.keyed = keyed
        self._check()
        source = self.batch_sampler if self.batch_sampler is not None else self.sampler
        once = self.persistent_workers and not is_pipe(dataset)  # a pipe's shuffling is seeded anew
        self._draws = EpochDraws(source, self.generator, seed, once)
        # It ends when its consumer lets go of it.
        self._pass: weakref.ref[EpochIterator] | None = None
        self._progress: Progress | None = None  # of the pass that was made last
        self._kept: tuple[LoaderOptions, Backend] | None = None  # of persistent workers
        self._seeding = Seeding()
        self._originals: dict[int, Any] = {}  # of a stream into which a state was loaded here
        self._rank = 0  # of those that share its batches
        self._pending: dict[str, Any] | None = None  # a state that was loaded
        self._begun: dict[str, Any] = {}  # from where the last epoch was drawn
        self._next_epoch = 0
        self._delivers: Callable[[int], None] | None = None

    def _check(self) -> None:
        threads = self._workers > 0 and self.backend == "thread"
        ranks = distributed.is_available() and distributed.is_initialized()
        wrong = {
            f"backend={self.backend!r} is not one of 'process', 'thread', 'main'": self.backend
            not in ("process", "thread", "main"),
            "seed= and generator= both say what to draw from; give one of them": self.seed
            is not None
            and self.generator is not None,
            f"snapshot_every_n_steps={self.snapshot_every_n_steps} is below 0, where no states are "
            "kept at all": self.snapshot_every_n_steps < 0,
            "threads cannot divide an IterableDataset, which sees one get_worker_info() for the "
            "whole process; use backend='process', or num_workers=0": self.is_stream and threads,
            f"worker_timeout={self.worker_timeout} is below 0, which is never": self.worker_timeout
            < 0,
            "threads share the global generators, so keyed=False has no meaning for them; use "
            "backend='process', or num_workers=0": threads and not self.keyed,
            "data pipes are not divided among the ranks of a distributed run here; use torch's own "
            "DataLoader, or an IterableDataset that divides itself": is_pipe(self.dataset)
            and ranks
            and distributed.get_world_size() > 1,
        }
        for message, is_wrong in wrong.items():
            if is_wrong:
                raise ValueError(message)

    @property
    def is_stream(self) -> bool:
        """Whether its dataset is an iterable one."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def _workers(self) -> int:
        return 0 if self.backend == "main" else self.num_workers

    def __len__(self) -> int:
        length = super().__len__()
        if self.is_stream:
            samples = len(self.dataset)  # type: ignore[arg-type]
            self._delivers = partial(
                check_length, str(self.dataset), samples, length, self.batch_size or 1
            )
        return length

    # The iterator is ours, where torch's signature names a private class of its own.
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """One epoch, or the rest of the one whose state was loaded."""
        frame = sys._getframe(1)
        # Lightning tells no batch sampler its epoch, so that behind a state there is none either.
        untold = not is_fabric(frame) and self._with_epochs() is self.batch_sampler
        begin = self._get_iterator if untold else self._in_its_epoch
        if self._pending is not None and is_lightning(frame):
            return or_next(begin(), begin)
        return self._in_its_epoch() if is_fabric(frame) else self._get_iterator()

    def _in_its_epoch(self) -> EpochIterator:
        """An epoch whose sampler has its number: behind a state, Fabric counts from 0 again, and
        Lightning says it too late."""
        if not self.is_stream and (sampler := self._with_epochs()) is not None:
            sampler.set_epoch(self._next_epoch)
        return self._get_iterator()

    def _get_iterator(self) -> Any:  # torch's name, for classes that are derived from it
        saved, self._pending = self._pending, None
        if self._kept is not None and (under_way := self._under_way()) is not None:
            under_way.supersede()
        if saved is not None:
            self._draws.restore(saved["draws"])
        self._begun = self._draws.now()
        carried, done = None, self._progress
        if saved is not None:
            carried = saved["carried"]
        elif done is not None and done.finished and self.persistent_workers:
            carried = self._at_the_end(done)
        with self._draws.epoch(self._next_epoch) as seed:
            if self._rank:  # an order for all ranks, draws of samples for each
                seed = hash64(seed, "rank", self._rank) >> 1
            progress = self._begin(seed, (saved or {}).get("progress") or {}, carried)
        pin = self.pin_memory and has_accelerator()
        if self.pin_memory and not pin:
            warnings.warn(
                "pin_memory=True has no effect, since no accelerator is found", stacklevel=2
            )
        backend = self._backend_for(progress, seed, pin)
        keeps = self._kept is not None
        made = EpochIterator(progress, backend, keeps, pin, self._delivers)
        self._pass, self._progress = weakref.ref(made), progress
        self._next_epoch += 1
        return made

    def _under_way(self) -> EpochIterator | None:
        return self._pass() if self._pass is not None else None

    def _begin(self, seed: int, saved: Mapping[str, Any], carried: Any) -> Progress:
        if self.is_stream:
            workers = saved.get("workers", self._workers)
            return ShardsProgress(
                self._next_epoch,
                seed,
                workers,
                self._workers,
                self.in_order,
                saved,
                carried,
                is_stateful(self.dataset) and not shuffled_by(self.dataset),
            )
        batches_here = self.batch_sampler is not None and self.batch_size is not None
        source = self.batch_sampler
        if source is None or batches_here:  # torch's batch sampler would hide the iterator
            source = self.sampler
        size = self.batch_size if batches_here else None
        return RowsProgress(
            self._next_epoch,
            seed,
            source,
            size,
            self.drop_last,
            self.snapshot_every_n_steps,
            saved,
            carried,
        )

    def _backend_for(self, progress: Progress, seed: int, pin: bool) -> Backend:
        # Shards of other workers than these are read from copies, with `worker_init_fn`.
        elsewhere = isinstance(progress, ShardsProgress) and progress.workers != self._workers
        options = self._options(seed, elsewhere)
        if self._kept is not None and self._kept[0] == options:
            return self._kept[1]
        self._kept = None
        backend = open_backend(self._fetch(), options, pin)  # type: ignore[arg-type]
        if options.persistent_workers:
            self._kept = options, backend
        return backend

    def _options(self, seed: int, elsewhere: bool) -> LoaderOptions:
        context: Any = self.multiprocessing_context
        return LoaderOptions(
            backend=self.backend,
            num_workers=self._workers,
            prefetch_factor=self.prefetch_factor if self._workers else None,
            persistent_workers=self.persistent_workers and not elsewhere,
            pin_memory=self.pin_memory,
            timeout=self.worker_timeout,
            batch_timeout=self.timeout if self._workers else 0.0,
            worker_init_fn=None if elsewhere else self.worker_init_fn,
            multiprocessing_context=context.get_start_method() if context else None,
            in_order=self.in_order,
            generator=(self._draws.first or 0) if self.persistent_workers else seed,
            keyed=self.keyed,
            slow_memory=0 if self.is_stream or not self.keyed else SLOW_MEMORY,
        )

    def _fetch(self) -> ItemFetch | ShardFetch:
        remote = bool(self._workers) and self.backend == "process"
        collate: Any = self.collate_fn
        if not self.is_stream:
            return ItemFetch(
                self.dataset, collate, self._auto_collation, remote, self.keyed, self._seeding
            )
        size = self.batch_size if self._auto_collation else None
        return ShardFetch(
            self.dataset,
            collate,
            size,
            self.drop_last,
            self.snapshot_every_n_steps,
            remote,
            self.worker_init_fn,
            self.keyed,
            not shuffled_by(self.dataset),  # else what was delivered is read again
            self._originals,
        )

    def state_dict(self) -> dict[str, Any]:
        """Which batches the last iterator has delivered.

        Plain values, as JSON can hold them, unless a dataset or a sampler puts others into its own
        state. After the last batch nothing is left of the epoch; once the iterator has ended, the
        state is that of the next epoch's beginning.
        """
        if self._pending is not None:
            return deepcopy(self._pending)
        done, under_way = self._progress, self._under_way()
        state = {"version": STATE_VERSION, "of": self._identity(), "carried": None}
        if done is None or done.finished:
            return state | {
                "epoch": self._next_epoch,
                "draws": plain(self._draws.now()),
                "progress": None,
                "carried": None if done is None else self._at_the_end(done),
                "sampler_epoch": None,
            }
        progress = done.state() if under_way is None else under_way.state()
        sampler_epoch = getattr(self._with_epochs(), "epoch", None)
        return state | {
            "epoch": self._next_epoch - 1,
            "draws": plain(self._begun),
            "progress": deepcopy(progress),
            "sampler_epoch": sampler_epoch if isinstance(sampler_epoch, int) else None,
        }

    def _at_the_end(self, done: Progress) -> Any:
        """States of samplers and datasets that outlive an epoch, for the next one."""
        if isinstance(done, ShardsProgress):
            outlives = self.persistent_workers or not self._workers
            if not outlives or done.workers != self._workers:
                return None
        return deepcopy(done.at_the_end())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator continue from `state`.

        Raises:
            ValueError: it is of a loader whose steps are other batches.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(
                f"the state has version {state.get('version')!r:.60}, and this DataLoader reads "
                f"{STATE_VERSION}; is it one of another kind of loader?"
            )
        own, there = self._identity(), state["of"]
        different = [name for name in own if own[name] != there.get(name)]
        if different:
            differences = "; ".join(
                f"{n} is {own[n]!r} and was {there.get(n)!r:.60}" for n in different
            )
            raise ValueError(
                f"the state is of another DataLoader, whose steps are others: {differences}"
            )
        if state["draws"].get("seed") is None:
            from_plain(state["draws"])  # refuses what is no state of a generator
        self._kept = self._pass = self._progress = None
        self._pending = {"carried": None, "progress": None} | deepcopy(dict(state))
        self._next_epoch = state["epoch"]
        sampler = self._with_epochs()
        if sampler is not None and state.get("sampler_epoch") is not None:
            sampler.set_epoch(state["sampler_epoch"])

    def jump(self, step: int, epoch: int | None = None) -> None:
        """Let the next iterator begin with batch `step`, and make none of those before it.

        Args:
            epoch: with `seed=`, of any epoch; None: of the one that the next iterator goes through.

        Raises:
            TypeError: the dataset is iterable, and can only be read on.
            ValueError: without a seed, the order of another epoch is not known.
        """
        if self.is_stream:
            raise TypeError("an IterableDataset can only be read on, and has no batch to jump to")
        begun = self._pending or {}
        number, draws = begun.get("epoch", self._next_epoch), begun.get("draws")
        if epoch is not None and epoch != number:
            if self.seed is None:
                raise ValueError(f"the order of epoch {epoch} is not known without seed=")
            number = epoch
        self.load_state_dict(
            {
                "version": STATE_VERSION,
                "of": self._identity(),
                "epoch": number,
                "draws": draws or plain(self._draws.now()),
                "progress": {"step": step, "ahead": [], "sampler": None},
            }
        )

    def shared(self, batches: Any, seed: int, rank: int) -> DataLoader[Sample]:
        """A copy that goes through a rank's share of the batches.

        Args:
            batches: the batch sampler of that share, around the one of this loader.
            seed: of all epochs, the same on all ranks, so that they agree on the order.
        """
        copied = copy(self)
        copied.__dict__.update(batch_sampler=batches, batch_size=None, seed=seed, _rank=rank)
        copied._draws = EpochDraws(self.batch_sampler, self.generator, seed, False)
        return copied

    def _identity(self) -> dict[str, Any]:
        """Everything that has to be equal for a step to be the same batch."""
        try:
            length = None if self.is_stream else len(self.dataset)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            length = None
        buffers = shuffled_by(self.dataset) if self.is_stream else []
        return {
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "samples": length,
            "iterable": self.is_stream,
            "shuffle buffers": hash64(repr(buffers)) if buffers else None,
        }

    def _with_epochs(self) -> Any:
        """The sampler (`DistributedSampler`) or the stream that learns the epoch, or None."""
        sampler = self.sampler if self.batch_sampler is None else self.batch_sampler
        parts = [self.dataset] if self.is_stream else wrapped(sampler)
        return next((part for part in parts if hasattr(part, "set_epoch")), None)

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which begin their own epochs."""
        return self.__dict__ | {"_pass": None, "_progress": None, "_kept": None}


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
        self._delivers, self._delivered = delivers, 0
        self._closed = self._is_superseded = False
        self._ended: list[Any] = []  # workers
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
        raise NotImplementedError("EpochIterator cannot be pickled or copied")

    @property
    def _workers(self) -> list[Any]:
        """The worker processes, or those of the epoch that is over, by torch's name for them."""
        workers = getattr(self._backend, "workers", None)
        return self._ended if workers is None else workers() or self._ended

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
        self._ended = self._workers
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
        text = (  # torch's words
            f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) "
            f"{how}\n{text}"
        )
    return WorkersLostError(text)
