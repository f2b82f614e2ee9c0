"""Columns of a dataset's table, from which samplers choose rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError, DataError, Problem


def column_of(metadata: Any, name: str, argument: str) -> npt.NDArray[Any]:
    """A column of the dataset's table as an array, checked to exist and to have no gaps."""
    if metadata is None or name not in metadata.columns:
        known = "columns " + ", ".join(metadata.columns) if metadata is not None else (
            "no metadata: give it `metadata`, a table, or `targets`, a list of labels "
            "(docs/own_dataset.md)"
        )  # fmt: skip
        raise ConfigError(
            Problem(f"sampler.{argument}", f"the dataset has no column {name!r}; it has {known}")
        )
    column = metadata[name]
    gaps = np.flatnonzero(column.isna().to_numpy())
    if gaps.size:
        raise DataError(f"column {name!r} has no value in row {gaps[0]}; sampling needs one a row")
    return np.asarray(column.to_numpy())
