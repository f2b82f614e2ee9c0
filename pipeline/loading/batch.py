"""A batch: fields with a row per sample, and where each row comes from; and the hashes by which
runs, ranks and resumes are compared.

The hash of a sample covers names, types, shapes and bytes of its fields; that of a batch covers its
samples in the order of their positions. So it does not depend on how a batch was shared out, padded
or sorted. Cost: 1 ms a MiB.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import torch

from penstock.errors import DataError
from penstock.loading.bad_samples import LeftOut
from penstock.loading.collate import plain
from penstock.loading.encoded import EncodedImage
from penstock.order.keys import IntArray
from penstock.order.plan import Request
from penstock.torch_internals import tree_map_only


class Batch(dict[str, Any]):
    """The fields of one share, batched, and where they come from.

    Batch transforms may replace fields; `replace` makes a batch with other attributes.

    A batch can also be made of its fields alone, as a dict is: `type(batch)({name: ...})` is how
    transformers, accelerate and torch rebuild mappings to move or convert their tensors. Such a
    batch has no address: `request`, `places`, `positions`, `indices` and `valid` are None.

    Args:
        fields: values by name, or pairs of them.

    Attributes:
        request: the address, positions and indices that were asked for; without those of samples
            that were left out, and with the indices of rows that stand in for others.
        positions, indices: of each row of the batch, those of the request: int64[B].
        places: of each row among those of the share as it was dealt out, int64[B].
        valid: bool[B], False in rows that are padding; None if there are none.
        kinds: what the fields are to transforms of batches, as `kinds_of` tells; collating takes
            torchvision's types off.
        timing: seconds spent in "read", "transform", "collate" and "batch".
        hashes: one a row, of the sample after its transforms; None unless the fetch is `hashed`.
        left_out: the bad samples that are not in it; bad padding is not listed.
        warnings: messages to log, by kind; one of each kind is enough.
    """

    def __init__(
        self,
        fields: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        request: Request | None = None,
        places: IntArray | None = None,
        kinds: Mapping[str, str] | None = None,
        timing: Mapping[str, float] | None = None,
        hashes: Sequence[bytes] | None = None,
        left_out: tuple[LeftOut, ...] = (),
        warnings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(fields)
        self.hashes, self.left_out = hashes, left_out
        self.kinds, self.timing, self.warnings = kinds or {}, timing or {}, warnings or {}
        self.request: Request = request  # type: ignore[assignment]  # None: of fields alone
        self.positions: Any = getattr(request, "positions", None)
        self.indices: Any = getattr(request, "indices", None)
        self.places: Any = places
        self.valid: torch.Tensor | None = None
        if request is not None:
            rows = np.arange(len(request))
            self.places = rows if places is None else places
            padded = request.valid < len(request)
            self.valid = torch.from_numpy(rows < request.valid) if padded else None

    def replace(self, fields: Mapping[str, Any] | None = None, **attributes: Any) -> Batch:
        """A batch with other fields or attributes; tensors are shared."""
        # Not through the constructor, which would derive padding and places anew.
        batch = Batch.__new__(Batch)
        batch.update(self if fields is None else fields)
        batch.__dict__.update(self.__dict__ | attributes)
        return batch

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        """A batch with its tensors on `device`."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """A batch with its tensors in page-locked memory."""
        return self.map(torch.Tensor.pin_memory)

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """A batch with each tensor changed, also inside of dicts and lists."""
        return self.replace(tree_map_only(torch.Tensor, change, dict(self)))


def batch_hash(batches: Iterable[Batch]) -> str:
    """One hash over the global batch that `batches` are the shares of; padding counts nowhere.

    Batches have to be fetched with `hashed=True`.
    """
    return hash_of_rows(row for batch in batches for row in row_hashes(batch))


def row_hashes(batch: Batch) -> list[tuple[int, bytes]]:
    """Position and hash of each row that counts."""
    hashes = batch.hashes or []
    valid = [True] * len(hashes) if batch.valid is None else batch.valid.tolist()
    return [*compress(zip(batch.positions.tolist(), hashes, strict=True), valid)]


def hash_of_rows(rows: Iterable[tuple[int, bytes]]) -> str:
    """The hash of a batch from those of its rows, in any order."""
    return hashlib.blake2b(b"".join(d for _, d in sorted(rows)), digest_size=16).hexdigest()


def hash_sample(sample: Any) -> bytes:
    """A hash (16 bytes) over field names, types, shapes and bytes, whatever the field order.

    Raises:
        DataError: a field is of a type that has no bytes.
    """
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest.update, sample)
    return digest.digest()


def _feed(update: Callable[[Any], None], value: Any) -> None:
    """Feed a value in a form that tells every two different values apart."""
    data: Any = b""
    items: Sequence[Any] = ()
    if isinstance(value, Mapping):
        head = b"{%d" % len(value)
        # By name: a transform that adds fields in another order changes no batch.
        keys = sorted(value, key=lambda key: (str(key), type(key).__name__))
        items = [item for key in keys for item in (key, value[key])]
    elif isinstance(value, (list, tuple)):
        head, items = (b"[%d" if isinstance(value, list) else b"(%d") % len(value), value
    elif isinstance(value, torch.Tensor):
        tensor = plain(value).detach().cpu().contiguous()
        head = f"{str(tensor.dtype).removeprefix('torch.')}{tuple(tensor.shape)}".encode()
        # bfloat16 and the float8 types have no numpy dtype, but their bytes do.
        data = tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b""
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(value)
        head, has_objects = f"{array.dtype}{np.shape(value)}".encode(), array.dtype.hasobject
        # The bytes of objects are their addresses.
        data, items = (b"", [array.ravel().tolist()]) if has_objects else (array.tobytes(), ())
    elif isinstance(value, float):
        head = b"f" + struct.pack("<d", value)
    else:
        data = value.content if isinstance(value, EncodedImage) else value
        if value is None or isinstance(value, (str, int)):
            data = str(value).encode()
        if not isinstance(data, bytes):
            name = type(value).__name__
            raise DataError(f"a field of type {name} cannot be hashed; make it a tensor")
        head = f"{type(value).__name__}:{len(data)}:".encode()
    update(head)
    update(data)
    for item in items:
        _feed(update, item)
