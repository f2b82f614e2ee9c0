"""Columns of a dataset's table, checked for samplers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError, DataError, Problem


def column_of(
    metadata: Any, name: str, argument: str, section: str = "sampler"
) -> npt.NDArray[Any]:
    """A column of the dataset's table as an array, checked to exist and to have no gaps."""
    if metadata is None or name not in metadata.columns:
        known = "columns " + ", ".join(metadata.columns) if metadata is not None else (
            "no metadata: give it `metadata`, a table, or `targets`, a list of labels "
            "(docs/own_dataset.md)"
        )  # fmt: skip
        raise ConfigError(
            Problem(f"{section}.{argument}", f"the dataset has no column {name!r}; it has {known}")
        )
    column = metadata[name]
    gaps = np.flatnonzero(column.isna().to_numpy())
    if gaps.size:
        raise DataError(f"column {name!r} has no value in row {gaps[0]}; {section} needs one a row")
    return np.asarray(column.to_numpy())


def weights_of(
    length: int, metadata: Any, column: str | None, weights: str | npt.ArrayLike | None
) -> npt.NDArray[np.float64]:
    if weights is None:
        if column is None:
            raise ConfigError(Problem("sampler", "set either column or weights"))
        _, codes, counts = np.unique(
            column_of(metadata, column, "column"), return_inverse=True, return_counts=True
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
        raise ConfigError(
            Problem("sampler.weights", f"{values.size} weights for {length} rows; give one a row")
        )
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        raise DataError(
            f"{where}: the weight of row {bad[0]} is {values[bad[0]]}; "
            "weights must be finite and not negative"
        )
    if not values.any():
        raise DataError(f"{where}: all {length} weights are zero, so nothing could be drawn")
    return values
