"""Shards of MDS at addresses, of which the samples that are read are fetched, and no others.

    uint32 samples | uint32[samples + 1] where each begins, and the last ends | columns | samples

The numbers in front are fetched with the first sample of a shard, and samples with those that begin
in the same 64 KiB. Both are kept in the cache as files are.

Memory: 4 bytes a sample of the shards that were read last, 64 MiB at most. Cost: 0.1 ms a sample
that is in the cache.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.datasets.files import Files
from penstock.errors import DataError
from penstock.files.limits import Limits

LARGE = 4 << 20  # bytes of a shard of which parts are fetched
_PART = 1 << 16  # bytes in which samples begin that are fetched together
_KEPT = 64 << 20  # bytes of tables
_AT_ONCE = 16  # requests

Begins = npt.NDArray[np.uint32]


def wrong_size(address: str, size: int | None, info: Mapping[str, Any]) -> str:
    """The message of a shard that has not the size that its index says."""
    return (
        f"{address!r} has {size} bytes, but its index says {info['raw_data']['bytes']}: it was cut "
        "off or replaced. Copy or write it again."
    )


class RemoteShards:
    """The large shards of a dataset at an address.

    Args:
        shards: address and description of each.
        files: access to them.
        limits: `record_bytes` of a sample, and of the places of a shard's samples.
    """

    def __init__(self, shards: Sequence[tuple[str, Any]], files: Files, limits: Limits) -> None:
        self._shards, self._files, self._limits = shards, files, limits
        self._begin()

    def _begin(self) -> None:
        self._kept: OrderedDict[int, Begins] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("_shards", "_files", "_limits")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def files_of(self, places: Sequence[tuple[int, int]]) -> list[list[str]]:
        """The addresses of the parts that samples (a shard and a row of it) are read from."""
        missing = sorted({shard for shard, _ in places} - self._kept.keys())
        self._look(missing)
        addresses = []
        for shard, row in places:
            addresses.append([self._table(shard)])
            with suppress(DataError):  # whoever reads the sample finds it again
                addresses[-1].append(self._part(shard, row)[0])
        return addresses

    def read(self, shard: int, row: int) -> bytes:
        """A sample.

        Raises:
            DataError: it cannot be fetched, is too large, or the shard is damaged.
            WholeFilesError: its server sends whole files alone.
        """
        begins = self._begins(shard)
        start, stop = begins[row : row + 2].tolist()
        if stop - start > self._limits.record_bytes:
            refusal = self._limits.refusal("record_bytes", f"{stop - start} bytes")
            raise DataError(f"{self._shards[shard][0]!r}, sample {row} has {refusal}.")
        part, begin = self._part(shard, row)
        return self._files.remote.content(part, start - begin, stop - start)

    def _look(self, shards: Iterable[int]) -> None:
        """Fetch the tables of shards, several at a time."""

        def look(shard: int) -> None:
            with suppress(DataError):
                self._begins(shard)

        with ThreadPoolExecutor(_AT_ONCE, "penstock-files") as pool:
            list(pool.map(look, shards))

    def _table(self, shard: int) -> str:
        address, info = self._shards[shard]
        return self._files.remote.part(address, 0, 4 * (info["samples"] + 2))

    def _part(self, shard: int, row: int) -> tuple[str, int]:
        """The place of a sample: its address, and the byte of the shard that it begins with."""
        begins, address = self._begins(shard), self._shards[shard][0]
        block = int(begins[row]) // _PART * _PART
        first, last = np.searchsorted(begins[:-1], [block, block + _PART]).tolist()
        start, stop = int(begins[first]), int(begins[last])
        return self._files.remote.part(address, start, stop), start

    def _begins(self, shard: int) -> Begins:
        """Where the samples of a shard begin, and the last ends.

        Raises:
            DataError: that is not what its index says, or not in order.
        """
        with self._lock:
            if shard in self._kept:
                self._kept.move_to_end(shard)
                return self._kept[shard]
        begins = self._fetched(shard)
        with self._lock:
            if shard not in self._kept:
                self._bytes += begins.nbytes
            self._kept[shard] = begins
            while self._bytes > _KEPT and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return begins

    def _fetched(self, shard: int) -> Begins:
        address, info = self._shards[shard]
        samples, size = info["samples"], info["raw_data"]["bytes"]
        actual = self._files.remote.look(address).size
        if actual != size:
            raise DataError(wrong_size(address, actual, info))
        table = 4 * (samples + 2)
        if table <= size:
            content = self._files.remote.content(self._table(shard))
            numbers = np.frombuffer(content, "<u4")
            begins = numbers[1:]
            if (
                int(numbers[0]) == samples
                and table <= int(begins[0])
                and int(begins[-1]) <= size
                and bool((begins[:-1] <= begins[1:]).all())
            ):
                return begins
        raise DataError(
            f"{address!r} is not the shard that its index describes: the places of its samples "
            "are damaged. Copy or write it again."
        )
