"""Hashes of samples and of batches, by which runs, ranks and resumes are compared.

The hash of a sample covers names, types, shapes and bytes of its fields; that of a batch covers its
samples in the order of their positions. So it does not depend on how a batch was shared out, padded
or sorted. Cost: 1 ms a MiB.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.errors import DataError
from penstock.loading.collate import plain
from penstock.loading.encoded import EncodedImage

if TYPE_CHECKING:
    from penstock.loading.batch import Batch


def batch_hash(batches: Iterable[Batch]) -> str:
    """One hash over the global batch that `batches` are the shares of; padding counts nowhere.

    Batches have to be fetched with `hashed=True`.
    """
    return hash_of_rows(row for batch in batches for row in row_hashes(batch))


def row_hashes(batch: Batch) -> list[tuple[int, bytes]]:
    """Position and hash of each row that counts."""
    assert batch.hashes is not None, "the batch was not hashed"
    valid = [True] * len(batch.hashes) if batch.valid is None else batch.valid.tolist()
    return [*compress(zip(batch.positions.tolist(), batch.hashes, strict=True), valid)]


def hash_of_rows(rows: Iterable[tuple[int, bytes]]) -> str:
    """The hash of a batch from those of its rows, in any order."""
    return hashlib.blake2b(b"".join(d for _, d in sorted(rows)), digest_size=16).hexdigest()


def hash_sample(sample: Any) -> bytes:
    """A hash (16 bytes) over field names, types, shapes and bytes, whatever the field order.

    Raises:
        DataError: a field has no bytes of its own.
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
