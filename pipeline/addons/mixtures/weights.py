"""Weights of a mixture's sources, constant or changing with the step: stages of constant ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import fsum
from typing import Literal

import numpy as np

from penstock.errors import ConfigError, Problem
from penstock.order.keys import FloatArray

Knots = Sequence[tuple[int, float]]  # (step or sample, weight), ascending
Weight = float | Knots

_STAIRS = 100  # in which weights go from one knot to the next, at most
_KEY = "dataset.weights"


@dataclass(frozen=True)
class Mixing:
    """How sources are mixed, as the keys of `dataset=mixture` say it.

    Attributes:
        lengths: rows of each source, by name.
        weights: of each source, by name: a number, or knots [[step, weight], ...] of the whole run.
            Before its first knot a weight is that of the first, behind the last that of the last.
            None: by length.
        linear: weights go from one knot to the next, in up to 100 equal stairs; else they change
            at a knot.
        knots: what they count.
        passes: how often a source is read at most, by name.
        stop: what happens where a source has given its passes. "all": the others have its share,
            until all have; "first": the run ends, without any `passes` after one of a source.
        num_samples: positions of an epoch; None: as many as all sources have rows.
    """

    lengths: Mapping[str, int]
    weights: Mapping[str, Weight] | None = None
    linear: bool = False
    knots: Literal["steps", "samples"] = "steps"
    passes: Mapping[str, int] = field(default_factory=dict)
    stop: Literal["all", "first"] = "all"
    num_samples: int | None = None

    def __post_init__(self) -> None:
        for name, times in self.passes.items():
            if name not in self.lengths or type(times) is not int or times < 1:
                raise ConfigError(
                    Problem(
                        f"dataset.passes.{name}",
                        f"{times!r}; allowed: 1 or more passes of a "
                        f"source ({', '.join(self.lengths)})",
                    )
                )
        for key, value, allowed in (
            ("knots", self.knots, ("steps", "samples")),
            ("stop", self.stop, ("all", "first")),
        ):
            if value not in allowed:
                raise ConfigError(
                    Problem(f"dataset.{key}", f"{value!r}; allowed: {' | '.join(allowed)}")
                )
        if self.num_samples is not None and self.num_samples < 1:
            raise ConfigError(
                Problem("dataset.num_samples", f"{self.num_samples}; allowed: 1 or more, or null")
            )

    def recorded(self, fingerprints: Mapping[str, str]) -> dict[str, str]:
        """The entries of a run's fingerprint, of the fingerprints of the sources."""
        weights = self.weights or dict.fromkeys(self.lengths)
        number = self.num_samples or sum(self.lengths.values())
        return {
            **{
                f"dataset.sources.{name}": f"{length} samples, {fingerprints[name]}"
                for name, length in self.lengths.items()
            },
            **{f"dataset.weights.{name}": json.dumps(weight) for name, weight in weights.items()},
            **{f"dataset.passes.{name}": str(times) for name, times in self.passes.items()},
            "dataset.linear": str(self.linear),
            "dataset.knots": self.knots,
            "dataset.stop": self.stop,
            "dataset.num_samples": str(number),
        }

    def stages(self) -> list[tuple[int, FloatArray]]:
        """Where each stage begins, ascending from 0, and the share of each source in it.

        Raises:
            ConfigError: weights that are none, or that are all 0 somewhere.
        """
        weights = self.weights
        if weights is None:
            weights = {name: float(length) for name, length in self.lengths.items()}
        if set(self.lengths) != set(weights):
            odd = ", ".join(sorted(set(self.lengths) ^ set(weights)))
            raise ConfigError(
                Problem(_KEY, f"give one weight for each source; {odd} is in one only")
            )
        knots = [self._knots(name, weights[name]) for name in self.lengths]
        edges = sorted({0, *(step for pairs in knots for step, _ in pairs)})
        starts = edges
        if self.linear:
            inside = [_stairs(*ends) for ends in pairwise(edges)]
            starts = [start for stairs in inside for start in stairs] + edges[-1:]
        stages: list[tuple[int, FloatArray]] = []
        for start, end in zip(starts, [*starts[1:], starts[-1] + 1], strict=True):
            middle = (start + end - 1) / 2 if self.linear else start
            values = np.array([_at(pairs, middle, self.linear) for pairs in knots])
            if not values.any():
                raise ConfigError(Problem(_KEY, f"all weights are 0 from {start} {self.knots} on"))
            shares = values / fsum(values)
            if not stages or not np.array_equal(shares, stages[-1][1]):
                stages.append((start, shares))
        return stages

    def _knots(self, name: str, written: Weight) -> Knots:
        pairs: Knots = []
        try:
            listed = [(0, written)] if isinstance(written, (int, float)) else list(written)
            pairs = [(int(step), float(weight)) for step, weight in listed]
        except (TypeError, ValueError):
            pass
        steps = [step for step, _ in pairs]
        sane = all(np.isfinite(weight) and weight >= 0 for _, weight in pairs)
        if not pairs or not sane or steps[0] < 0 or steps != sorted(set(steps)):
            raise ConfigError(
                Problem(
                    f"{_KEY}.{name}",
                    f"{written!r}; allowed: a number, 0 or more, or "
                    "[[step, weight], ...] with steps in ascending order",
                )
            )
        if self.lengths[name] < 1 and any(weight for _, weight in pairs):
            raise ConfigError(
                Problem(f"dataset.sources.{name}", "has no samples, so its weight has to be 0")
            )
        return pairs


def _stairs(start: int, end: int) -> list[int]:
    count = min(end - start, _STAIRS)
    return [start + (end - start) * stair // count for stair in range(count)]


def _at(knots: Knots, step: float, linear: bool) -> float:
    steps = [step for step, _ in knots]
    after = int(np.searchsorted(steps, step, side="right"))
    if after == 0 or after == len(knots) or not linear:
        return knots[max(after - 1, 0)][1]
    (left, low), (right, high) = knots[after - 1], knots[after]
    return low + (high - low) * (step - left) / (right - left)
