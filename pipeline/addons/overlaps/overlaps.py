"""Samples of validation and test that stand in training, too: equal ones, and pictures nearly so.

    equal     the same bytes of a picture's file, or of the sample without its target
    nearly    pictures whose brightness goes up and down alike (a difference hash of 16 x 16 bits,
              Hamming distance at most `FAR`), and whose colours at 8 x 8 points correlate by
              `ALIKE` or more: saved again, scaled, a little brighter. Not cropped or mirrored

It is said, and no error: data may repeat itself rightly. Cost: reading the splits once more, and
10 ns for each pair of pictures that have a part of their hashes in common.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.addons.overlaps.marks import Marks, marks_of
from penstock.build.data import DataParts, Split
from penstock.errors import ConfigError
from penstock.loading.bad_samples import path_of
from penstock.order.randomness import IntArray
from penstock.tasks.tables import put_rows
from penstock.terminal import one_line, put

FAR, ALIKE = 24, 0.98  # of 256 bits; correlation
# Pairs are looked at that have one of 16 parts of 16 bits in common: all with a distance below 16,
# and of 24 differences that fall anywhere, 98 % leave a part alone.
_BANDS = 16
_MOST_PAIRS = 1 << 28  # that are compared
_AT_ONCE = 1 << 20
_LISTED = 100


@dataclass(frozen=True)
class Overlap:
    """A sample that stands in training, too: places among the marks of both."""

    place: int
    train: int
    kind: str  # "equal" or "nearly"


def report(data: DataParts) -> None:
    """Print what of the other splits stands in training."""
    began = time.perf_counter()
    others = [split for split in data.splits if not split.is_train]
    if (test := _test(data)) is not None:
        others.append(test)
    if not others:
        return
    train = marks_of(data.train)
    for split in others:
        marks = marks_of(split)
        found, pairs = overlaps(train, marks)
        _put(data.train, train, split, marks, found, pairs, time.perf_counter() - began)


def _test(data: DataParts) -> Split | None:
    """The test split, if there is one; no training reads it, and neither does the check else."""
    split = data.split("test")
    try:
        return split if len(split.dataset) else None
    except (ConfigError, TypeError):  # there is none; a stream
        return None


def overlaps(train: Marks, other: Marks) -> tuple[list[Overlap], int]:
    """The samples of `other` that are also in `train`, each once; and the pairs it compared."""
    order = np.argsort(train.equal, kind="stable")
    places = np.searchsorted(train.equal[order], other.equal)
    places = order[np.minimum(places, max(len(order) - 1, 0))] if len(order) else places
    equal = train.equal[places] == other.equal if len(order) else np.zeros(len(places), bool)
    found = {
        place: Overlap(place, int(places[place]), "equal")
        for place in np.flatnonzero(equal).tolist()
    }
    pairs = 0
    left = np.flatnonzero(~equal & other.colours.any((1, 2, 3)))
    pictures = np.flatnonzero(train.colours.any((1, 2, 3)))
    for places_of, trains, compared in _near(train, pictures, other, left):
        pairs += compared
        for place, of in zip(left[places_of].tolist(), pictures[trains].tolist(), strict=True):
            found.setdefault(place, Overlap(place, of, "nearly"))
    return [found[place] for place in sorted(found)], pairs


def _near(
    train: Marks, pictures: IntArray, other: Marks, asked: IntArray
) -> Iterator[tuple[IntArray, IntArray, int]]:
    """Pairs that look alike, as places in `asked` and `pictures`, and how many were compared."""
    if not len(pictures) or not len(asked):
        return
    own, hashes = train.bits[pictures].view(np.uint16), other.bits[asked].view(np.uint16)
    known, colours = _standardised(train.colours[pictures]), _standardised(other.colours[asked])
    left = _MOST_PAIRS
    for band in range(_BANDS):
        order = np.argsort(own[:, band], kind="stable")
        ordered = own[order, band]
        first = np.searchsorted(ordered, hashes[:, band], "left")
        counts = np.searchsorted(ordered, hashes[:, band], "right") - first
        ends = np.cumsum(counts)
        begin = 0
        while begin < len(hashes) and left > 0:
            done = int(ends[begin - 1]) if begin else 0
            stop = max(int(np.searchsorted(ends, done + _AT_ONCE, "right")), begin + 1)
            count = int(ends[stop - 1]) - done
            places = np.repeat(np.arange(begin, stop), counts[begin:stop])
            within = np.arange(count) - np.repeat(ends[begin:stop] - counts[begin:stop] - done,
                                                  counts[begin:stop])  # fmt: skip
            trains = order[np.repeat(first[begin:stop], counts[begin:stop]) + within]
            apart = np.bitwise_count(own[trains] ^ hashes[places]).sum(1, dtype=np.int64)
            places, trains = places[apart <= FAR], trains[apart <= FAR]
            likeness = np.einsum("nk,nk->n", known[trains], colours[places])
            alike = likeness >= ALIKE
            yield places[alike], trains[alike], count
            begin, left = stop, left - count


def _standardised(colours: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Points less the mean of their channel, of length 1: products are correlations."""
    points = colours.reshape(len(colours), 3, -1).astype(np.float32)
    points -= points.mean(2, keepdims=True)
    flat = points.reshape(len(points), -1)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)


def _put(
    trained: Split,
    train: Marks,
    split: Split,
    marks: Marks,
    found: list[Overlap],
    pairs: int,
    seconds: float,
) -> None:
    """Print them, with how much was compared."""
    compared = f"{_of(marks)} with {_of(train)} of train, {seconds:.1f} s"
    if pairs:
        compared += f"; {pairs} pairs of pictures"
    count = {kind: sum(each.kind == kind for each in found) for kind in ("equal", "nearly")}
    others = [each for each in found if marks.targets[each.place] != train.targets[each.train]]
    if not found:
        put(f"{'overlap':<10} none of {split.name} is in train, too ({compared})")
        return
    text = f"{len(found)} of {split.name} are in train, too: {count['equal']} equal"
    text += f", {count['nearly']} nearly equal" if pairs else ""
    text += f"; {len(others)} of them with another target" if others else ""
    put(f"{'overlap':<10} {text} ({compared})")
    lines = [
        (
            split.name,
            *_sample(split, marks, each.place),
            each.kind,
            *_sample(trained, train, each.train),
        )
        for each in found[:_LISTED]
    ]
    put_rows([("split", "index", "path", "", "train", "path"), *lines])
    if found[_LISTED:]:
        put(f"and {len(found) - _LISTED} more")


def _of(marks: Marks) -> str:
    whole = marks.total is None or marks.total == len(marks.rows)
    return f"{len(marks.rows)}" if whole else f"{len(marks.rows)} of {marks.total}"


def _sample(split: Split, marks: Marks, place: int) -> tuple[str, str]:
    row = int(marks.rows[place])
    return str(row), one_line(path_of(split.dataset, row))
