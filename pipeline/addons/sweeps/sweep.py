"""A sweep: all jobs are checked before the first one starts, and a table of them ends it.

The table is made of the manifests in the sweep's folder, so it is the same whatever processes ran
the jobs, and however often they were killed.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

import penstock
from penstock.addons.sweeps import jobs
from penstock.addons.sweeps.jobs import FINISHED, Job, jobs_of
from penstock.config import preflight
from penstock.distributed import preemption
from penstock.errors import ConfigError, Problem
from penstock.files.disk import prepare, write_atomically
from penstock.runs.manifest import NAME
from penstock.terminal import put, say

if TYPE_CHECKING:
    import pandas

TABLE, MEANS = "sweep.csv", "means.csv"
MOST_CHECKED = 200  # jobs; of a larger grid each value is checked once, and each job as it starts

# Keys whose values repeat a setting.
REPEATED = {"seed": "seeds", "data.fold": "folds"}


def values_of(override: Override) -> list[str]:
    """The override lines that a sweep over one key is made of; the ends of an interval."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key, value = override.get_key_element(), override.value()
    if override.is_interval_sweep():
        return [f"{key}={value.start}", f"{key}={value.end}"]  # type: ignore[union-attr]
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def check(overrides: Sequence[Override], problems_of: Callable[[Sequence[str]], Any]) -> None:
    """Raise ConfigError with all that is wrong in the jobs of a sweep.

    Args:
        overrides: of the sweeper's own parameters and the command line, none of Hydra's.
        problems_of: returns the problems of a job with these override lines.
    """
    axes = {override.get_key_element(): values_of(override) for override in overrides}
    lines = list(axes.values())
    if chosen := [over.input_line for over in overrides if over.is_sweep_override()]:
        say(f"a sweep over {' '.join(map(str, chosen))}; its jobs are checked first")
    count = prod(map(len, lines))
    # Of an interval nobody knows the jobs: its ends are values like others.
    checked = list(itertools.product(*lines)) if count <= MOST_CHECKED else list(_each(lines))
    found: dict[Problem, list[Sequence[str]]] = {}
    for job in checked:
        for problem in dict.fromkeys(problems_of(job)):
            found.setdefault(problem, []).append(job)
    varied = [at for at, several in enumerate(lines) if len(several) > 1]
    problems = [
        problem
        if len(where) == len(checked)
        else Problem(
            problem.key, f"{problem.message} (in the job {' '.join(where[0][at] for at in varied)})"
        )
        for problem, where in found.items()
    ]
    if problems:
        raise ConfigError(problems)


def check_command(
    composer: Any, overrides: Sequence[Override], base: Any, announce: Callable[[str], None]
) -> list[Problem]:
    """The problems of the jobs of a command line; `composer.sweep` is its folder afterwards."""
    problems: list[Problem] = preflight.hydra_problems(base)
    if problems or not base.complete:
        return problems or preflight.check_job(base)[1]
    params = (base.hydra.get("sweeper", {}).get("params") or {}).items()
    more, problems = composer.parse([f"{key}={value}" for key, value in params])
    hydras = [override for override in overrides if override.is_hydra_override()]
    swept = [*more, *(override for override in overrides if not override.is_hydra_override())]
    composer.sweep = (OmegaConf.select(base.node, "sweep.dir"), base.config)

    def problems_of(job: Sequence[str]) -> list[Problem]:
        return preflight.check_job(composer.compose([*hydras, *composer.parse(job)[0]]))[1]

    try:
        check(swept, problems_of)
    except ConfigError as error:
        problems += error.problems
    return problems


def _each(lines: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """The first job, and for each further value of a key the same with that."""
    first = [several[0] for several in lines]
    yield first
    for axis, several in enumerate(lines):
        yield from ([*first[:axis], line, *first[axis + 1 :]] for line in several[1:])


@contextmanager
def running(folder: Path, report: Callable[[Path], None]) -> Iterator[None]:
    """Let Hydra run the jobs of a sweep in here; the table follows, however it ends.

    Args:
        report: makes the sweep's page.

    Raises:
        SystemExit: with the exit code of the first job that failed.
    """
    from penstock.addons.sweeps import optuna_sweeper

    began, root = time.time(), str(Path(penstock.__file__).parent.parent)
    path = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    # A launcher's programs import this code, and are asked to stop as others are.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([root, *path]))
    os.environ.setdefault("SUBMITIT_PREEMPT_SIGNAL", "USR1")
    Plugins.instance().register(optuna_sweeper.OptunaSweeper)
    # Hydra 1.3 imports plugins from this package only, which no other plugin need have brought.
    sys.modules.setdefault("hydra_plugins", ModuleType("hydra_plugins"))
    sys.modules[optuna_sweeper.OptunaSweeper.__module__] = optuna_sweeper
    prepare(folder)
    jobs._own_sweep.append(True)
    try:
        with preemption.job():
            preemption.keep_from_children()
            yield
    finally:
        jobs._own_sweep.clear()
        every = list(jobs_of(folder))
        if every:
            show(folder, every)
            report(folder)
    ended = (job for job in every if (job.path / NAME).stat().st_mtime >= began)
    code = next((job.manifest.get("exit_code", 1) for job in ended if job.status == "failed"), 0)
    if code:
        raise SystemExit(code)


def show(folder: Path, every: Sequence[Job]) -> None:
    """Print the table of a sweep's jobs and the best one, and write the tables beside them."""
    metric = next((job.metric for job in every if job.value is not None), "value")
    frame = table(every, metric)
    keys = [*map(str, frame)][1 : list(frame).index("status")]
    alike = [key for key in keys if len(frame) > 1 and frame[key].nunique() == 1]
    keys = [key for key in keys if key not in alike]
    summary = means(frame, keys, metric)
    for name, made in {TABLE: frame, MEANS: summary}.items():
        if len(made):
            write_atomically(folder / name, made.to_csv(index=False, float_format="%.6g").encode())
    shown: Any = {"index": False, "na_rep": "", "float_format": "{:.6g}".format}
    done = sum(job.status in FINISHED for job in every)
    put(f"{done} of {len(every)} jobs in {folder} are done")
    put(frame.drop(columns=alike).dropna(axis=1, how="all").to_string(**shown))
    if alike:
        put("all:", *(f"{key}={frame[key][0]}" for key in alike))
    rows: Any = frame[frame["status"] == "done"]
    if len(summary):
        put(summary.to_string(**shown))
        metric, whole = f"{metric}, mean", summary[summary["missing"] == ""]
        rows = whole if len(whole) else summary  # the easiest fold is no result
    if len(values := rows[metric].dropna()):
        is_max = any(job.manifest.get("mode") == "max" for job in every)
        at = values.idxmax() if is_max else values.idxmin()
        of = " ".join(f"{key}={rows[key][at]}" for key in keys if key in rows)
        put(f"best: {metric} {values[at]:.6g} with {of or '(defaults)'}")


def table(every: Sequence[Job], metric: str) -> pandas.DataFrame:
    """A row for each job: its settings as they were given, status, metrics and error."""
    import pandas

    keys = dict.fromkeys(key for job in every for key in job.settings)
    rows: list[dict[str, Any]] = [
        {
            "job": job.name,
            **{key: job.settings.get(key, "") for key in keys},
            "status": job.status,
            metric: job.value,
            **(job.metrics if job.value is not None else {}),
        }
        for job in every
    ]
    # Errors stand behind what any job has measured.
    errors: Any = [job.error or None for job in every]
    return pandas.DataFrame(rows).assign(error=errors)


def means(frame: pandas.DataFrame, keys: Sequence[str], metric: str) -> pandas.DataFrame:
    """A row for each setting that was repeated with seeds or on folds: the mean, the standard
    deviation over each, and what is missing; empty where nothing was repeated.

    Args:
        keys: that vary.
    """
    import pandas

    repeated = [key for key in keys if key in REPEATED]
    settings = [key for key in keys if key not in REPEATED]
    rows = []
    groups = frame.groupby(settings or (lambda row: ""), sort=False)
    is_repeated = repeated and groups.ngroups < len(frame) and frame[metric].count()
    for values, group in groups if is_repeated else ():
        undone = group[group[metric].isna()]
        row: dict[str, Any] = dict(zip(settings, values, strict=False))
        row[f"{metric}, mean"] = group[metric].mean()
        for key in repeated:
            row[f"over {REPEATED[key]}"] = group.groupby(key)[metric].mean().std()
        row["jobs"] = f"{len(group) - len(undone)} of {len(group)}"
        row["missing"] = "; ".join(
            " ".join([*(f"{key.rpartition('.')[2]} {job[key]}" for key in repeated), job["status"]])
            for _, job in undone.iterrows()
        )
        rows.append(row)
    return pandas.DataFrame(rows)
