"""Numbers of any kind as a tensor that a model can take."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def plain_tensor(values: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor with memory of its own: floats as float32, wide unsigned ones signed.

    Raises:
        ValueError: the values are no numbers, or one of them is not finite.
    """
    kind, width = values.dtype.kind, values.dtype.itemsize
    if kind == "f":
        if not np.isfinite(values).all():
            place = np.argwhere(~np.isfinite(values))[0].tolist()
            at = place[0] if len(place) == 1 else place
            raise ValueError(f"value {at} is {values[tuple(place)]}, which is not finite")
        return torch.from_numpy(values.astype(np.float32))
    if kind == "u" and width > 1:
        return torch.from_numpy(values.astype(np.int32 if width == 2 else np.int64))
    if kind not in "biu":
        raise ValueError(f"it holds {values.dtype}, not numbers")
    return torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))
