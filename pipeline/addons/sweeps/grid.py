"""The jobs of a sweep over a grid: one for each combination of the values of its keys."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, Problem

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

MOST_JOBS = 100_000
MOST_NUMBERS = 10_000  # of a range of which the ends are looked for
_FOR_ALL = re.compile(r"(sweep|resume|resume_despite|run_dir)([./].*)?")


@dataclass(frozen=True)
class Grid:
    """A sweep's jobs.

    Attributes:
        axes: key -> override lines, one a value; the last key varies fastest.
        swept: the keys that were given several values, even if it was a list of one.
    """

    axes: Mapping[str, Sequence[str]]
    swept: Sequence[str]
    folder: str | None = None  # of the sweep; of one that is named by the time, any

    def __len__(self) -> int:
        return prod(map(len, self.axes.values()))

    def jobs(self) -> Iterator[tuple[str, ...]]:
        """The override lines of each job."""
        return itertools.product(*self.axes.values())


def of(
    overrides: Sequence[Override],
    folder: str | None = None,
    lines: Callable[[Override], list[str]] | None = None,
) -> tuple[Grid, list[Problem]]:
    """The grid of a command, and what is wrong with it.

    Args:
        overrides: of the sweeper's own parameters and the command line, whose last one for a key
            wins; none of hydra's.
        lines: those of one override; `values` when None.
    """
    axes = {override.get_key_element(): (lines or values)(override) for override in overrides}
    swept = [override.get_key_element() for override in overrides if override.is_sweep_override()]
    problems = [
        Problem(key, "is the same for all jobs of a sweep; give it one value")
        for key in swept
        if _FOR_ALL.fullmatch(key.lstrip("+~"))
    ]
    grid = Grid(axes, list(dict.fromkeys(swept)), folder)
    if len(grid) > MOST_JOBS:
        problems.append(Problem("", f"a sweep of {len(grid)} jobs; {MOST_JOBS} is the most"))
    return grid, problems


def values(override: Override) -> list[str]:
    """The override lines that a sweep over one key is made of."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key = override.get_key_element()
    if override.is_range_sweep():  # which hydra may make a list of
        span: Any = override.value()
        for _ in itertools.islice(span.range(), MOST_JOBS, None):
            reason = f"{override.input_line} has more than {MOST_JOBS} values"
            raise ConfigError(Problem(key, reason))
    if override.is_interval_sweep():
        raise ConfigError(
            Problem(
                key,
                f"{override.input_line} is every value in between, which a "
                "grid cannot go over: choose sweep=optuna, or give values, or "
                "range(...)",
            )
        )
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def bounds(override: Override) -> list[str]:
    """The same for a sweep that chooses its values: of a range, its ends."""
    key = override.get_key_element()
    span: Any = override.value()
    if override.is_interval_sweep():
        return [f"{key}={span.start}", f"{key}={span.end}"]
    if override.is_range_sweep():
        lines = [f"{key}={value}" for value in itertools.islice(span.range(), MOST_NUMBERS)]
        if not lines:
            raise ConfigError(Problem(key, f"{override.input_line} has no value"))
        return lines[:: max(1, len(lines) - 1)]
    return values(override)
