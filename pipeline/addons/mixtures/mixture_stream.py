"""Several datasets read as one stream, in proportion to weights.

At each position a counter-based draw from (seed, epoch, position) chooses one source, which gives
its next record. Sources may be streams or map-style; every pass of the latter is a random order.
Cost: reading the sources, and 2 us a record for the choice; of map-style sources only the records
that an executor owns are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, count
from typing import Any, Literal

import numpy as np
from torch.utils.data import IterableDataset

from penstock.addons.mixtures.mixture import NamedSources, is_stream
from penstock.addons.splits.classes import united
from penstock.errors import ConfigError, Problem
from penstock.files.limits import Seed
from penstock.order.keys import hash64, uniform
from penstock.order.permutation import Permutation

Record = tuple[str, object]

_AT_ONCE = 1024  # random numbers and rows that are computed together
_END = object()  # of a source


class StreamMixture(NamedSources, IterableDataset[Record]):
    """Records of several sources, interleaved at random.

    Args:
        sources: datasets by name; map-style, or streams as `penstock.order.plan` reads them. The
            build hands `split` to each of them as well.
        split: "train" mixes as `stop` says; "val" gives every record once.
        weights: chance of each source at a position, by name; None weighs by length, which every
            source must then have.
        stop: "all" gives every record of every source once, and continues with the others when one
            ends; "first" stops where a source ends; "never" starts it again.
        seed: another seed, another mixture.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        split: str = "train",
        weights: Mapping[str, float] | None = None,
        stop: Literal["all", "first", "never"] = "all",
        seed: Seed = 0,
    ) -> None:
        if weights is None:
            weights = {name: float(len(source)) for name, source in sources.items()}
        _check(sources, weights, stop)
        self.sources = united(sources, "dataset.sources")
        self.weights = [float(weights[name]) for name in sources]
        self.stop = stop if split == "train" else "all"
        self.seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Read `epoch` from now on."""
        self._epoch = epoch

    def __len__(self) -> int:
        if self.stop != "all":
            raise TypeError("only a mixture with stop='all' knows its length")
        return sum(len(source) for source in self.sources.values())

    @property
    def fingerprint(self) -> str:
        """Changes with any source's, with the weights, the rule for stopping and the seed."""
        return self._joined(
            str(getattr(source, "fingerprint", "")) for source in self.sources.values()
        )

    def _joined(self, fingerprints: Iterable[str]) -> str:
        names = [*self.sources, *fingerprints, *map(str, self.weights), self.stop]
        return f"{hash64(self.seed, *names):016x}"

    def __iter__(self) -> Iterator[Record]:
        names = list(self.sources)
        streams = [self._records(name, 0) for name in names]
        passes = [0] * len(names)
        weights = list(self.weights)
        points = self._points()
        point = next(points)
        while any(weights):
            # The source at `point`; those that have ended weigh nothing, the others as before.
            sums = list(accumulate(weights))
            last = max(number for number, weight in enumerate(weights) if weight)
            chosen = min(bisect_right(sums, point * sums[-1]), last)
            record = next(streams[chosen], _END)
            if record is not _END:
                point = next(points)
                yield names[chosen], record
            elif self.stop == "first":
                return
            elif self.stop == "all":
                weights[chosen] = 0.0
            else:
                passes[chosen] += 1
                streams[chosen] = self._records(names[chosen], passes[chosen])

    def decode(self, record: Record) -> Any:
        """The sample of a raw record, as its source gives it."""
        name, raw = record
        source = self.sources[name]
        if not is_stream(source):
            return source[raw]
        return source.decode(raw) if hasattr(source, "decode") else raw

    def _points(self) -> Iterator[float]:
        """A number in [0, 1) for each position of the epoch."""
        key = hash64(self.seed, "mixture", self._epoch)
        for start in count(0, _AT_ONCE):
            yield from uniform(key, np.arange(start, start + _AT_ONCE)).tolist()

    def _records(self, name: str, number: int) -> Iterator[Any]:
        """Raw records of a source in its pass `number`; rows of a map-style one."""
        source = self.sources[name]
        if not is_stream(source):
            return self._rows(name, len(source), number)
        if hasattr(source, "set_epoch"):
            source.set_epoch(self._epoch)
        if hasattr(source, "shards"):
            return (record for shard in source.shards() for record in source.read_shard(shard))
        return iter(source)

    def _rows(self, name: str, length: int, number: int) -> Iterator[int]:
        order = Permutation(length, hash64(self.seed, "rows", self._epoch, name, number))
        for start in range(0, length, _AT_ONCE):
            yield from order(np.arange(start, min(start + _AT_ONCE, length))).tolist()


def _check(sources: Mapping[str, Any], weights: Mapping[str, float], stop: str) -> None:
    problems = []
    if not sources:
        problems.append(Problem("dataset.sources", "is empty; name at least one dataset"))
    if set(weights) != set(sources):
        reason = f"are for {sorted(weights)}, but the sources are {sorted(sources)}"
        problems.append(Problem("dataset.weights", reason))
    bad = {name: value for name, value in weights.items() if not 0 <= value < float("inf")}
    if bad or (weights and not any(weights.values())):
        problems.append(
            Problem(
                "dataset.weights",
                f"{bad or dict(weights)}: must be finite, not negative and not all zero",
            )
        )
    if stop not in ("all", "first", "never"):
        problems.append(Problem("dataset.stop", f"{stop!r} is not all, first or never"))
    for name, source in sources.items() if stop == "never" else ():
        try:
            if len(source) == 0:
                problems.append(Problem("dataset.stop", f"never, but {name!r} has no records"))
                break
        except TypeError:
            continue  # it does not know its length
    if problems:
        raise ConfigError(problems)
