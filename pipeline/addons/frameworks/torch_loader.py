"""A Penstock loader in the form that other loops know: torch's DataLoader, over addresses.

Frameworks take a DataLoader apart, and put another together from its dataset and its sampler, to
skip batches or to divide them. Of a `TorchLoader` the sampler gives addresses, and the dataset the
batch at an address. So the same batches come out of whatever is put together, and leaving out the
first n addresses makes none of their batches.

Cost: 2 us a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping
from itertools import count
from typing import Any

from torch import distributed
from torch.utils import data as torch_data
from torch.utils.data import BatchSampler, DistributedSampler

from penstock.distributed.world import World
from penstock.errors import ConfigError
from penstock.loading.dataloader import DataLoader
from penstock.loading.loader import Loader
from penstock.order.address import Address


class Batches(torch_data.Dataset[Any]):
    """The batches of a loader by their addresses; otherwise the dataset that they are made of.

    A batch is made where the one before it was asked for last; the loader begins anew elsewhere.

    Attributes:
        loader: whose batches they are.
        ended: the batch that was made last is the last one of its epoch, as far as that is known.
    """

    def __init__(self, loader: Loader | DataLoader[Any]) -> None:
        self.loader = loader
        self._dataset: Any = loader.fetch.dataset if isinstance(loader, Loader) else loader.dataset
        self.ended = False
        self._running: Iterator[Any] = iter(())
        self._at: Address | None = None  # of the next batch of `_running`
        self._begin: Address | None = None  # where the next epoch begins, if the loader is not told
        self._resumes = False  # a state was loaded, and no epoch has begun since
        self._offset: int | None = 0  # of our epochs from those that `set_epoch` is told

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # of a copy that is not complete yet
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        """Samples of an epoch, over all ranks."""
        if isinstance(self.loader, DataLoader):
            return len(self._dataset)
        plan: Any = self.loader.plan
        last = len(plan) - 1
        return last * int(plan.batch_size) + int(plan.request(0, last).valid)

    def __getitem__(self, key: Any) -> Any:
        """A batch, or a sample. Raises StopIteration behind the last batch of an epoch."""
        if not isinstance(key, Address):
            return self._dataset[key]
        if key != self._at:
            self._running = self.loader.epoch(*key)
        self._at, self._begin, self._resumes = Address(key.epoch, key.step + 1), None, False
        batch = next(self._running)
        self.ended = key.step + 1 == self.steps(key.epoch)
        if self.ended:  # so that the loader knows that the epoch is over
            next(self._running, None)
        return batch

    def __getitems__(self, keys: Any) -> Any:
        return self[keys] if isinstance(keys, Address) else [self[key] for key in keys]

    def steps(self, epoch: int) -> int | None:
        """Batches of an epoch; None: its end shows how many."""
        loader = self.loader
        return loader.plan.limit(epoch) if isinstance(loader, Loader) else loader.steps()

    def upcoming(self) -> Address:
        """Where the next iteration begins; leaving an epoch early ends it."""
        state: Any = self.loader.state_dict()
        at = self._begin or Address(state["epoch"], state["step"])
        return at if self._resumes or not at.step else Address(at.epoch + 1, 0)

    def set_epoch(self, epoch: int) -> None:
        """Begin `epoch` next; a count from 0 again continues from the epoch of a state."""
        at = self.upcoming()
        if self._offset is None:
            self._offset = at.epoch - epoch
        if at.epoch != epoch + self._offset:
            self._begin, self._resumes = Address(epoch + self._offset, 0), False

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; raises where the batches would be others."""
        self.loader.load_state_dict(state)
        self._at, self._begin, self._resumes, self._offset = None, None, True, None


# Frameworks leave the samplers of torch's two classes as they are: these are divided among ranks
# already, and give whole batches.
class AddressSampler(DistributedSampler[Any], BatchSampler):
    """The addresses of an epoch, each time it is iterated; of every rank the same ones.

    Attributes:
        batch_size: rows of a batch, over all ranks.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches, loader = batches, batches.loader
        self.drop_last = self.shuffle = False
        world = loader.world if isinstance(loader, Loader) else World()
        self.rank, self.num_replicas = world.rank, world.size
        source: Any = loader.plan if isinstance(loader, Loader) else loader
        self.batch_size: Any = source.batch_size or getattr(
            source.batch_sampler, "batch_size", None
        )

    def __iter__(self) -> Iterator[Any]:
        epoch = self._batches.upcoming().epoch
        steps = self._batches.steps(epoch)
        return (Address(epoch, step) for step in (count() if steps is None else range(steps)))

    def __len__(self) -> int:
        return len(self._batches.loader)

    def set_epoch(self, epoch: int) -> None:
        self._batches.set_epoch(epoch)


def _as_it_is(batch: Any) -> Any:
    return batch


class TorchLoader(torch_data.DataLoader[Any]):
    """A loader as torch's DataLoader, for loops that ask for one.

        TorchLoader(build_train_loader(compose("sampler=weighted")))

    Its batches, their order and their workers are the loader's. `dataset` gives the samples that
    they are made of, `len()` the batches of an epoch, and `sampler.batch_size` the rows of a batch
    over all ranks; `batch_size` is None, as with torch where batches are not made of samples here.

    Args:
        loader: from `build_train_loader` and the like, or a `penstock.DataLoader`.
    """

    # So Accelerate's `prepare` keeps it, and its checkpoints hold its state.
    _is_accelerate_prepared = use_stateful_dataloader = True

    def __init__(self, loader: Loader | DataLoader[Any]) -> None:
        batches = Batches(loader)
        sampler = AddressSampler(batches)
        super().__init__(batches, batch_size=None, sampler=sampler, collate_fn=_as_it_is)
        self.loader, self._batches = loader, batches

    def __iter__(self) -> Generator[Any]:  # type: ignore[override]
        if "accelerate.state" in sys.modules:
            from penstock.addons.frameworks.accelerate import accumulated

            return accumulated(self, self._rest())
        return self._rest()

    def _rest(self) -> Generator[Any]:
        loader, (epoch, start) = self.loader, self._batches.upcoming()
        if isinstance(loader, Loader) and distributed.is_initialized():
            built, there = loader.world.size, distributed.get_world_size()
            if built != there:
                raise ConfigError(
                    f"this loader was built for {built} rank(s), and torch's process group has "
                    f"{there}: build it behind init_process_group, where your framework asks for it"
                )
        steps = self._batches.steps(epoch)
        for step in count(start) if steps is None else range(start, steps):
            try:
                batch = self._batches[Address(epoch, step)]
            except StopIteration:
                return
            yield batch

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Go through `epoch` next."""
        self._batches.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The loader's, at the next batch."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of such a loader; raises where the batches would be others."""
        self._batches.load(state)
