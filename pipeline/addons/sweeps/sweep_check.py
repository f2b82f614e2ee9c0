"""Finds what is wrong with a sweep before any of its jobs runs.

Cost: a composition for each of its jobs, 0.12 s; of many jobs the first `MOST_JOBS`, and one for
each further choice of a group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from penstock.addons.sweeps import grid
from penstock.addons.sweeps.grid import Grid
from penstock.addons.sweeps.plugins import SWEEPER
from penstock.addons.sweeps.sweep_grid import undone
from penstock.config import preflight
from penstock.config.composition import Composed, Composer
from penstock.config.hydra_internals import BASIC_LAUNCHER, BASIC_SWEEPER
from penstock.errors import Problem

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

MOST_JOBS = 200  # of a sweep are looked at beforehand; every job is looked at when it starts


def check(
    composer: Composer,
    overrides: Sequence[Override],
    base: Composed,
    announce: Callable[[str], None],
) -> list[Problem]:
    """The problems of a sweep's jobs; `composer.sweep` is the `Grid` afterwards, if it is one.

    Our sweeper that chooses values as it goes is checked with each value of a choice and the ends
    of each range; one of a plugin with the values that are fixed. Jobs are checked as they come.

    Args:
        base: the configuration with the values that are fixed.
        announce: gets a line that says what the sweep will do.
    """
    problems = preflight.hydra_problems(base)
    sweeper = base.hydra.get("sweeper", {})
    chooses = sweeper.get("_target_") == SWEEPER
    if problems or not base.complete or not (chooses or sweeper["_target_"] == BASIC_SWEEPER):
        return preflight.check_job(base)[1]
    params = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    more, problems = composer.parse(params)
    hydras = [override for override in overrides if override.is_hydra_override()]
    # The command line comes last and wins, as in the sweeper itself.
    swept = [*more, *(override for override in overrides if not override.is_hydra_override())]
    folder = OmegaConf.select(base.node, "sweep.dir", throw_on_resolution_failure=False)
    lines = grid.bounds if chooses else grid.values
    asked, of_grid = grid.of(swept, base.config, folder and str(folder), lines)
    problems += of_grid
    options = base.config.get("sweep", {})
    if chooses and options.get("seeds") is not None:
        reason = "is for grids; here every trial has the one seed. Leave it out"
        problems.append(Problem("sweep.seeds", reason))
    if chooses and options.get("folds") is not None:
        reason = "is for grids; here every trial has one fold, dataset.fold. Leave it out"
        problems.append(Problem("sweep.folds", reason))
    if options.get("jobs", 1) != 1:
        problems += _in_parallel(base.hydra.get("launcher", {}).get("_target_"))
    over = [str(override.input_line) for override in swept if override.is_sweep_override()]
    if chooses:
        if not problems and options.get("optuna"):
            announce(of_study(over, options["optuna"].get("trials")))
        jobs = [] if of_grid else list(_each(asked.axes))
    else:
        composer.sweep = asked
        if not problems:
            over += [
                line for line in asked.fixed if line.startswith(("sweep.seeds=", "sweep.folds="))
            ]
            announce(of_sweep(over, list(map(len, asked.axes.values()))))
        jobs = [] if of_grid else list(_jobs(composer, asked))
    seen: dict[Problem, list[Sequence[str]]] = {}
    for job in jobs:
        chosen, _ = composer.parse(job)
        job_problems = preflight.check_job(composer.compose([*hydras, *chosen]))[1]
        for problem in dict.fromkeys(job_problems):
            seen.setdefault(problem, []).append(job)
    for problem, where in seen.items():
        if len(where) < len(jobs):
            axes = zip(where[0], asked.axes.values(), strict=True)
            varied = " ".join(line for line, values in axes if len(values) > 1)
            problem = Problem(problem.key, f"{problem.message} (in the job {varied})")
        problems.append(problem)
    return problems


def _in_parallel(launcher: object) -> list[Problem]:
    """Why `sweep.jobs` cannot be used."""
    if launcher != BASIC_LAUNCHER:
        reason = "is for jobs that this machine runs; hydra/launcher has options of its own"
        return [Problem("sweep.jobs", reason)]
    try:
        launcher_found = find_spec("hydra_plugins.hydra_joblib_launcher")
    except ModuleNotFoundError:
        launcher_found = None
    reason = "needs hydra-joblib-launcher: pip install 'penstock-loader[sweep]'"
    return [] if launcher_found else [Problem("sweep.jobs", reason)]


def _jobs(composer: Composer, asked: Grid) -> Iterator[Sequence[str]]:
    """The first jobs to do, and one for each choice of a group that none of those has.

    A group may bring what hydra acts on; a single value cannot, since hydra's own section holds no
    interpolations. The others find contradictions of several choices when they start.
    """
    first = list(itertools.islice(undone(asked), MOST_JOBS))
    yield from first
    if len(first) < MOST_JOBS:
        return
    axes = list(asked.axes.values())
    for axis, lines in enumerate(axes):
        seen = {job[axis] for job in first}
        for line in lines:
            if line not in seen and composer.chooses(line):
                yield tuple(line if i == axis else other[0] for i, other in enumerate(axes))


def _each(axes: Mapping[str, Sequence[str]]) -> Iterator[Sequence[str]]:
    """The first job, and for each further value of a key the same with that."""
    lines = list(axes.values())
    yield tuple(values[0] for values in lines)
    for axis, several in enumerate(lines):
        for line in several[1:MOST_JOBS]:
            yield tuple(line if i == axis else other[0] for i, other in enumerate(lines))


def of_sweep(lines: Sequence[str], sizes: Sequence[int]) -> str:
    """One line on what a sweep will do.

    Args:
        lines: the overrides that it goes over, with all their values.
        sizes: how many values each has.
    """
    jobs = prod(sizes)
    over = f" over {' '.join(lines)}" if lines else ""
    return f"a sweep of {jobs} {'job' if jobs == 1 else 'jobs'}{over}; all are checked first"


def of_study(lines: Sequence[str], trials: int) -> str:
    """One line on what a study of optuna's will do; arguments as for `of_sweep`."""
    over = " ".join(lines)
    return f"a study of {trials} {'trial' if trials == 1 else 'trials'} over {over}"
