"""Buckets of rows of similar length: where to cut sorted rows, and how large batches are.

Cost: 0.1 s at most, for any number of rows.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, Problem
from penstock.order.randomness import IntArray

WITHIN = 1.1
_PLACES = 512  # at which a cut may be
_MOST = 64  # buckets


def bucket_sizes(
    lengths: npt.NDArray[Any],
    batch_size: int,
    tokens: int | None,
    num_buckets: int | None,
    long_tail: bool = False,
) -> list[tuple[int, int]]:
    """(rows, rows in a batch) of each bucket, for `lengths` in ascending order; as for `Bucket`."""
    count = len(lengths)
    if count == 0:
        return []
    usual = batch_size if tokens is None else max(1, int(tokens // max(1.0, lengths.mean())))
    if long_tail:
        edges = cuts(lengths, usual, num_buckets)
    else:
        buckets = num_buckets or min(_MOST, max(1, count // (8 * usual)))
        edges = np.linspace(0, count, min(buckets, count) + 1).astype(np.int64)
    spans = list(pairwise(edges))
    if tokens is None:
        return [(int(stop - start), batch_size) for start, stop in spans]
    if lengths[-1] > tokens:
        raise ConfigError(
            Problem(
                "sampler.tokens",
                f"the budget is {tokens}, but the longest row has "
                f"{lengths[-1]}; raise the budget to at least that, or leave long rows out",
            )
        )
    return [(int(stop - start), int(tokens // max(1, lengths[stop - 1]))) for start, stop in spans]


def cuts(lengths: npt.NDArray[np.number], rows: int, count: int | None) -> IntArray:
    """Edges of the buckets: int64[n + 1], from 0 to the number of rows.

    Texts have many short rows and a long tail: buckets of equal count would put a row of 20 tokens
    beside one of 250. The cuts that save most padding, at multiples of a batch, are found by
    dynamic programming (Jenks, 1967). Each bucket has at least two batches, so that rows are still
    mixed.

    Args:
        lengths: in ascending order.
        rows: in a batch.
        count: of buckets; None takes as many as keep the padded size below `WITHIN` times that of
            a plain sort.
    """
    step = rows * max(1, -(-len(lengths) // (rows * _PLACES)))
    places = np.append(np.arange(0, len(lengths), step), len(lengths))
    longest = np.maximum(lengths[places[1:] - 1], 1).astype(np.float64)
    # padded[i, j]: rows x longest of a bucket between two places; one of a single step is too few
    padded = (places[None, 1:] - places[:-1, None]) * longest[None, :]
    units = len(longest)
    few = np.arange(units)[None, :] - np.arange(units)[:, None] < min(1, units - 1)
    padded[few] = np.inf
    sort = float((np.diff(places) * longest).sum())
    best, came = padded[0].copy(), [np.zeros(units, dtype=np.int64)]
    most = min(count or _MOST, max(1, units // 2))
    while len(came) < most and (count is not None or best[-1] > WITHIN * sort):
        through = best[:-1, None] + padded[1:]  # a bucket more, after the one that ends before it
        more = through.min(axis=0)
        if more[-1] >= best[-1]:
            break
        came.append(through.argmin(axis=0) + 1)
        best = more
    last, edges = units - 1, [int(places[-1])]
    for starts in reversed(came):  # from the last bucket back to the first
        start = int(starts[last])
        edges.append(int(places[start]))
        last = start - 1
    return np.array(edges[::-1], dtype=np.int64)
