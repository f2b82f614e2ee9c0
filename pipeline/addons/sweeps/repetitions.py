"""Jobs of a sweep that only repeat a setting: with other seeds, or on other folds of the data.

A fold is no hyperparameter: what a setting reaches is the mean over its folds and seeds. The
deviation over folds is that of the means of each fold, over seeds it is the same, so that a grid of
both tells one from the other. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev

REPEATED = {"seed": "seeds", "dataset.fold": "folds"}  # keys whose values are repetitions

Repetition = tuple[Mapping[str, str], float]  # the settings of a job, and what it reached


def deviations(repetitions: Sequence[Repetition]) -> dict[str, float]:
    """By repeated key, the standard deviation over its values of the mean of each."""
    made = {}
    for key in REPEATED:
        by_value: dict[str | None, list[float]] = {}
        for settings, value in repetitions:
            by_value.setdefault(settings.get(key), []).append(value)
        if len(by_value) > 1:
            made[key] = stdev(map(mean, by_value.values()))
    return made


def grouped(
    jobs: Iterable[Mapping[str, str]], keys: Iterable[str]
) -> dict[tuple[str | None, ...], list[int]]:
    """Places of jobs with the same values of `keys` but for repeated ones, by these values."""
    keys = [key for key in keys if key not in REPEATED]
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for place, settings in enumerate(jobs):
        groups.setdefault(tuple(settings.get(key) for key in keys), []).append(place)
    return groups


def varying(jobs: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys that have different values, in the order of the overrides; repeated ones last."""
    keys = dict.fromkeys(key for settings in jobs for key in settings)
    several = [key for key in keys if len({settings.get(key) for settings in jobs}) > 1]
    return sorted(several, key=lambda key: key in REPEATED)


def named(settings: Mapping[str, str]) -> str:
    """The repetition that a job is, in words: "seed 3, fold 1"."""
    return ", ".join(
        f"{key.rpartition('.')[2]} {settings[key]}" for key in REPEATED if key in settings
    )
