"""Which rows train, which validate, and which are kept for a test."""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, Problem
from penstock.order.keys import IntArray, hash64, hash64_array

Split = Literal["train", "val", "test"]
Names = npt.NDArray[Any]


def check_split(split: str, val_fraction: float = 0.0, test_fraction: float | None = None) -> None:
    """Refuse what is no split, and shares outside of [0, 1].

    Args:
        test_fraction: None: the dataset has no test split of its own.

    Raises:
        ConfigError: one of them is out of range, or both together are more than all rows.
    """
    if split == "test" and test_fraction is None:
        reason = "this dataset has no test split of its own; data.split={val: 0.1, test: 0.1}"
        raise ConfigError(Problem("data.split", f"{reason} divides the rows of any dataset"))
    if split not in ("train", "val", "test"):
        raise ConfigError(Problem("data.split", f"{split!r} is not train, val or test"))
    shares = {"val_fraction": val_fraction, "test_fraction": test_fraction or 0.0}
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0 or sum(shares.values()) > 1.0:
            reason = f"{share} is out of range; allowed: 0 to 1, and both together"
            raise ConfigError(Problem(f"dataset.{name}", reason))


def split_rows(
    names: Names | int,
    split: str,
    val_fraction: float,
    seed: int,
    labels: IntArray | None = None,
    test_fraction: float = 0.0,
) -> IntArray:
    """Rows of one split, ascending: int64[n].

    The lowest ranks (`ranked`) validate and the highest are kept for a test, so

    - the order of rows in a CSV or of files in a folder changes nothing;
    - the share is exact (to the nearest sample), overall and, within one sample, in every class;
    - a larger share adds rows to a split and keeps those there were;
    - a test split is taken from the rows that train, and changes none that validates.

    Args:
        names: bytes[N], unique; or N for rows without names, which are ranked by row number.
        split: "train", "val" or "test".
        val_fraction: share of the rows that validate, in [0, 1]. Between the ends and with two rows
            or more, neither split is empty.
        seed: another seed, another split.
        labels: int64[N]; each label then gives its share of the validation rows.
        test_fraction: share of the rows of the test split.

    Raises:
        ConfigError: `split` or a share is out of range.
    """
    check_split(split, val_fraction, test_fraction)
    order = ranked(names, seed, labels)
    first = val_count(len(order), val_fraction)
    last = max(len(order) - val_count(len(order), test_fraction), first)
    parts = {"val": order[:first], "train": order[first:last], "test": order[last:]}
    return np.sort(parts[split]).astype(np.int64)


def ranked(names: Names | int, seed: int, labels: IntArray | None = None) -> IntArray:
    """Rows by a keyed hash of their names: int64[N]; about 1 us a name.

    Args:
        names: bytes or anything with a text, unique; or N, for rows that are named by their number.
        labels: int64[N]; any first part of the rows then has about that part of each label.
    """
    if isinstance(names, int):
        numbers = np.arange(names, dtype=np.uint64)
    else:
        texts = (one if isinstance(one, bytes) else str(one).encode() for one in names.tolist())
        digests = (hashlib.blake2b(text, digest_size=8).digest() for text in texts)
        numbers = np.frombuffer(b"".join(digests), dtype="<u8")
    keys = hash64_array(hash64(seed, "split"), numbers)
    if labels is None:
        return np.argsort(keys, kind="stable")
    # By a row's rank within its label over the size of that label, ties by key.
    by_label = np.lexsort((keys, labels))
    _, starts, sizes = np.unique(labels[by_label], return_index=True, return_counts=True)
    ranks = np.arange(len(keys)) - np.repeat(starts, sizes)
    places = np.empty(len(keys), dtype=np.float64)
    places[by_label] = (ranks + 0.5) / np.repeat(sizes, sizes)
    return np.lexsort((keys, places))


def val_count(total: int, val_fraction: float) -> int:
    """How many of `total` rows validate: to the nearest; of two or more neither all nor none."""
    count = math.floor(total * val_fraction + 0.5)
    return min(max(count, 1), total - 1) if 0.0 < val_fraction < 1.0 and total >= 2 else count
