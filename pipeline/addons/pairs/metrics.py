"""How well rows find each other: over a whole split, and not within a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torchmetrics import Metric

_AT_ONCE = 1024  # rows that are compared with all others
_EQUAL = 1e-5  # likenesses that differ by no more differ by rounding


class Retrieval(Metric):
    """The share of rows whose partner is among the k likest of all rows on the other side.

    Likeness is the cosine. Rows on the other side that are as like as the partner (the same caption
    twice) share its rank: a partner among m equal ones at the top counts 1 / m. So a model that
    gives all the same place has chance, k / N. Cost: N x N likenesses, 1,024 rows of them at a
    time.

    Args:
        k: numbers of rows.
    """

    higher_is_better = True
    full_state_update = False
    first: list[Tensor]
    second: list[Tensor]

    def __init__(self, k: Sequence[int] = (1, 5)) -> None:
        super().__init__()
        if not k or min(k) < 1:
            raise ValueError(f"k is {list(k)}; it has to be numbers from 1 on, as [1, 5]")
        self.k = list(k)
        self.add_state("first", [], dist_reduce_fx="cat")
        self.add_state("second", [], dist_reduce_fx="cat")

    def update(self, first: Tensor, second: Tensor) -> None:
        """Add pairs of rows, float[n, D] each."""
        if first.shape != second.shape or first.ndim != 2:
            raise ValueError(f"{list(first.shape)} and {list(second.shape)} are no pairs of rows")
        self.first.append(normalize(first.detach().float()))
        self.second.append(normalize(second.detach().float()))

    def compute(self) -> dict[str, Tensor]:
        """`top1` and so on for each k, float64[]; NaN without a row."""
        first, second = (torch.cat([*rows]) for rows in (self.first, self.second))
        found = torch.zeros(len(self.k), dtype=torch.float64, device=first.device)
        for start in range(0, len(first), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            likeness = first[rows] @ second.T
            own = (first[rows] * second[rows]).sum(1, keepdim=True)
            ahead = (likeness > own + _EQUAL).sum(1)
            equal = ((likeness - own).abs() <= _EQUAL).sum(1).clamp(min=1)
            for place, k in enumerate(self.k):
                found[place] += ((k - ahead) / equal).clamp(0, 1).double().sum()
        return dict(zip((f"top{k}" for k in self.k), found / len(first), strict=True))


class NearestLabel(Metric):
    """The share of rows whose likest other row has the same label: what a space knows of classes.

    A probe without training. Cost: N x N likenesses, 1,024 rows of them at a time.
    """

    higher_is_better = True
    full_state_update = False
    rows: list[Tensor]
    labels: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("rows", [], dist_reduce_fx="cat")
        self.add_state("labels", [], dist_reduce_fx="cat")

    def update(self, rows: Tensor, labels: Tensor) -> None:
        """Add rows, float[n, D], with a label each, int64[n]."""
        if rows.ndim != 2 or labels.shape != rows.shape[:1]:
            raise ValueError(f"{list(labels.shape)} labels for rows {list(rows.shape)}")
        self.rows.append(normalize(rows.detach().float()))
        self.labels.append(labels)

    def compute(self) -> Tensor:
        """float64[]; NaN with fewer than two rows."""
        rows, labels = torch.cat([*self.rows]), torch.cat([*self.labels])
        if len(rows) < 2:
            return torch.tensor(torch.nan, dtype=torch.float64)
        found = torch.zeros((), dtype=torch.float64, device=rows.device)
        for start in range(0, len(rows), _AT_ONCE):
            likeness = rows[start : start + _AT_ONCE] @ rows.T
            own = torch.arange(len(likeness), device=rows.device)
            likeness[own, start + own] = -torch.inf
            same = labels[likeness.argmax(1)] == labels[start : start + _AT_ONCE]
            found += same.double().sum()
        return found / len(rows)
