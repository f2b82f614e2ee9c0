"""Our loaders in Hugging Face's Accelerate, and in what is built on it (transformers' Trainer).

    loader = TorchLoader(build_train_loader(compose("sampler=weighted")))    # or a DataLoader
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

`prepare` makes a `PreparedLoader` of the very object: Accelerate's own class, which moves batches,
ends accumulation at the end of an epoch, and says what the last batch lacks, around our loader.

A `DataLoader` is divided among ranks as Accelerate divides torch's (`BatchSamplerShard`), a
configured loader has the share of its rank already.

Tested with Accelerate 1.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
from accelerate.state import GradientState
from accelerate.utils import broadcast_object_list
from torch.utils.data import IterableDataset

from penstock.addons.dataloader.askers import lost
from penstock.addons.frameworks.torch_loader import Address, Batches, TorchLoader


class PreparedLoader(DataLoaderShard):
    """Accelerate's loader around a Penstock loader."""

    def __init__(
        self, base: TorchLoader, device: torch.device | None, drop_last: bool, non_blocking: bool
    ) -> None:
        # Accelerate's own would make a DataLoader of torch's.
        self.base_dataloader = base
        self.use_stateful_dataloader = True  # save_state and load_state ask for it
        self.device = device
        self.rng_types = self.synchronized_generator = None
        self.skip_batches = 0
        self.gradient_state = GradientState()
        self._drop_last, self._non_blocking = drop_last, non_blocking
        self._is_accelerate_prepared = True
        self._at: Address | None = None  # while it is iterated: behind the batch it has given

    @property
    def _batches(self) -> Batches:
        batches: Any = self.base_dataloader.dataset
        assert isinstance(batches, Batches)
        return batches

    @property
    def iteration(self) -> int:
        """The epoch that is next; the loader counts them."""
        return self._batches.epoch

    @iteration.setter
    def iteration(self, epoch: int) -> None:
        """Accelerate counts, too."""

    def set_epoch(self, epoch: int) -> None:
        """Go through `epoch` next."""
        self._batches.set_epoch(epoch)

    def _update_state_dict(self) -> None:
        self._at = self._batches.next

    def end(self) -> None:
        """Nothing of the epoch is left."""
        super().end()
        self._at = None

    def state_dict(self) -> dict[str, Any]:
        """At the batch behind the one that was given last, also by what skip_first_batches made."""
        batches, active = self._batches, self.gradient_state.active_dataloader
        if active is self:
            return batches.state(self._at)
        address = batches.next
        if getattr(active, "dataset", None) is batches and not active.end_of_dataloader:
            address = Address(address.epoch, max(address.step - 1, 0))  # it is one batch ahead
        return batches.state(address)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; raises where the batches would be others."""
        self._batches.load(state)

    @property
    def total_batch_size(self) -> int | None:
        """Rows of a step, over all ranks."""
        source = self._batches.source
        if source.batch_size is None:
            return None
        return source.batch_size * getattr(source, "batches_at_once", 1)

    @property
    def total_dataset_length(self) -> int:
        """Rows of an epoch, over all ranks."""
        return len(self._batches)


def prepare_in_place(loader: Any, accelerator: Accelerator | None) -> bool:
    """Make a Penstock loader one that an accelerator takes as prepared; whether it could be done.

    A warning names whatever it cannot keep. The accelerator then takes torch's own DataLoader.
    """
    if not isinstance(accelerator, Accelerator):
        return lost("this version of Accelerate is not known")
    if isinstance(loader, TorchLoader):
        base, drop_last = TorchLoader.__new__(TorchLoader), False
        base.__dict__.update(loader.__dict__)
    else:
        shared = _share(loader, accelerator)
        if shared is None:
            return False
        base, drop_last = shared, loader.drop_last
    device = accelerator.device if accelerator.device_placement else None
    # The object that the caller holds is the one that it goes on to iterate.
    loader.__dict__.clear()
    object.__setattr__(loader, "__class__", PreparedLoader)
    PreparedLoader.__init__(loader, base, device, drop_last, accelerator.non_blocking)
    return True


def _share(loader: Any, accelerator: Accelerator) -> TorchLoader | None:
    """This process's part of a DataLoader; None where Accelerate has another way."""
    ranks, rank = accelerator.num_processes, accelerator.process_index
    if ranks == 1:
        return TorchLoader(copy(loader))
    if isinstance(loader.dataset, IterableDataset) or accelerator.dispatch_batches:
        lost("it divides iterable datasets, and batches that one process reads, among ranks itself")
        return None
    if loader.batch_sampler is None:
        lost("batch_size=None has no batches to divide among ranks")
        return None
    agreed: list[Any] = [loader.seed if loader.seed is not None else torch.initial_seed()]
    broadcast_object_list(agreed)
    shard = BatchSamplerShard(
        loader.batch_sampler, ranks, rank, accelerator.split_batches, accelerator.even_batches
    )
    made = TorchLoader.of_rank(loader.shared(shard, agreed[0], rank), rank, ranks)
    source: Any = made.dataset.source  # type: ignore[attr-defined]
    source.batches_at_once = 1 if accelerator.split_batches else ranks
    return made
