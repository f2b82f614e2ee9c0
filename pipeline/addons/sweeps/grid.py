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

    @property
    def fixed(self) -> list[str]:
        """The override lines that all jobs have."""
        return [lines[0] for key, lines in self.axes.items() if key not in self.swept]


def of(
    overrides: Sequence[Override],
    base: Mapping[str, Any],
    folder: str | None = None,
    lines: Callable[[Override], list[str]] | None = None,
) -> tuple[Grid, list[Problem]]:
    """The grid of a command, and what is wrong with it.

    Args:
        overrides: of the sweeper's own parameters and the command line, whose last one for a key
            wins; none of hydra's.
        base: the configuration with the values that are fixed. Its `sweep.folds` adds the folds of
            its `dataset.folds`, and `sweep.seeds` the seeds from its `seed` on, as the keys that
            vary fastest.
        lines: those of one override; `values` when None.
    """
    axes = {override.get_key_element(): (lines or values)(override) for override in overrides}
    swept = [override.get_key_element() for override in overrides if override.is_sweep_override()]
    problems = [
        Problem(key, "is the same for all jobs of a sweep; give it one value")
        for key in swept
        if _FOR_ALL.fullmatch(key.lstrip("+~"))
    ]
    if base.get("sweep", {}).get("folds") is not None:
        problems += _with_folds(axes, swept, (base.get("dataset") or {}).get("folds"))
    seeds = base.get("sweep", {}).get("seeds")
    if seeds is not None and "seed" in swept:
        reason = "adds an axis of seeds, and seed is swept over already; leave one of them out"
        problems.append(Problem("sweep.seeds", reason))
    elif isinstance(seeds, int) and isinstance(base.get("seed"), int):
        axes.pop("seed", None)
        axes["seed"] = [f"seed={base['seed'] + more}" for more in range(min(seeds, MOST_JOBS + 1))]
        swept.append("seed")
    grid = Grid(axes, list(dict.fromkeys(swept)), folder)
    if len(grid) > MOST_JOBS:
        problems.append(Problem("", f"a sweep of {len(grid)} jobs; {MOST_JOBS} is the most"))
    return grid, problems


def _with_folds(axes: dict[str, list[str]], swept: list[str], folds: object) -> list[Problem]:
    """Add the folds of the data to a grid; returns what keeps them out."""
    for key in [key for key in axes if key.lstrip("+") in ("dataset.folds", "dataset.fold")]:
        if key in swept:
            reason = f"runs all folds of one dataset.folds, and {key.lstrip('+')} is swept over"
            return [Problem("sweep.folds", f"{reason}; give it one value, or leave this out")]
        if key.endswith("fold"):
            del axes[key]
    if type(folds) is not int or not 2 <= folds <= MOST_JOBS:
        reason = "runs all folds, and dataset.folds says of how many; set +dataset.folds=5"
        return [Problem("sweep.folds", reason)]
    axes["dataset.fold"] = [f"++dataset.fold={fold}" for fold in range(folds)]
    swept.append("dataset.fold")
    return []


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
