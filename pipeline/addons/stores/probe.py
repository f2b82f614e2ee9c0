"""The speed of a store, and the settings that would make it faster: for `task=profile`.

Latency and rate are those of a few GETs, one after the other, past the cache. Requests and bytes a
sample are counted by walking through the first epoch as the fetcher ahead does, with nothing in
the cache.

Cost: ten GETs, of 4 MiB at most, and 50 us a row.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from penstock.addons.stores.parts import MOST, Waiting, as_part
from penstock.datasets.files import WholeFilesError
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.addons.stores.remote_files import RemoteFiles

_TIMES = 5  # GETs
_LARGEST = 4 << 20  # bytes of one
_ROWS = 10_000  # that are walked through at most
_UNKNOWN = 8 << 20  # bytes of a file whose size no store has told
_ENOUGH = 0.8  # share of what a store can give that may be used
_MOST = 512  # connections that are advised


class Speed(NamedTuple):
    """One connection to a store.

    Attributes:
        latency: seconds until a byte comes.
        rate: bytes a second after that; infinite where files are too small to tell.
    """

    latency: float
    rate: float


class Demand(NamedTuple):
    """The requests to a store for a sample.

    Attributes:
        requests, size: their number, and their bytes together.
        in_parts: whether files are fetched in parts.
    """

    requests: float
    size: float
    in_parts: bool


class Advice(NamedTuple):
    """The advice, in words and as overrides."""

    words: str
    overrides: tuple[str, ...] = ()


def speed_of(files: RemoteFiles, addresses: Sequence[str]) -> Speed:
    """Measured with GETs of some of the files at addresses."""
    sizes = {address: files.catalog.look(address).size or 0 for address in addresses}
    largest = max(sizes, key=lambda address: sizes[address])
    size = min(sizes[largest], _LARGEST)
    try:
        files.seconds(largest, 1)  # opens the connection
        waits = [files.seconds(address, 1) for address in addresses[:_TIMES]]
    except WholeFilesError:
        return Speed(min(files.seconds(largest, None) for _ in range(_TIMES)), math.inf)
    latency = statistics.median(waits)
    whole = min(files.seconds(largest, size) for _ in range(_TIMES))
    beyond = whole - min(latency, *waits)
    return Speed(latency, size / beyond if beyond > 0.02 * latency else math.inf)


def demand_of(files: RemoteFiles, rows: Iterator[Sequence[str]]) -> Demand:
    """That of samples in their order; `rows` has the addresses of the files of each."""
    waiting, seen = Waiting(), set[str]()
    requests = size = count = 0
    more, in_parts = True, False
    while True:
        while more and count < _ROWS and (waiting.first() is None or waiting.size < files.ahead):
            addresses = next(rows, None)
            if addresses is None:
                more = False
                break
            for address in addresses:
                if address not in seen:
                    seen.add(address)
                    known = files.entry(address)
                    in_parts = in_parts or as_part(address) is not None
                    waiting.push(count, address, (known and known[1]) or _UNKNOWN)
            count += 1
        first = waiting.first()
        if first is None:
            break
        requests += 1
        for address in waiting.beside(first[1], MOST, _ROWS):
            known = files.entry(address)
            size += (known and known[1]) or _UNKNOWN
            waiting.take(address)
    return Demand(requests / max(count, 1), size / max(count, 1), in_parts)


def judged(
    speed: Speed, demand: Demand, wanted: float, ahead: int, most: int
) -> tuple[float, Advice]:
    """The samples a second that a store can give, and what would let it give more.

    Args:
        wanted: samples a second that training and cores could use.
        ahead: bytes that are on the way or wait for their turn.
        most: connections.
    """
    each = demand.size / demand.requests  # bytes of a request
    seconds = speed.latency + each / speed.rate
    if not ahead:
        return 1 / (demand.requests * seconds), Advice(
            "nothing is fetched before a worker needs it", ("dataset.files.ahead=256MB",)
        )
    needed = math.ceil(wanted * demand.requests * seconds / _ENOUGH)  # connections
    usable = max(1, min(most, ahead / each))
    possible = usable / (demand.requests * seconds)
    if needed <= usable:
        return possible, Advice("nothing of the store: it gives more than is used")
    fewer = (
        "larger requests: sampler=blocks puts rows of one part of a file together"
        if demand.in_parts
        else "fewer and larger requests: task=pack (pack.out may be an address), or tar shards"
    )
    if needed > _MOST:
        return possible, Advice(
            fewer
            if speed.latency > each / speed.rate
            else "fewer bytes a sample: task=pack with "
            "a smaller pack.size, or another format of the files"
        )
    overrides = [f"dataset.files.concurrency={needed}"] if needed > most else []
    if needed * each > ahead:
        window = math.ceil(2 * needed * each / 1e6)
        overrides.append(f"dataset.files.ahead={window}MB")
    words = "more requests at once" if needed > most else "more bytes on the way"
    return possible, Advice(f"{words}; or {fewer}", tuple(overrides))


def lines(
    speed: Speed, demand: Demand | None, wanted: float, ahead: int, most: int
) -> list[tuple[str, str]]:
    """The lines of `task=profile` about a store: a label and a text each."""
    rate = "" if math.isinf(speed.rate) else f", then {speed.rate / 1e6:.3g} MB/s a connection"
    printed = [("store", f"the first byte after {1000 * speed.latency:.3g} ms{rate}")]
    if demand is None or not demand.requests:
        return printed
    possible, advice = judged(speed, demand, wanted, ahead, most)
    each = demand.size / demand.requests
    printed.append(
        (
            "requests",
            f"{demand.requests:.3g} a sample, of {each / 1e3:,.3g} kB; {most} at once and "
            f"{ahead / 1e6:,.3g} MB ahead bring up to {possible:,.0f} samples/s, and "
            f"{wanted:,.0f} could be used",
        )
    )
    printed.append(("to change", advice.words))
    if advice.overrides:
        printed.append(("to paste", " ".join(advice.overrides)))
    return printed


def report(
    files: RemoteFiles, rows: Callable[[], Iterator[Sequence[str]]], wanted: float | None
) -> list[tuple[str, str]]:
    """See `penstock.datasets.files.Remote.report`."""
    addresses: dict[str, None] = {}
    for row in islice(rows(), _ROWS):  # all of them may be parts of one file
        for address in row:
            part = as_part(address)
            addresses[part.address if part else address] = None
        if len(addresses) >= 4 * _TIMES:
            break
    if not addresses:
        return []
    try:
        speed = speed_of(files, [*addresses])
        demand = None if wanted is None else demand_of(files, rows())
    except PenstockError as error:
        return [("store", f"cannot be measured: {error}")]
    ahead = min(files.ahead, files.cache.limit // 32) if files.ahead else 0
    return lines(speed, demand, wanted or 0.0, ahead, files.concurrency)
