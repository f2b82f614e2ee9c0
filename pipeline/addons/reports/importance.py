"""How much each key of a sweep matters to its metric, in two ways.

- Its share of the variance: what the metric varies by between the key's values, adjusted for how
  many there are (epsilon squared). Near zero it may be chance.
- With many jobs and optuna installed, optuna's importance (PED-ANOVA): what distinguishes the best
  tenth of the jobs from all of them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.addons.reports.sweep_data import number

_FOR_OPTUNA = 20  # jobs, below which the best tenth of them says nothing
_MOST_LEVELS = 4  # into which a number's values are divided


@dataclass(frozen=True)
class Importance:
    """By key, the largest first: a share of the variance, and optuna's importance, 0 to 1.

    Keys about which nothing can be said are left out; optuna's are empty without it.
    """

    variance: Mapping[str, float]
    optuna: Mapping[str, float]

    def of(self, key: str) -> float:
        """The larger of both; 0 where nothing is known."""
        return max(self.variance.get(key, 0.0), self.optuna.get(key, 0.0))


def importance(
    settings: Sequence[Mapping[str, str]], values: Sequence[float], keys: Sequence[str]
) -> Importance:
    """The importance of each key, from the jobs that are done.

    Args:
        settings: of each job.
        values: of the metric; the smallest is the best.
    """
    if len(values) < 3 or not np.ptp(values):
        return Importance({}, {})
    columns = {key: [setting.get(key) for setting in settings] for key in keys}
    columns = {key: column for key, column in columns.items() if len(set(column)) > 1}
    shares = {key: variance_share(column, values) for key, column in columns.items()}
    explained = {key: share for key, share in shares.items() if share is not None}
    by_optuna = _by_optuna(columns, values) if len(values) >= _FOR_OPTUNA and columns else {}
    return Importance(
        *(
            dict(sorted(weights.items(), key=lambda pair: -pair[1]))
            for weights in (explained, by_optuna)
        )
    )


def variance_share(column: Sequence[str | None], values: Sequence[float]) -> float | None:
    """The share of the values' variance between the levels of a key, 0 to 1.

    Numbers that hardly repeat are divided into quarters. None where (nearly) every job has a level
    of its own, so that nothing can be told from chance.
    """
    y = np.array(values, float)
    numbers = [number(text) for text in column]
    if None not in numbers and len(set(numbers)) > max(_MOST_LEVELS, len(y) // 3):
        x = np.array(numbers, float)
        count = min(_MOST_LEVELS, len(y) // 2)
        edges = np.quantile(x, np.linspace(0, 1, count + 1)[1:-1])
        levels = np.searchsorted(edges, x, side="left")
    else:
        _, levels = np.unique([str(text) for text in column], return_inverse=True)
    groups = [y[levels == level] for level in np.unique(levels)]
    total = float(((y - y.mean()) ** 2).sum())
    if not total or not np.isfinite(total) or len(groups) == 1 or len(y) - len(groups) < 2:
        return None
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    chance = (len(groups) - 1) * within / (len(y) - len(groups))
    return min(1.0, max(0.0, (total - within - chance) / total))


def _by_optuna(
    columns: Mapping[str, Sequence[str | None]], values: Sequence[float]
) -> dict[str, float]:
    try:
        import optuna
        from optuna.distributions import (
            BaseDistribution,
            CategoricalDistribution,
            FloatDistribution,
        )
    except ImportError:
        return {}
    logging.getLogger("optuna").setLevel(logging.ERROR)
    spaces: dict[str, BaseDistribution] = {}
    taken: dict[str, list[float | str]] = {}
    for key, column in columns.items():
        numbers = [value for text in column if (value := number(text)) is not None]
        if len(numbers) == len(column):
            low, high = min(numbers), max(numbers)
            spaces[key] = FloatDistribution(low, high, log=low > 0 and high >= 100 * low)
            taken[key] = list(numbers)
        else:
            texts = [str(text) for text in column]
            spaces[key], taken[key] = CategoricalDistribution(sorted(set(texts))), list(texts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study()
        for trial, value in enumerate(values):
            params = {key: column[trial] for key, column in taken.items()}
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=spaces, value=value)
            )
        try:
            return dict(optuna.importance.get_param_importances(study))
        except (ValueError, RuntimeError):
            return {}
