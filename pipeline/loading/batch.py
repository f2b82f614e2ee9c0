"""A batch: fields with a row a sample, and where each row comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pipeline.loading.bad_samples import LeftOut
from pipeline.loading.stage_timer import StageTrace
from pipeline.order.plan import Request
from pipeline.order.randomness import IntArray


class Batch(dict[str, Any]):
    """The fields of one share, batched, and where they come from.

    Attributes:
        request: the address, positions and indices that were asked for; without those of samples
            that were left out, and with the indices of rows that stand in for others.
        positions, indices: of each row of the batch, int64[B]. They differ from the request's in
            order only, and only if the collate function sorts.
        places: of each row among those of the share as it was dealt out, int64[B].
        valid: bool[B], False in rows that are padding; None if there are none.
        kinds: what the fields are to transforms of batches, as `kinds_of` tells; collating takes
            torchvision's types off.
        timing: seconds spent in "read", "transform", "collate" and "batch".
        trace: when and where, if the fetch was `traced`.
        hashes: one a row, of the sample after its transforms; None unless asked for.
        left_out: the bad samples that are not in it. Padding that is bad is not told.
        unlike: which sample of it was another when it was made again, and why; else "".
    """

    def __init__(self, fields: Mapping[str, Any], request: Request, order: IntArray) -> None:
        super().__init__(fields)
        self.request = request
        self.positions = request.positions[order]
        self.indices = request.indices[order]
        self.places = order
        padded = request.valid < len(request)
        self.valid = torch.from_numpy(order < request.valid) if padded else None
        self.kinds: dict[str, str] = {}
        self.timing: dict[str, float] = {}
        self.trace: StageTrace | None = None
        self.hashes: list[bytes] | None = None
        self.left_out: tuple[LeftOut, ...] = ()
        self.unlike = ""

    def valid_mask(self, device: torch.device | str) -> torch.Tensor | None:
        """`valid` on `device`."""
        return None if self.valid is None else self.valid.to(device, non_blocking=True)

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        """This batch with its tensors on `device`; everything else is kept."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """This batch with its tensors in page-locked memory."""
        return self.map(torch.Tensor.pin_memory)

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """This batch with each of its tensors changed, also inside of dicts and lists."""
        self.update({name: _map(value, change) for name, value in self.items()})
        return self


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map(item, change) for item in value]
    return value
