"""All that is wrong with a run, found before anything is built, written or downloaded.

    argv -> composition -> schema, names of targets      without torch
         -> arguments of targets -> contradictions       with torch and the targets' modules

One ConfigError has all problems. Where the first line finds some, the second is left out unless
torch is imported already: a typo is answered in 1 s instead of 3 s. Cost: about 0.12 s a
configuration beside imports.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hydra.types import RunMode
from omegaconf import OmegaConf

from penstock import installed
from penstock.addons.sweeps import grid
from penstock.addons.sweeps.grid import Grid
from penstock.config import (
    allow_list,
    announcement,
    command_line_keys,
    endpoints,
    environment,
    hydra_section,
    nodes,
    outputs,
    parsing,
)
from penstock.config.composition import Composed, Composer, plain, with_run_dir
from penstock.config.disclosure import Plain
from penstock.config.hydra_internals import BASIC_LAUNCHER, BASIC_SWEEPER
from penstock.config.messages import from_folder
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

Undone = Callable[[Grid], Iterator[Sequence[str]]]

MOST_JOBS = 200  # of a sweep are looked at beforehand; every job is looked at when it starts


def examine(
    container: Mapping[str, Any],
    begin: Callable[[Config], None] | None = None,
    wrong: bool = False,
    lines: Sequence[str] = (),
) -> tuple[Config, list[Problem]]:
    """The typed configuration of a plain, resolved dict, and what is wrong with it.

    Args:
        begin: told of a configuration with which nothing is wrong so far, before torch is imported.
        wrong: whether problems of the container are known already.
        lines: the overrides of the command line, for the keys that only those may set.
    """
    config, problems = parsing.check(container)
    if isinstance(container, Plain):
        problems += environment.check(container)
    problems += [*endpoints.check(container), *outputs.check(container), *_parts(container)]
    problems += command_line_keys.check(container, lines)
    wrong = wrong or bool(problems)
    if wrong and "torch" not in sys.modules:
        return config, problems
    if installed.only_reads(getattr(config, "task", "")):
        if begin is not None and not wrong:
            begin(config)
        return config, problems
    if begin is not None and not wrong:
        begin(config)
    from penstock.config import contradictions  # imports torch

    found = {}
    for part in nodes.parts(config):
        found[part.key], more = nodes.check(part)
        problems += more
    return config, problems + contradictions.find(config, found, partly=wrong)


def _parts(container: Mapping[str, Any]) -> Iterator[Problem]:
    """Names of targets that may not be called, by the name alone, and places to write to."""
    reads = not installed.only_reads(container.get("task"))
    for section, value in container.items():
        for key, node in nodes.walk(value, section):
            try:
                allow_list.check_name(node["_target_"], f"{key}._target_")
            except ConfigError as error:
                yield from error.problems
            if reads:
                yield from outputs.of_part(key, node)


def compose(*overrides: str, config_dir: str | None = None) -> Config:
    """The configuration that `python run.py <overrides>` would run, for use as a library.

    Args:
        overrides: as on the command line, e.g. "sampler=weighted", "loader.num_workers=4".
        config_dir: a folder of groups of your own.

    Raises:
        ConfigError: with everything that is wrong.
    """
    lines = with_run_dir(overrides)
    words = filter(outputs.may_name, lines)
    with outputs.naming(outputs.named(command_line_keys.typed_values(words))):
        config = run(Composer(config_dir=config_dir), lines)
    if config is None:
        raise ConfigError(Problem("hydra.mode", "a sweep is several configurations, not one"))
    return config


def accept(container: Mapping[str, Any], lines: Sequence[str] = ()) -> Config:
    """The typed configuration of overrides `lines`; raises ConfigError with all problems."""
    config, problems = examine(container, lines=lines)
    raise_if(problems)
    return config


def stored(config: Mapping[str, Any]) -> Config:
    """The configuration that a run wrote into its folder, checked like any other.

    Keys that only a command line sets are left out of it.

    Raises:
        ConfigError: with everything that is wrong.
    """
    with from_folder():
        return accept(plain(OmegaConf.create(command_line_keys.without(config))))


def look(composer: Composer, lines: Sequence[str]) -> None:
    """Check what only shows a configuration: its overrides, and what hydra would call."""
    overrides, problems = composer.parse(lines)
    composed = composer.compose([one for one in overrides if not one.is_sweep_override()])
    raise_if(problems + composed.problems + _hydra_problems(composed, importing=False))


def run(
    composer: Composer,
    lines: Sequence[str],
    multirun: bool = False,
    announce: Callable[[str], None] = lambda line: None,
    undone: Undone = Grid.jobs,
) -> Config | None:
    """Check a run or a sweep; the Config of a single run.

    Args:
        announce: is told in a line what will happen, as soon as that is known.
        undone: gives the jobs of a sweep that are to be looked at.

    Raises:
        ConfigError: with everything that is wrong, in any job.
    """
    overrides, problems = composer.parse(lines)
    fixed = [one for one in overrides if not one.is_sweep_override()]
    base = composer.compose(fixed, multirun)
    if multirun or base.hydra.get("mode") == RunMode.MULTIRUN:
        raise_if(problems + _sweep(composer, overrides, base, announce, undone))
        return None
    problems += [
        Problem(
            one.key_or_group,
            f"{one.input_line} is several values: add -m to sweep over them, "
            f"or write a list as {one.key_or_group}=[a,b]",
        )
        for one in overrides
        if one.is_sweep_override()
    ]
    config, more = _job(base, None if problems else lambda one: announce(announcement.of_run(one)))
    raise_if(problems + more)
    return config


def _sweep(
    composer: Composer,
    overrides: Sequence[Override],
    base: Composed,
    announce: Callable[[str], None],
    undone: Undone,
) -> list[Problem]:
    """The problems of a sweep's jobs.

    Our sweeper that chooses values as it goes is checked with each value of a choice and the ends
    of each range; one of a plugin with the values that are fixed. Jobs are checked as they come.
    """
    problems = _hydra_problems(base)
    sweeper = base.hydra.get("sweeper", {})
    chooses = sweeper.get("_target_") in hydra_section.SWEEPERS
    if problems or not base.complete or not (chooses or sweeper["_target_"] == BASIC_SWEEPER):
        return _job(base)[1]
    params = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    more, problems = composer.parse(params)
    hydras = [one for one in overrides if one.is_hydra_override()]
    # The command line comes last and wins, as in the sweeper itself.
    swept = [*more, *(one for one in overrides if not one.is_hydra_override())]
    folder = OmegaConf.select(base.node, "sweep.dir", throw_on_resolution_failure=False)
    problems += hydra_section.sweep_problems(base.node)
    lines = grid.bounds if chooses else grid.values
    asked, more_problems = grid.of(swept, base.config, folder and str(folder), lines)
    problems += more_problems
    options = base.config.get("sweep", {})
    if chooses and options.get("seeds") is not None:
        reason = "is for grids; here every trial has the one seed. Leave it out"
        problems.append(Problem("sweep.seeds", reason))
    if options.get("jobs", 1) != 1:
        problems += _in_parallel(base.hydra.get("launcher", {}).get("_target_"))
    over = [str(one.input_line) for one in swept if one.is_sweep_override()]
    if chooses:
        if not problems and options.get("optuna"):
            announce(announcement.of_study(over, options["optuna"].get("trials")))
        jobs = [] if more_problems else list(_each(asked.axes))
    else:
        composer.grid = asked
        if not problems:
            over += [one for one in asked.fixed if one.startswith("sweep.seeds=")]
            announce(announcement.of_sweep(over, list(map(len, asked.axes.values()))))
        jobs = [] if more_problems else list(_jobs(composer, asked, undone))
    seen: dict[Problem, list[Sequence[str]]] = {}
    for job in jobs:
        chosen, _ = composer.parse(job)
        for problem in dict.fromkeys(_job(composer.compose([*hydras, *chosen]))[1]):
            seen.setdefault(problem, []).append(job)
    for problem, where in seen.items():
        if len(where) < len(jobs):
            varied = (
                line
                for line, one in zip(where[0], asked.axes.values(), strict=True)
                if len(one) > 1
            )
            text = f"{problem.message} (in the job {' '.join(varied)})"
            problem = Problem(problem.key, text)
        problems.append(problem)
    return problems


def _in_parallel(launcher: object) -> list[Problem]:
    """Why `sweep.jobs` cannot be used."""
    if launcher != BASIC_LAUNCHER:
        reason = "is for jobs that this machine runs; hydra/launcher has options of its own"
        return [Problem("sweep.jobs", reason)]
    try:
        found = find_spec("hydra_plugins.hydra_joblib_launcher")
    except ModuleNotFoundError:
        found = None
    reason = "needs hydra-joblib-launcher: pip install 'penstock-loader[sweep]'"
    return [] if found else [Problem("sweep.jobs", reason)]


def _jobs(composer: Composer, asked: Grid, undone: Undone) -> Iterator[Sequence[str]]:
    """The first jobs to do, and one for each choice of a group that none of those has.

    A group may bring what hydra acts on; a single value cannot, since hydra's own section holds no
    interpolations. What several choices bring together in the others is found when they start.
    """
    first = list(itertools.islice(undone(asked), MOST_JOBS))
    yield from first
    if len(first) < MOST_JOBS:
        return
    lines = list(asked.axes.values())
    for place, several in enumerate(lines):
        seen = {job[place] for job in first}
        for line in several:
            if line not in seen and composer.chooses(line):
                yield tuple(line if i == place else other[0] for i, other in enumerate(lines))


def _each(axes: Mapping[str, Sequence[str]]) -> Iterator[Sequence[str]]:
    """The first job, and for each further value of a key the same with that."""
    lines = list(axes.values())
    yield tuple(one[0] for one in lines)
    for place, values in enumerate(lines):
        for line in values[1:MOST_JOBS]:
            yield tuple(line if i == place else one[0] for i, one in enumerate(lines))


def raise_if(problems: Sequence[Problem]) -> None:
    """Raise ConfigError if there are problems."""
    if problems:
        raise ConfigError(dict.fromkeys(problems))


def _job(
    composed: Composed, begin: Callable[[Config], None] | None = None
) -> tuple[Config | None, list[Problem]]:
    """One composed job: its configuration and all its problems."""
    problems = composed.problems + composed.unset + _hydra_problems(composed)
    if not composed.complete:
        return None, problems
    trackers = [line for line in composed.lines if line.startswith("tracker=")][-1:]
    several = trackers and trackers[0].startswith("tracker=[") and "," in trackers[0]
    if several and "_target_" in composed.config.get("tracker", {}):
        reason = "does not begin with a line # @package tracker.NAME, so it replaces the others"
        problems.append(Problem("tracker", f"the file of one of {trackers[0][8:]} {reason}"))
    said = {problem.key for problem in problems}
    config, more = examine(composed.config, begin, bool(problems), composed.lines)
    # A key is not reported twice, nor a section for a key below it.
    return config, problems + [
        problem
        for problem in more
        if problem.key not in said and not any(key.startswith(f"{problem.key}.") for key in said)
    ]


def _hydra_problems(composed: Composed, importing: bool = True) -> list[Problem]:
    """Problems of hydra's own section, on which hydra acts before any code of ours runs."""
    if composed.node is None:
        return []
    return hydra_section.problems(composed.node, composed.lines, importing)
