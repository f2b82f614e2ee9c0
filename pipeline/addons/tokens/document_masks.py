"""Masks by which no token attends to another document, or to what comes later.

    document_mask(ids)      bool [B, 1, T, T], for scaled_dot_product_attention: T x T memory
    flex_mask(ids)          a BlockMask for flex_attention, which skips what is masked whole

`ids` are `document_ids` of `Flatten`: int [B, T], or [T]; -1 in padding, which attends to itself
only, so that no row of a mask is empty (whose softmax would not be a number).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def document_mask(ids: Tensor, causal: bool = True) -> Tensor:
    """True where the token of the third dimension may attend to that of the fourth."""
    rows = ids if ids.ndim == 2 else ids[None]
    size = rows.shape[1]
    places = torch.arange(size, device=ids.device)
    itself = places[:, None] == places[None, :]
    same = (rows[:, :, None] == rows[:, None, :]) & ((rows[:, :, None] >= 0) | itself)
    if causal:
        same &= places[:, None] >= places[None, :]
    return same[:, None]


def flex_mask(ids: Tensor, causal: bool = True, **options: Any) -> Any:
    """The same for `torch.nn.attention.flex_attention`; `options` go to `create_block_mask`."""
    from torch.nn.attention.flex_attention import create_block_mask

    rows = ids if ids.ndim == 2 else ids[None]

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = (rows[batch, query] == rows[batch, key]) & (
            (rows[batch, query] >= 0) | (query == key)
        )
        return same & (query >= key) if causal else same

    size = rows.shape[1]
    return create_block_mask(allowed, len(rows), None, size, size, device=ids.device, **options)
