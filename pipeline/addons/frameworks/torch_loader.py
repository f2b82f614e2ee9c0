"""A Penstock loader in the form that other loops know: torch's DataLoader, over addresses.

Frameworks take a DataLoader apart, and put another together from its dataset and its sampler, to
skip batches or to divide them. Of a `TorchLoader` the sampler gives addresses, and the dataset the
batch at an address. So the same batches come out of whatever is put together, and leaving out the
first n addresses makes none of their batches.

Cost: 2 us a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import distributed
from torch.utils import data as torch_data
from torch.utils.data import BatchSampler, DistributedSampler

from penstock.addons.dataloader.askers import KeptByAccelerate
from penstock.addons.dataloader.epoch_draws import wrapped
from penstock.errors import ConfigError
from penstock.loading.loader import Loader

if TYPE_CHECKING:
    from penstock.addons.dataloader.dataloader import DataLoader

log = logging.getLogger(__name__)


class Address(NamedTuple):
    """Of a batch; of the next one to deliver where it is a state."""

    epoch: int
    step: int


class Source(Protocol):
    """A loader as `Batches` needs it.

    Attributes:
        dataset: whose rows the batches hold.
        batch_size: rows of a batch, over all ranks; None: unknown.
        rank, ranks: this one's number, and of how many.
    """

    dataset: Any
    batch_size: int | None
    rank: int
    ranks: int

    def position(self) -> Address:
        """Where its next iteration would begin."""

    def reaches(self, epoch: int) -> bool:
        """Whether `begin` knows the order of that epoch."""

    def begin(self, address: Address) -> Iterator[Any]:
        """Batches from an address to the end of its epoch."""

    def announce(self, epoch: int) -> None:
        """Tell samplers and a dataset of somebody's own that `epoch` is next."""

    def delivered(self, address: Address) -> None:
        """Batches up to an address were delivered."""

    def state(self, address: Address) -> dict[str, Any]:
        """To continue at an address: the one of the next batch, or of the one before."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from such a state; raises where the batches would be others."""

    def steps(self, epoch: int, start: int) -> Iterator[int]:
        """The steps of an epoch from `start` on; more than there are, where that is unknown."""

    def last(self, epoch: int) -> int | None:
        """The step after the last one; None: unknown."""

    def rows(self) -> int:
        """Of an epoch, over all ranks; TypeError if unknown."""


def in_a_group() -> bool:
    """Whether torch's process group is set up."""
    return distributed.is_available() and distributed.is_initialized()


class ConfiguredSource:
    """Of a `penstock.Loader`, whose batches all have an address."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.dataset = loader.fetch.dataset
        self.batch_size: int | None = loader.plan.batch_size
        self.rank, self.ranks = loader.world.rank, loader.world.size

    def position(self) -> Address:
        state: Any = self._loader.state_dict()
        return Address(state["epoch"], state["step"])

    def reaches(self, epoch: int) -> bool:
        return True

    def begin(self, address: Address) -> Iterator[Any]:
        there = distributed.get_world_size() if in_a_group() else self.ranks
        if there != self.ranks:
            raise ConfigError(
                f"this loader was built for {self.ranks} rank(s), and torch's process group has "
                f"{there}: build it behind init_process_group, where your framework asks for it"
            )
        return self._loader.epoch(*address)

    def announce(self, epoch: int) -> None:
        """An address says it."""

    def delivered(self, address: Address) -> None:
        """Nothing is to be noted."""

    def state(self, address: Address) -> dict[str, Any]:
        return {**self._loader.state_dict(), **address._asdict()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._loader.load_state_dict(state)

    def steps(self, epoch: int, start: int) -> Iterator[int]:
        plan = self._loader.plan
        return plan.skipped.steps(epoch, start, plan.limit(epoch))

    def last(self, epoch: int) -> int | None:
        return self._loader.plan.limit(epoch)

    def rows(self) -> int:
        plan = self._loader.plan
        rows, size = len(self.dataset), getattr(plan.sampler, "size", None)
        orders = size is not None and hasattr(plan.sampler, "indices")
        if size is not None and orders:
            rows = size(0)
        most = len(plan) * plan.batch_size
        return min(rows, most) if orders else rows


class DropInSource:
    """Of a `penstock.DataLoader`.

    Its rows lie in an order of the sampler's own, so any step of the epoch at hand can be begun at,
    and of other epochs where it has a seed.
    """

    def __init__(self, loader: DataLoader[Any], rank: int = 0, ranks: int = 1) -> None:
        self._loader = loader
        self.dataset: Any = loader.dataset
        batches: Any = loader.batch_sampler
        self.batch_size = loader.batch_size or getattr(batches, "batch_size", None)
        self.rank, self.ranks = rank, ranks
        self._begun: dict[str, Any] = {}  # the state at the beginning of the epoch
        self._kept: dict[Address, dict[str, Any]] = {}  # where datasets or samplers have a state

    def position(self) -> Address:
        return _address(self._loader.state_dict())

    def reaches(self, epoch: int) -> bool:
        return self._loader.seed is not None or epoch == self.position().epoch

    def begin(self, address: Address) -> Iterator[Any]:
        skipped = 0
        if self.position() != address:
            if self._loader.is_stream:
                skipped = address.step
            else:
                if self._loader.seed is None:
                    log.warning(
                        "a DataLoader without seed= cannot repeat the order of an epoch from "
                        "another process: the rest of epoch %d has another order than before",
                        address.epoch,
                    )
                self._loader.jump(address.step, address.epoch)
        batches = iter(self._loader)
        for _ in range(skipped):
            next(batches, None)
        self._begun, self._kept = self._loader.state_dict(), {}
        return batches

    def announce(self, epoch: int) -> None:
        batches: Any = self._loader.batch_sampler
        sampler = self._loader.sampler if batches is None else batches
        shared = getattr(sampler, "batch_sampler", None)  # of all ranks
        for part in (*wrapped(sampler), *wrapped(shared), self.dataset):
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(epoch)

    def delivered(self, address: Address) -> None:
        progress = self._begun.get("progress") or {}
        if self._loader.is_stream or progress.get("sampler") is not None:
            before = list(self._kept)[-1:]
            self._kept = {key: self._kept[key] for key in before}
            self._kept[address] = self._loader.state_dict()

    def state(self, address: Address) -> dict[str, Any]:
        if address in self._kept:
            return self._kept[address]
        begun = self._begun
        if begun.get("progress") is None or address.epoch != begun["epoch"]:
            return self._loader.state_dict()
        return {**begun, "progress": {**begun["progress"], "step": address.step, "ahead": []}}

    def load(self, state: Mapping[str, Any]) -> None:
        self._loader.load_state_dict(state)
        self._begun, self._kept = {}, {}

    def steps(self, epoch: int, start: int) -> Iterator[int]:
        last = self.last(epoch)
        return count(start) if last is None else iter(range(start, last))

    def last(self, epoch: int) -> int | None:
        if self._loader.is_stream:
            return None
        try:
            return len(self._loader)
        except (TypeError, NotImplementedError):
            return None

    def rows(self) -> int:
        return len(self.dataset)


def _address(state: Mapping[str, Any]) -> Address:
    progress = state.get("progress") or {}
    parts = progress.get("parts", ())
    return Address(state["epoch"], progress.get("step", sum(part["batches"] for part in parts)))


class Batches(torch_data.Dataset[Any]):
    """The batches of a loader by their addresses; otherwise the dataset that they are made of.

    A batch is made where the one before it was asked for last; the loader begins anew elsewhere.

    Attributes:
        next: where the next iteration begins, or the one under way has come to.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.next = source.position()
        self._running: Iterator[Any] | None = None
        self._left = False  # in the middle of an epoch, unless it is under way
        self._loaded = False  # and no epoch was set since
        self._ahead = 0  # of the epochs that are set

    def __getattr__(self, name: str) -> Any:
        if name == "source":  # of a copy that is not complete yet
            raise AttributeError(name)
        return getattr(self.source.dataset, name)

    def __len__(self) -> int:
        return self.source.rows()

    def __getitem__(self, key: Any) -> Any:
        return self._batch(key) if isinstance(key, Address) else self.source.dataset[key]

    def __getitems__(self, keys: Any) -> Any:
        if isinstance(keys, Address):
            return self._batch(keys)
        return [self[key] for key in keys]

    def _batch(self, address: Address) -> Any:
        """Raises StopIteration behind the last one."""
        if self._running is None or address != self.next:
            self.close()
            self._running = self.source.begin(address)
        self._left = True
        batch = next(self._running)
        epoch, step = address
        self.next = Address(epoch, step + 1)
        self.source.delivered(self.next)
        if self.next.step == self.source.last(epoch):
            self._finish(epoch)
        return batch

    def _finish(self, epoch: int) -> None:
        if self.next.epoch == epoch:
            if self._running is not None:
                next(self._running, None)  # so that the loader knows that the epoch is over
            self.close()
            self.next, self._left = Address(epoch + 1, 0), False

    def close(self) -> None:
        """End the iteration that is under way."""
        running: Any = self._running
        self._running = None
        if hasattr(running, "close"):
            running.close()

    @property
    def epoch(self) -> int:
        """The one that the next iteration goes through; leaving an epoch early ends it."""
        return self.next.epoch + self._left

    def begin(self) -> Address:
        """Where an iteration begins."""
        self.close()
        self.next = Address(self.epoch, 0 if self._left else self.next.step)
        self._loaded = False
        return self.next

    def rest(self) -> Generator[Any]:
        """An iteration: the batches of an epoch, from where the state says."""
        epoch, start = self.begin()
        try:
            for step in self.source.steps(epoch, start):
                try:
                    batch = self._batch(Address(epoch, step))
                except StopIteration:
                    break
                yield batch
            self._finish(epoch)
        finally:
            if self._left and self.next.epoch == epoch:
                self.close()

    def set_epoch(self, epoch: int) -> None:
        """Begin `epoch` next; a count from 0 again continues from the epoch of a state."""
        if self._loaded:
            self._loaded, self._ahead = False, self.next.epoch - epoch
        epoch += self._ahead
        self.source.announce(epoch)
        if epoch == self.next.epoch and not self._left:
            return
        if self.source.reaches(epoch):
            self.next, self._left = Address(epoch, 0), False

    def state(self, address: Address | None = None) -> dict[str, Any]:
        """To continue at an address, `next` or the one before it."""
        return self.source.state(self.next if address is None else address)

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; raises where the batches would be others."""
        self.close()
        self.source.load(state)
        self.next, self._left, self._loaded = self.source.position(), False, True


# Frameworks leave the samplers of torch's two classes as they are: these are divided among ranks
# already, and give whole batches.
class AddressSampler(DistributedSampler[Any], BatchSampler):
    """The addresses of an epoch, each time it is iterated; of every rank the same ones.

    Attributes:
        batch_size: rows of a batch, over all ranks.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.num_replicas, self.rank = batches.source.ranks, batches.source.rank
        self.batch_size: Any = batches.source.batch_size
        self.drop_last = self.shuffle = False

    @property
    def epoch(self) -> int:  # type: ignore[override]
        return self._batches.epoch

    def __iter__(self) -> Iterator[Any]:
        epoch = self._batches.begin().epoch
        return (Address(epoch, step) for step in self._batches.source.steps(epoch, 0))

    def __len__(self) -> int:
        last = self._batches.source.last(self.epoch)
        if last is None:
            raise TypeError("how many batches there are shows at the end of the data")
        return last

    def set_epoch(self, epoch: int) -> None:
        self._batches.set_epoch(epoch)


def _as_it_is(batch: Any) -> Any:
    return batch


class TorchLoader(KeptByAccelerate, torch_data.DataLoader[Any]):
    """A loader as torch's DataLoader, for loops that ask for one.

        TorchLoader(build_train_loader(compose("sampler=weighted")))

    Its batches, their order and their workers are the loader's. `dataset` gives the samples that
    they are made of, `len()` the batches of an epoch, and `sampler.batch_size` the rows of a batch
    over all ranks; `batch_size` is None, as with torch where batches are not made of samples here.

    Args:
        loader: from `build_train_loader` and the like, or a `penstock.DataLoader`.
    """

    def __init__(self, loader: Loader | DataLoader[Any]) -> None:
        source = ConfiguredSource(loader) if isinstance(loader, Loader) else DropInSource(loader)
        self._join(loader, source)

    def _join(self, loader: Loader | DataLoader[Any], source: Source) -> None:
        self.loader = loader
        batches = Batches(source)
        sampler = AddressSampler(batches)
        super().__init__(batches, batch_size=None, sampler=sampler, collate_fn=_as_it_is)

    @classmethod
    def of_rank(cls, loader: DataLoader[Any], rank: int, ranks: int) -> TorchLoader:
        """A DataLoader that gives a rank's share of the batches."""
        made = cls.__new__(cls)
        made._join(loader, DropInSource(loader, rank, ranks))
        return made

    @property
    def _batches(self) -> Batches:
        batches: Any = self.dataset
        return batches

    def __iter__(self) -> Generator[Any]:  # type: ignore[override]
        return self._batches.rest()

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Go through `epoch` next."""
        self._batches.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The loader's, at the next batch."""
        return self._batches.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of such a loader; raises where the batches would be others."""
        self._batches.load(state)
