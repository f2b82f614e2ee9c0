"""How far drawn pictures are from real ones, as a whole."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d
from torchmetrics import Metric


class FrechetDistance(Metric):
    """The Frechet distance between drawn and real pictures, reduced to `side` x `side` pixels.

    Both are taken for normal distributions of so many numbers: the squared distance of their means,
    and what their covariances differ by. That is the formula of FID without its network, which
    would have to be downloaded: it sees colours, places and large shapes, and no texture. 0 for
    equal distributions; a share of the variance of the real pictures, so that 1 is the distance
    of grey pictures without a difference. Its value depends on the number of pictures, so compare
    runs by equally many. Cost: side^4 * 9 numbers, and eigenvalues of such a matrix.

    Args:
        side: 8 is 192 numbers a picture.
    """

    higher_is_better = False
    full_state_update = False
    count: Tensor
    sums: Tensor
    products: Tensor

    def __init__(self, side: int = 8) -> None:
        super().__init__()
        if not 1 <= side <= 16:
            raise ValueError(f"side is {side}; it has to be 1 to 16 pixels")
        self.side, size = side, 3 * side**2
        zeros = torch.zeros(2, dtype=torch.float64)
        self.add_state("count", zeros, dist_reduce_fx="sum")
        self.add_state("sums", zeros[:, None].expand(-1, size).clone(), dist_reduce_fx="sum")
        products = torch.zeros(2, size, size, dtype=torch.float64)
        self.add_state("products", products, dist_reduce_fx="sum")

    def update(self, drawn: Tensor, real: Tensor) -> None:
        """Add pictures, float[B, 3, H, W] from 0 to 1 each."""
        for place, pictures in enumerate((drawn, real)):
            if pictures.ndim != 4 or pictures.shape[1] != 3:
                raise ValueError(f"{list(pictures.shape)} are no pictures [B, 3, H, W]")
            rows = adaptive_avg_pool2d(pictures.detach().float(), self.side).flatten(1).double()
            self.count[place] += len(rows)
            self.sums[place] += rows.sum(0)
            self.products[place] += rows.T @ rows

    def compute(self) -> Tensor:
        """float64[]; NaN with fewer than two pictures of either."""
        if int(self.count.min()) < 2:
            return torch.tensor(torch.nan, dtype=torch.float64)
        count = self.count[:, None]
        means = self.sums / count
        outer = means[:, :, None] * means[:, None, :]
        spread = (self.products / count[..., None] - outer) * (count / (count - 1))[..., None]
        mixed = torch.linalg.eigvals(spread[0] @ spread[1]).real.clamp_min(0).sqrt().sum()
        traces = spread.diagonal(dim1=1, dim2=2).sum(1)
        distance = (means[0] - means[1]).square().sum() + traces.sum() - 2 * mixed
        share: Tensor = distance / traces[1]
        return share
