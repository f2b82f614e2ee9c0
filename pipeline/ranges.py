"""Ranges of the numbers that a configuration gives, as annotations of sections and arguments.

The schema and preflight (`config/targets.py`) refuse a number outside of its range, with the
range. The largest whole numbers are those of an int64, in which rows and positions are counted.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le

LARGEST = (1 << 63) - 1

Count = Annotated[int, Ge(1), Le(LARGEST)]
Index = Annotated[int, Ge(0), Le(LARGEST)]
Seed = Annotated[int, Ge(0), Le((1 << 64) - 1)]  # keys are 64 bits: a larger seed would be another
Fraction = Annotated[float, Ge(0), Le(1)]
Positive = Annotated[float, Gt(0)]
