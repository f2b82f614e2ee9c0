"""Columns of a dataset's table, checked for samplers: 8 bytes a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, DataError, Problem

_SMALLEST_WEIGHT = 2.0**-1000  # in units of the largest; quotients by it are finite


def column_of(
    metadata: Any, name: str, argument: str, section: str = "sampler", numbers: bool = False
) -> npt.NDArray[Any]:
    """A column of the dataset's table, checked to exist and to have no gaps: [rows].

    Args:
        metadata: a pandas table or a mapping of columns, or None.
        argument: that names the column, for messages.
        section: of the configuration, for messages.
        numbers: it has to hold numbers.
    """
    known = [] if metadata is None else [str(column) for column in metadata]
    if name not in known:
        advice = (
            "no metadata: give it `metadata`, a table, or `targets`, a list of labels "
            "(docs/own_dataset.md)"
        )
        offer = advice if metadata is None else "columns " + ", ".join(known)
        reason = f"the dataset has no column {name!r}; it has {offer}"
        raise ConfigError(Problem(f"{section}.{argument}", reason))
    column = metadata[name]
    # Arrays of a plain mapping have no gaps.
    gaps: Any = np.flatnonzero(column.isna()) if hasattr(column, "isna") else ()
    if len(gaps):
        raise DataError(f"column {name!r} has no value in row {gaps[0]}; {section} needs one a row")
    values = np.asarray(column)
    if numbers and values.dtype.kind not in "biuf":
        raise DataError(f"column {name!r} does not hold numbers; {section}.{argument} needs them")
    return values


def weights_of(
    length: int, metadata: object, column: str | None, weights: str | npt.ArrayLike | None
) -> npt.NDArray[np.float64]:
    """float64[length]: given weights, scaled by a power of two, or those that balance a column."""
    if weights is None:
        # The rows of a value share its weight: with equal sums, each value is drawn equally often.
        _, codes, counts = np.unique(
            column_of(metadata, str(column), "column"), return_inverse=True, return_counts=True
        )
        return np.asarray(1.0 / counts[codes], dtype=np.float64)
    where = "sampler.weights"
    if isinstance(weights, str):
        where, weights = f"column {weights!r}", column_of(metadata, weights, "weights")
    try:
        values = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} does not hold numbers: {error}") from error
    if values.shape != (length,):
        reason = f"{values.size} weights for {length} rows; give one a row"
        raise ConfigError(Problem("sampler.weights", reason))
    # A power of two changes no draw, and keeps their sum finite.
    scaled = np.ldexp(values, -np.frexp(values.max(initial=0))[1])
    good = np.isfinite(values) & ((values == 0) | (scaled >= _SMALLEST_WEIGHT))
    if not good.all() or not values.any():
        row = int(np.argmin(good))
        raise DataError(
            f"{where}: the weight of row {row} is {values[row]}; weights must be finite and not "
            "negative, not all of them 0, and the others at least 2^-1000 of the largest, or they "
            "would never be drawn"
        )
    return scaled
