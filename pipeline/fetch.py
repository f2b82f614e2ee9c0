"""Request to batch: the one function that every backend runs.

1. Seed the generators from the sample's key (seed, epoch, position).
2. Read the row, transform it, hash it when asked to.
3. Collate the share.
4. Time each stage; say of a bad sample which row, file and address it is.

A `Fetch` is a plain callable that can be pickled; it knows nothing of workers, ranks or devices.
Cost beside the data's own: about 10 us a sample for seeding, 30 us a batch.
"""

from __future__ import annotations

import hashlib
import struct
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from pipeline.collate import Mismatch, plain
from pipeline.errors import DataError, PenstockError
from pipeline.plan import Request
from pipeline.randomness import GLOBAL, Draws, IntArray, global_states, moved, sample_keys


class SampleError(PenstockError):
    """A person's own code failed on a sample; the message ends with its traceback."""


class Batch(dict[str, Any]):
    """The fields of one share, batched, and where they come from.

    Attributes:
        request: the address, positions and indices that were asked for.
        positions, indices: of each row of the batch, int64[B]. They differ from the request's in
            order only, and only if the collate function sorts.
        valid: bool[B], False in rows that are padding; None if there are none.
        timing: seconds spent in "read", "transform" and "collate".
        hashes: one a row, of the sample after its transforms; None unless asked for.
    """

    def __init__(self, fields: Mapping[str, Any], request: Request, order: IntArray) -> None:
        super().__init__(fields)
        self.request = request
        self.positions = request.positions[order]
        self.indices = request.indices[order]
        padded = request.valid < len(request)
        self.valid = torch.from_numpy(order < request.valid) if padded else None
        self.timing: dict[str, float] = {}
        self.hashes: list[bytes] | None = None

    def valid_mask(self, device: torch.device | str) -> torch.Tensor | None:
        """`valid` on `device`."""
        return None if self.valid is None else self.valid.to(device, non_blocking=True)

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        """This batch with its tensors on `device`; everything else is kept."""
        self.update({k: _map(v, lambda t: t.to(device, non_blocking=non_blocking))
                     for k, v in self.items()})  # fmt: skip
        return self

    def pin_memory(self) -> Batch:
        """This batch with its tensors in page-locked memory."""
        self.update({k: _map(v, torch.Tensor.pin_memory) for k, v in self.items()})
        return self


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map(item, change) for item in value]
    return value


class Fetch:
    """Work on one request.

    Args:
        dataset: `dataset[index] -> dict`, or `dataset.__getitems__(list) -> list of dicts`, which
            then must not draw at random (a batch is read at once, but keys belong to samples).
        transform: sample -> sample; None leaves it.
        collate: list of samples -> dict of batched fields.
        seed: of the run.
        hashed: also hash every sample; about 1 ms a MiB.
    """

    def __init__(
        self,
        dataset: Any,
        transform: Callable[[Any], Any] | None,
        collate: Callable[[list[Any]], Mapping[str, Any]],
        seed: int,
        hashed: bool = False,
    ) -> None:
        self.dataset = dataset
        self.transform = transform
        self.collate = collate
        self.seed = seed
        self.hashed = hashed
        # torch's Subset only loops over `__getitem__` here, whose draws have keys of their own.
        self._many = hasattr(dataset, "__getitems__") and not isinstance(dataset, Subset)

    def __call__(self, request: Request, draws: Draws = GLOBAL) -> Batch:
        """The batch of `request`.

        Args:
            draws: the generators to put a sample's key into.

        Raises:
            DataError: a row cannot be read, or rows do not fit together.
            SampleError: the dataset's, a transform's or the collate function's code failed.
        """
        return self.work(request, self.dataset, draws)

    def dataset_of_worker(self) -> Any:
        """What `get_worker_info().dataset` is in a worker process, for `worker_init_fn`."""
        return self.dataset

    def work(self, request: Request, rows: Any, draws: Draws) -> Batch:
        """The batch of `request` with its samples read from `rows`, by index."""
        clock = _Clock()
        keys = sample_keys(self.seed, request.epoch, request.positions)
        samples = self._read_many(rows, request) if self._many else []
        clock.lap("read")
        for place, key in enumerate(keys):
            draws.seed(key)
            if not self._many:
                samples.append(self._read(rows, request, place))
                clock.lap("read")
            samples[place] = self._transformed(samples[place], request, place)
            clock.lap("transform")
        batch = self._collated(samples, request)
        clock.lap("collate")
        batch.timing = clock.seconds
        return batch

    def _read(self, rows: Any, request: Request, place: int) -> Any:
        try:
            return rows[int(request.indices[place])]
        except Exception as error:
            raise self._explained(error, "read", request, place) from error

    def _read_many(self, rows: Any, request: Request) -> list[Any]:
        before = global_states()
        try:
            samples = list(rows.__getitems__(request.indices.tolist()))
        except Exception as error:
            for place in range(len(request)):  # one by one, the bad row shows itself
                self._read(rows, request, place)
            raise self._explained(error, "read", request, 0) from error
        drawn = moved(before)
        if drawn:
            raise SampleError(
                f"{type(rows).__name__}.__getitems__ draws from {' and '.join(drawn)}; it "
                "reads many samples at once, so its draws have no key. Draw in a transform instead"
            )
        return samples

    def _transformed(self, sample: Any, request: Request, place: int) -> Any:
        if self.transform is None:
            return sample
        try:
            return self.transform(sample)
        except Exception as error:
            raise self._explained(error, "transform", request, place) from error

    def _collated(self, samples: list[Any], request: Request) -> Batch:
        reorder = getattr(self.collate, "order", lambda _: None)(samples)
        order = np.arange(len(samples)) if reorder is None else np.asarray(reorder)
        samples = [samples[place] for place in order]
        try:
            batch = Batch(self.collate(samples), request, order)
        except Mismatch as error:
            first, second = (int(request.indices[order[row]]) for row in error.rows)
            raise DataError(
                f"batch {_at(request)} cannot be put together: field {error.field!r} of samples "
                f"{first} and {second}: {error.reason}. Resize in a transform, or choose another "
                "collate (collate=pad for unequal lengths, collate=list to stack nothing)"
            ) from error
        except Exception as error:
            raise self._explained(error, "collate", request, 0) from error
        if self.hashed:
            batch.hashes = [hash_sample(sample) for sample in samples]
        return batch

    def _explained(
        self, error: Exception, stage: str, request: Request, place: int
    ) -> PenstockError:
        row, position = int(request.indices[place]), int(request.positions[place])
        where = f"sample {row} (epoch {request.epoch}, step {request.step}, position {position})"
        if isinstance(error, DataError):
            return DataError(f"{where}: {error}")
        path = self._path(row)
        if stage == "read" and isinstance(error, (OSError, EOFError)):
            return DataError(f"{where}{path}: {type(error).__name__}: {error}")
        notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
        lines = "".join(traceback.format_exception(error))
        return SampleError(
            f"{where}{path}: {stage} failed{notes} with {type(error).__name__}: {error}\n{lines}"
        )

    def _path(self, row: int) -> str:
        """The sample's file, as far as the dataset knows it; never fails."""
        try:
            if hasattr(self.dataset, "path"):
                return f" {self.dataset.path(row)}"
            return f" {self.dataset.metadata['path'].iloc[row]}"
        except Exception:
            return ""


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


def _at(request: Request) -> str:
    return f"(epoch {request.epoch}, step {request.step})"


def batch_hash(batches: Iterable[Batch]) -> str:
    """One hash over the global batch that `batches` are the shares of, in position order.

    Padding counts nowhere, so the hash does not depend on how the batch was shared out.
    Each batch must have been fetched with `hashed=True`.
    """
    rows: list[tuple[int, bytes]] = []
    for batch in batches:
        assert batch.hashes is not None, "the batch was not hashed"
        valid = [True] * len(batch.hashes) if batch.valid is None else batch.valid.tolist()
        triples = zip(batch.positions.tolist(), batch.hashes, valid, strict=True)
        rows += [(position, digest) for position, digest, counts in triples if counts]
    return hashlib.blake2b(b"".join(d for _, d in sorted(rows)), digest_size=16).hexdigest()


def hash_sample(sample: Any) -> bytes:
    """A hash (16 bytes) over field names, types, shapes and bytes, whatever the field order."""
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest.update, sample)
    return digest.digest()


def _feed(update: Callable[[bytes], None], value: Any) -> None:
    """Feed a value in a form that tells every two different values apart."""
    if isinstance(value, Mapping):
        update(b"{%d" % len(value))
        for key in sorted(value, key=str):
            _feed(update, str(key))
            _feed(update, value[key])
    elif isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        _feed_array(update, value)
    elif isinstance(value, (list, tuple)):
        update(b"[%d" % len(value))
        for item in value:
            _feed(update, item)
    elif isinstance(value, float):
        update(b"f" + struct.pack("<d", value))
    else:
        data = value if isinstance(value, bytes) else _text(value)
        update(f"{type(value).__name__}:{len(data)}:".encode() + data)


def _text(value: Any) -> bytes:
    """Bytes of a plain value, or of a picture that has not become a tensor yet."""
    if value is None or isinstance(value, (str, int, bool)):
        return str(value).encode()
    if hasattr(value, "tobytes") and hasattr(value, "mode"):  # a Pillow image
        return f"{value.mode}{value.size}".encode() + bytes(value.tobytes())
    raise DataError(f"a field of type {type(value).__name__} cannot be hashed; make it a tensor")


def _feed_array(update: Callable[[bytes], None], value: Any) -> None:
    if isinstance(value, torch.Tensor):
        tensor = plain(value).detach().cpu().contiguous()
        kind, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        # bfloat16 and the float8 types have no numpy dtype, but their bytes do.
        array = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0)
    else:
        array = np.ascontiguousarray(value)
        kind, shape = str(array.dtype), tuple(np.shape(value))
    update(f"{kind}{shape}".encode())
    update(array.tobytes())
