"""Which rows train and which validate."""

from __future__ import annotations

import hashlib
import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, Problem
from penstock.order.randomness import IntArray, hash64, hash64_array

Split = Literal["train", "val"]
Names = npt.NDArray[np.bytes_]


def check_split(split: str, val_fraction: float = 0.0) -> None:
    """Raise ConfigError unless `split` is "train" or "val" and `val_fraction` lies in [0, 1]."""
    if split not in ("train", "val"):
        raise ConfigError(Problem("dataset.split", f"{split!r} is neither 'train' nor 'val'"))
    if not 0.0 <= val_fraction <= 1.0:
        raise ConfigError(
            Problem("dataset.val_fraction", f"{val_fraction} is out of range; allowed: 0 to 1")
        )


def split_rows(
    names: Names | int,
    split: str,
    val_fraction: float,
    seed: int,
    labels: IntArray | None = None,
) -> IntArray:
    """Rows of one split, ascending: int64[n].

    Rows are ranked by a keyed hash of their names and the lowest ranks validate, so

    - the order of rows in a CSV or of files in a folder changes nothing;
    - the share is exact (to the nearest sample), overall and, within one sample, in every class;
    - a larger `val_fraction` adds validation rows and keeps those there were.

    Cost: about 1 us a name.

    Args:
        names: bytes[N], unique; or N for rows without names, which are ranked by row number.
        split: "train" or "val".
        val_fraction: share of the rows that validate, in [0, 1]. Between the ends and with two rows
            or more, neither split is empty.
        seed: another seed, another split.
        labels: int64[N]; each label then gives its share of the validation rows.

    Raises:
        ConfigError: `split` or `val_fraction` is out of range.
    """
    check_split(split, val_fraction)
    if isinstance(names, int):
        numbers = np.arange(names, dtype=np.uint64)
    else:
        digests = (hashlib.blake2b(name, digest_size=8).digest() for name in names.tolist())
        numbers = np.frombuffer(b"".join(digests), dtype="<u8")
    keys = hash64_array(hash64(seed, "split"), numbers)
    if labels is None:
        order = np.argsort(keys, kind="stable")
    else:
        # By a row's rank within its label over the size of that label, ties by key: any first part
        # of this order takes about that part of each label.
        by_label = np.lexsort((keys, labels))
        _, starts, sizes = np.unique(labels[by_label], return_index=True, return_counts=True)
        ranks = np.arange(len(keys)) - np.repeat(starts, sizes)
        places = np.empty(len(keys), dtype=np.float64)
        places[by_label] = (ranks + 0.5) / np.repeat(sizes, sizes)
        order = np.lexsort((keys, places))
    count = val_count(len(keys), val_fraction)
    chosen = order[:count] if split == "val" else order[count:]
    return np.sort(chosen).astype(np.int64)


def val_count(total: int, val_fraction: float) -> int:
    """How many of `total` rows validate."""
    count = math.floor(total * val_fraction + 0.5)
    if 0.0 < val_fraction < 1.0 and total >= 2:
        count = min(max(count, 1), total - 1)
    return count
