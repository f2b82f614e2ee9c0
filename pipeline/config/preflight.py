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
from typing import TYPE_CHECKING, Any

from hydra.types import RunMode

from pipeline.config import (
    allow_list,
    announcement,
    endpoints,
    environment,
    hydra_section,
    nodes,
    parsing,
)
from pipeline.config.composition import Composed, Composer, with_run_dir
from pipeline.config.disclosure import Plain
from pipeline.config.hydra_internals import BASIC_SWEEPER
from pipeline.config.schema import Config
from pipeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

MOST_JOBS = 200  # of a sweep are looked at beforehand; every job is looked at when it starts


def examine(
    container: Mapping[str, Any],
    begin: Callable[[Config], None] | None = None,
    wrong: bool = False,
) -> tuple[Config, list[Problem]]:
    """The typed configuration of a plain, resolved dict, and what is wrong with it.

    Args:
        begin: told of a configuration with which nothing is wrong so far, before torch is imported.
        wrong: whether problems of the container are known already.
    """
    config, problems = parsing.check(container)
    if isinstance(container, Plain):
        problems += environment.check(container)
    problems += [*endpoints.check(container), *_names(container)]
    wrong = wrong or bool(problems)
    if wrong and "torch" not in sys.modules:
        return config, problems
    if begin is not None and not wrong:
        begin(config)
    from pipeline.config import contradictions  # imports torch

    found = {}
    for part in nodes.parts(config):
        found[part.key], more = nodes.check(part)
        problems += more
    return config, problems + contradictions.find(config, found, partly=wrong)


def _names(container: Mapping[str, Any]) -> Iterator[Problem]:
    """Names of targets that may not be called, by the name alone."""
    for section, value in container.items():
        for key, node in nodes.walk(value, section):
            try:
                allow_list.check_name(node["_target_"], f"{key}._target_")
            except ConfigError as error:
                yield from error.problems


def compose(*overrides: str, config_dir: str | None = None) -> Config:
    """The configuration that `python run.py <overrides>` would run, for use as a library.

    Args:
        overrides: as on the command line, e.g. "sampler=weighted", "loader.num_workers=4".
        config_dir: a folder of groups of your own.

    Raises:
        ConfigError: with everything that is wrong.
    """
    config = run(Composer(config_dir=config_dir), with_run_dir(overrides))
    if config is None:
        raise ConfigError(Problem("hydra.mode", "a sweep is several configurations, not one"))
    return config


def accept(container: Mapping[str, Any]) -> Config:
    """The typed configuration; raises ConfigError with all problems."""
    config, problems = examine(container)
    raise_if(problems)
    return config


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
) -> Config | None:
    """Check a run or a sweep; the Config of a single run.

    Args:
        announce: is told in a line what will happen, as soon as that is known.

    Raises:
        ConfigError: with everything that is wrong, in any job.
    """
    overrides, problems = composer.parse(lines)
    fixed = [one for one in overrides if not one.is_sweep_override()]
    base = composer.compose(fixed, multirun)
    if multirun or base.hydra.get("mode") == RunMode.MULTIRUN:
        raise_if(problems + _sweep(composer, overrides, base, announce))
        return None
    problems += [
        Problem(one.key_or_group, f"{one.input_line} is several values: add -m to sweep over them, "
                f"or write a list as {one.key_or_group}=[a,b]")
        for one in overrides
        if one.is_sweep_override()
    ]  # fmt: skip
    choices = base.hydra.get("runtime", {}).get("choices", {})
    config, more = _job(base, None if problems else lambda one: announce(
        announcement.of_run(one, choices)))  # fmt: skip
    raise_if(problems + more)
    return config


def _sweep(
    composer: Composer,
    overrides: Sequence[Override],
    base: Composed,
    announce: Callable[[str], None],
) -> list[Problem]:
    """The problems of a sweep's jobs.

    A sweeper that chooses values as it goes (optuna and the like) is checked with the values that
    are fixed; its jobs are checked as they come.
    """
    problems = _hydra_problems(base)
    sweeper = base.hydra.get("sweeper", {})
    if problems or not base.complete or sweeper["_target_"] != BASIC_SWEEPER:
        return _job(base)[1]
    params = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    more, problems = composer.parse(params)
    hydras = [one for one in overrides if one.is_hydra_override()]
    # The command line comes last and wins, as in the sweeper itself.
    swept = [*more, *(one for one in overrides if not one.is_hydra_override())]
    axes = {one.get_key_element(): values(one) for one in swept}
    if not problems:
        over = [str(one.input_line) for one in swept if one.is_sweep_override()]
        announce(announcement.of_sweep(over, list(map(len, axes.values()))))
    jobs = list(_jobs(composer, axes))
    seen: dict[Problem, list[Sequence[str]]] = {}
    for job in jobs:
        chosen, _ = composer.parse(job)
        for problem in dict.fromkeys(_job(composer.compose([*hydras, *chosen]))[1]):
            seen.setdefault(problem, []).append(job)
    for problem, where in seen.items():
        if len(where) < len(jobs):
            varied = (line for line, one in zip(where[0], axes.values(), strict=True)
                      if len(one) > 1)  # fmt: skip
            text = f"{problem.message} (in the job {' '.join(varied)})"
            problem = Problem(problem.key, text)
        problems.append(problem)
    return problems


def _jobs(composer: Composer, axes: Mapping[str, Sequence[str]]) -> Iterator[Sequence[str]]:
    """The first jobs, and one for each choice of a group that none of those has.

    A group may bring what hydra acts on; a single value cannot, since hydra's own section holds no
    interpolations. Whatever several choices bring together is found when hydra composes the jobs,
    which it does for all of them before the first one starts.
    """
    first = list(itertools.islice(itertools.product(*axes.values()), MOST_JOBS))
    yield from first
    lines = list(axes.values())
    for place, values in enumerate(lines):
        seen = {job[place] for job in first}
        for line in values:
            if line not in seen and composer.chooses(line):
                yield tuple(line if i == place else other[0] for i, other in enumerate(lines))


def raise_if(problems: Sequence[Problem]) -> None:
    """Raise ConfigError if there are problems."""
    if problems:
        raise ConfigError(dict.fromkeys(problems))


def values(override: Override) -> list[str]:
    """The override lines that a sweep over one key is made of."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key = override.get_key_element()
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


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
    config, more = examine(composed.config, begin, bool(problems))
    # A key is not reported twice, nor a section for a key below it.
    return config, problems + [
        problem for problem in more
        if problem.key not in said and not any(key.startswith(f"{problem.key}.") for key in said)
    ]  # fmt: skip


def _hydra_problems(composed: Composed, importing: bool = True) -> list[Problem]:
    """Problems of hydra's own section, on which hydra acts before any code of ours runs."""
    if composed.node is None:
        return []
    return hydra_section.problems(composed.node, composed.lines, importing)
