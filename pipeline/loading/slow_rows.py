"""Rows that take long, so that the batches with them can be begun early.

They are known by a column of costs, or from the epoch before: fetch tells which rows of a batch
took far longer than its others. A loader knows the rows that it has loaded itself, in this run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.order.randomness import IntArray

_TIMES = 8.0  # as long as the median
_LEAST = 0.02  # seconds; where less is at stake, starting early helps nobody
_FEWEST = 4  # rows, to have a median
_MOST = 100_000  # rows that are remembered, about 10 MB


def slow_among(rows: IntArray, began: float, ended: Sequence[float]) -> tuple[int, ...]:
    """The rows that took far longer than the others of their batch.

    Args:
        began: when work on the first began, in seconds.
        ended: when it ended, for each.
    """
    if len(ended) < _FEWEST or ended[-1] - began < _LEAST:
        return ()
    took = np.diff(ended, prepend=began)
    return tuple(rows[took > max(_TIMES * float(np.median(took)), _LEAST)].tolist())


class SlowRows:
    """The rows that are expected to take long.

    Args:
        costs: of each row, in any unit: those above eight times the median are slow. None: those
            that were slow in the epoch before.
    """

    def __init__(self, costs: npt.ArrayLike | None = None) -> None:
        self._measures = costs is None
        self._rows: set[int] = set()
        if costs is not None:
            known = np.asarray(costs, dtype=np.float64)
            slow = np.flatnonzero(known > _TIMES * np.nanmedian(known))
            most = slow[np.argsort(-known[slow], kind="stable")[:_MOST]]
            self._rows = set(most.tolist())

    def __bool__(self) -> bool:
        return bool(self._rows)

    def expects(self, request: object) -> bool:
        """Whether a request has slow rows; not known of one that names no rows."""
        rows = getattr(request, "indices", None)
        return rows is not None and not self._rows.isdisjoint(rows.tolist())

    def note(self, batch: Any) -> None:
        """Learn from a batch which of its rows were slow, and which no longer are."""
        if self._measures and (batch.slow or self._rows):
            self._rows.difference_update(batch.indices.tolist())
            self._rows.update(batch.slow[: max(_MOST - len(self._rows), 0)])
