"""Numbers of any kind as a tensor that a model can take."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def plain_numbers(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy of numbers that torch has a type for: floats as float32, wide unsigned ones signed.

    Raises:
        ValueError: the values are not numbers.
    """
    kind, width = values.dtype.kind, values.dtype.itemsize
    if kind == "f":
        return values.astype(np.float32)
    if kind == "u" and width > 1:
        return values.astype(np.int32 if width == 2 else np.int64)
    if kind not in "biu":
        raise ValueError(f"it holds {values.dtype}, not numbers")
    return values.astype(values.dtype.newbyteorder("="))


def not_finite(values: npt.NDArray[Any]) -> list[int] | None:
    """The place of the first float that is NaN or infinite; None if there is none."""
    if values.dtype.kind != "f":
        return None
    finite = np.isfinite(values)
    if finite.all():
        return None
    position = np.unravel_index(finite.argmin(), finite.shape)
    return [int(number) for number in position]


def plain_tensor(values: npt.NDArray[Any]) -> torch.Tensor:
    """`plain_numbers` as a tensor.

    Raises:
        ValueError: the values are not numbers, or one of them is not finite.
    """
    position = not_finite(values)
    if position is not None:
        at = position[0] if len(position) == 1 else position
        raise ValueError(f"value {at} is {values[tuple(position)]}, which is not finite")
    return torch.from_numpy(plain_numbers(values))
