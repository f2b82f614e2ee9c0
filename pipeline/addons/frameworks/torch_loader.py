"""A Penstock loader in the form that other loops know: torch's DataLoader, over addresses.

Frameworks take a DataLoader apart, and put another together from its dataset and its sampler, to
skip batches or to divide them. Of a `TorchLoader` the sampler gives addresses, and the dataset the
batch at an address. So the same batches come out of whatever is put together, and leaving out the
first n addresses makes none of their batches.

Cost: 2 us a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import count, islice
from typing import Any

from torch import distributed
from torch.utils import data as torch_data

from penstock.errors import ConfigError
from penstock.loading.dataloader import DataLoader
from penstock.loading.loader import Loader
from penstock.order.address import Address
from penstock.order.plan import length_of


class Batches(torch_data.Dataset[Any]):
    """The batches of a loader by their addresses.

    A request for the next address continues the loader's epoch; any other restarts it there.

    Attributes:
        following: the address of the batch that can be had without beginning anew.
        ended: the batch that was made last is the last one of its epoch, as far as that is known.
    """

    following: Address | None = None

    def __init__(self, loader: Loader | DataLoader[Any]) -> None:
        self.loader, self.ended = loader, False

    def __len__(self) -> int:
        """Samples of an epoch, over all ranks."""
        if isinstance(self.loader, DataLoader):
            return len(self.loader.dataset)  # type: ignore[arg-type]
        plan: Any = self.loader.plan
        return (len(plan) - 1) * int(plan.batch_size) + int(plan.request(0, len(plan) - 1).valid)

    def __getitem__(self, address: Address) -> Any:
        """A batch. Raises StopIteration behind the last one of an epoch."""
        if address != self.following:
            self._running = self.loader.epoch(*address)
        self.following = Address(address.epoch, address.step + 1)
        batch = next(self._running)
        self.ended = self.following.step == self.steps(address.epoch)
        if self.ended:  # so that the loader knows that the epoch is over
            next(self._running, None)
        return batch

    # torch's DataLoader takes an address, which is a tuple, for the rows of a batch.
    __getitems__ = __getitem__

    def steps(self, epoch: int) -> int | None:
        """Batches of an epoch; None: its end shows how many."""
        return (
            self.loader.plan.limit(epoch)
            if isinstance(self.loader, Loader)
            else (None if self.loader.is_stream else length_of(self.loader))
        )


# Frameworks leave the samplers of torch's two classes as they are: these are divided among ranks
# already, and give whole batches.
class AddressSampler(torch_data.DistributedSampler[Any], torch_data.BatchSampler):
    """The addresses of an epoch, each time it is iterated; of every rank the same ones.

    Attributes:
        batch_size: rows of a batch, over all ranks; None: unknown.
        next: where the next epoch begins; None: where the loader's state says.
        offset: of our epochs from those passed to `set_epoch`; None: set by the next call.
    """

    next: Address | None = None
    offset: int | None = 0

    def __init__(self, batches: Batches) -> None:
        self.batches, self.drop_last, loader = batches, False, batches.loader
        self.batch_size: Any = (loader.plan if isinstance(loader, Loader) else loader).batch_size

    def __iter__(self) -> Iterator[Any]:
        epoch, _ = self.upcoming()
        self.next = Address(epoch + 1, 0)  # leaving an epoch early ends it, as with torch's loader
        steps = self.batches.steps(epoch)
        for step in count() if steps is None else range(steps):
            yield Address(epoch, step)

    def __len__(self) -> int:
        return len(self.batches.loader)

    def upcoming(self) -> Address:
        """Where the next epoch begins: in its middle behind a state that was loaded."""
        if self.next is None:
            state: Any = self.batches.loader.state_dict()
            self.next = Address(state["epoch"], state["step"])
        return self.next

    def set_epoch(self, epoch: int) -> None:
        """Begin `epoch` next; a count from 0 again continues from the epoch of a state."""
        upcoming, _ = self.upcoming()
        self.offset = upcoming - epoch if self.offset is None else self.offset
        if upcoming != epoch + self.offset:
            self.next = Address(epoch + self.offset, 0)


class TorchLoader(torch_data.DataLoader[Any]):
    """A loader as torch's DataLoader, for loops that ask for one.

        TorchLoader(build_train_loader(compose("sampler=weighted")))

    Its batches, their order and their workers are the loader's. `len(dataset)` is the number of
    samples of an epoch, `len()` the batches of an epoch, and `sampler.batch_size` the rows of a
    batch over all ranks; `batch_size` is None, as with torch where batches are not made of samples
    here.

    Args:
        loader: from `build_train_loader` and the like, or a `penstock.DataLoader`.
    """

    # So Accelerate's `prepare` keeps it, and its checkpoints hold its state.
    _is_accelerate_prepared = use_stateful_dataloader = True

    def __init__(self, loader: Loader | DataLoader[Any]) -> None:
        self.loader, self._batches = loader, Batches(loader)
        self._addresses = AddressSampler(self._batches)
        super().__init__(
            self._batches, batch_size=None, sampler=self._addresses, collate_fn=_unchanged
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        ranks = distributed.get_world_size() if distributed.is_initialized() else None
        if isinstance(self.loader, Loader) and ranks not in (None, self.loader.world.size):
            raise ConfigError(
                f"this loader was built for {self.loader.world.size} rank(s), and torch's process "
                f"group has {ranks}: build it behind init_process_group, where your framework asks "
                "for it"
            )
        addresses = islice(self._addresses, self._addresses.upcoming().step, None)
        batches: Iterator[Any] = map(self._batches.__getitem__, addresses)
        state = sys.modules.get("accelerate.state")
        if state is not None and state.is_initialized():
            batches = self._accumulated(batches)
        yield from batches

    def _accumulated(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Batches on Accelerate's device; the last of them ends the accumulation of gradients.

        Tested with Accelerate 1.15.
        """
        from accelerate.data_loader import DataLoaderStateMixin
        from accelerate.state import GradientState, PartialState
        from accelerate.utils import send_to_device

        epoch: Any = DataLoaderStateMixin()
        vars(epoch).update(
            gradient_state=GradientState(),
            dataset=self._batches,
            total_batch_size=self._addresses.batch_size,
            _drop_last=False,
        )
        epoch.begin()
        try:
            for batch in batches:
                epoch.end_of_dataloader = self._batches.ended
                yield send_to_device(batch, PartialState().device, non_blocking=True)
        finally:
            epoch.end()

    def set_epoch(self, epoch: int) -> None:
        """Go through `epoch` next."""
        self._addresses.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The loader's, at the next batch."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of such a loader; raises where the batches would be others."""
        self.loader.load_state_dict(state)
        self._batches.following = self._addresses.next = self._addresses.offset = None


def _unchanged(batch: Any) -> Any:
    return batch
