"""A `TorchLoader` in Accelerate's loop: its gradient state, and its device.

Tested with Accelerate 1.15.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState, PartialState, is_initialized
from accelerate.utils import send_to_device


class _Epoch(DataLoaderStateMixin):
    """What Accelerate asks the loader under way: its last batch ends the accumulation."""

    def __init__(self, loader: Any) -> None:
        self.gradient_state, self.dataset, self._drop_last = GradientState(), loader.dataset, False
        self.total_batch_size = loader.sampler.batch_size


def accumulated(loader: Any, batches: Generator[Any]) -> Generator[Any]:
    """Batches of an epoch on Accelerate's device, or as they are where nobody uses it."""
    if not is_initialized():
        yield from batches
        return
    epoch = _Epoch(loader)
    epoch.begin()
    try:
        for batch in batches:
            epoch.end_of_dataloader = loader.dataset.ended
            yield send_to_device(batch, PartialState().device, non_blocking=True)
    finally:
        epoch.end()
