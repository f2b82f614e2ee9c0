"""A batch: fields with a row per sample, and where each row comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
import torch

from penstock.loading.bad_samples import LeftOut
from penstock.loading.stage_timer import StageTrace
from penstock.order.keys import IntArray
from penstock.order.plan import Request
from penstock.torch_internals import register_pytree_node


@dataclass(frozen=True, eq=False, repr=False)
class Batch(dict[str, Any]):
    """The fields of one share, batched, and where they come from.

    Batch transforms may replace fields. Attributes are read-only; `replace` makes a batch with
    others.

    A batch can also be made of its fields alone, as a dict is: `type(batch)({name: ...})` is how
    transformers, accelerate and torch rebuild mappings to move or convert their tensors. Such a
    batch has no address: `request`, `places`, `positions`, `indices` and `valid` are None.

    Args:
        fields: values by name, or pairs of them.
        request: where they come from.
        order: the place in `request` of each row, int64[B]; as dealt out when None.

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
        left_out: the bad samples that are not in it; bad padding is not listed.
        warnings: messages to log, by kind; one of each kind is enough.
    """

    fields: InitVar[Mapping[str, Any] | Iterable[tuple[str, Any]]] = ()
    request: Request = None  # type: ignore[assignment]  # only in a batch of fields alone
    order: InitVar[IntArray | None] = None
    places: IntArray = None  # type: ignore[assignment]  # by default the order
    kinds: Mapping[str, str] = field(default_factory=dict)
    timing: Mapping[str, float] = field(default_factory=dict)
    trace: StageTrace | None = None
    hashes: Sequence[bytes] | None = None
    left_out: tuple[LeftOut, ...] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)
    positions: IntArray = field(init=False)
    indices: IntArray = field(init=False)
    valid: torch.Tensor | None = field(init=False)

    def __post_init__(
        self, fields: Mapping[str, object] | Iterable[tuple[str, object]], order: IntArray | None
    ) -> None:
        self.update(fields)
        request, rows = self.request, dict.fromkeys(("positions", "indices", "valid"))
        if request is not None:
            order = np.arange(len(request)) if order is None else order
            padded = request.valid < len(request)
            rows = {
                "positions": request.positions[order],
                "indices": request.indices[order],
                "valid": torch.from_numpy(order < request.valid) if padded else None,
            }
        self.__dict__.update(rows, places=order if self.places is None else self.places)

    def replace(self, fields: Mapping[str, Any] | None = None, **attributes: Any) -> Batch:
        """A batch with other fields or attributes; tensors are shared."""
        batch = Batch.__new__(Batch)
        batch.update(self if fields is None else fields)
        batch.__dict__.update(self.__dict__ | attributes)
        return batch

    def valid_mask(self, device: torch.device | str) -> torch.Tensor | None:
        """`valid` on `device`."""
        return None if self.valid is None else self.valid.to(device, non_blocking=True)

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        """A batch with its tensors on `device`."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """A batch with its tensors in page-locked memory."""
        return self.map(torch.Tensor.pin_memory)

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """A batch with each tensor changed, also inside of dicts and lists."""
        return self.replace({name: _map(value, change) for name, value in self.items()})


def _map(value: object, change: Callable[[torch.Tensor], torch.Tensor]) -> object:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map(item, change) for item in value]
    return value


# It is a mapping to everybody else. torch's FSDP and Lightning ask for dataclasses first, and would
# make a new batch of its attributes, without its fields.
del Batch.__dataclass_fields__


@dataclass(frozen=True)
class _Layout:
    """The part of a batch that torch's trees keep: `rest` is one without fields."""

    names: tuple[str, ...]
    rest: Batch = field(compare=False)  # trees of two batches are alike where their names are


def _flatten(batch: Batch) -> tuple[list[Any], _Layout]:
    return list(batch.values()), _Layout(tuple(batch), batch.replace({}))


def _unflatten(values: Iterable[Any], layout: Any) -> Batch:
    rest: Batch = layout.rest
    return rest.replace(dict(zip(layout.names, values, strict=True)))


register_pytree_node(Batch, _flatten, _unflatten)
