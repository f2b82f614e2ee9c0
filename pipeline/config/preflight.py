"""All that is wrong with a run, found before anything is built, written or downloaded.

    argv -> composition -> schema, names of targets      without torch
         -> arguments of targets -> rules                with torch and the targets' modules

One ConfigError has all problems. Where the first line finds some, the second is left out unless
torch is imported already: a typo is answered in 1 s instead of 3 s. Cost: about 0.12 s a
configuration beside imports.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import OmegaConf

from penstock import program, seams
from penstock.config import (
    announcement,
    hydra_section,
    nodes,
    parsing,
    targets,
)
from penstock.config.composition import Composed, Composer, plain, with_run_dir
from penstock.config.hydra_internals import scalars
from penstock.config.schema import Config
from penstock.distributed.world import launched_size
from penstock.errors import ConfigError, Problem


def examine(
    container: Mapping[str, object],
    begin: Callable[[Config], None] | None = None,
    wrong: bool = False,
) -> tuple[Config, list[Problem]]:
    """The typed configuration of a plain, resolved dict, and what is wrong with it.

    Args:
        begin: gets a configuration with which nothing is wrong so far, before torch is imported.
        wrong: whether problems of the container are known already.
    """
    config, problems = parsing.check(container)
    problems += _parts(container)
    wrong = wrong or bool(problems)
    if wrong and "torch" not in sys.modules:
        return config, problems
    if seams.only_reads(getattr(config, "task", "")):
        if begin is not None and not wrong:
            begin(config)
        return config, problems
    if begin is not None and not wrong:
        begin(config)
    from penstock.config import rules  # imports torch

    for part in nodes.parts(config):
        problems += nodes.check(part)[1]
    return config, problems or rules.find(config)


def _parts(container: Mapping[str, object]) -> Iterator[Problem]:
    """Names of targets that may not be called, by the name alone."""
    for section, value in container.items():
        for key, node in targets.walk(value, section):
            try:
                targets.check_name(node["_target_"], f"{key}._target_")
            except ConfigError as error:
                yield from error.problems


def compose(*overrides: str, config_dir: str | None = None) -> Config:
    """The configuration that `python run.py <overrides>` would run, for use as a library.

    In a process that a launcher has started beside others, `distributed` is `ddp` by default: the
    loop is the caller's, and so is what it does with gradients.

    Args:
        overrides: as on the command line, e.g. "sampler=weighted", "loader.num_workers=4".
        config_dir: a folder of groups of your own.

    Raises:
        ConfigError: with everything that is wrong.
    """
    lines = with_run_dir(overrides)
    if launched_size() > 1 and not any(
        line.lstrip("+~").startswith("distributed") for line in overrides
    ):
        lines = [*lines, "distributed=ddp"]
    config = run(Composer(config_dir=config_dir), lines)
    if config is None:
        raise ConfigError(Problem("hydra.mode", "a sweep is several configurations, not one"))
    return config


def accept(container: dict[str, Any]) -> Config:
    """The typed configuration of plain values; raises ConfigError with all problems.

    It is not examined again where these very values, in this folder, have been (`carried`).
    """
    if (known := _known.get()) is not None and _state(container) == known[0]:
        return known[1]
    config, problems = examine(container)
    raise_if(problems)
    return config


# The values that preflight has examined, and what came of them.
_known: ContextVar[tuple[Hashable, Config] | None] = ContextVar("known", default=None)


def _state(container: Mapping[str, Any]) -> Hashable:
    # Not the values themselves: 1, 1.0 and True are equal, and nan is not.
    return repr(container), Path.cwd()


@contextmanager
def carried(composer: Composer) -> Iterator[None]:
    """Let `accept` hand out what `run` has made of the values of a single run."""
    token = _known.set(composer.examined and (_state(composer.examined[0]), composer.examined[1]))
    try:
        yield
    finally:
        _known.reset(token)


def stored(config: Mapping[str, Any]) -> Config:
    """The configuration that a run wrote into its folder, checked like any other.

    Raises:
        ConfigError: with everything that is wrong.
    """
    return accept(plain(OmegaConf.create(dict(config))))


def look(composer: Composer, lines: Sequence[str]) -> None:
    """Check what only shows a configuration: its overrides, and what hydra would call."""
    overrides, problems = composer.parse(lines)
    composed = composer.compose(
        [override for override in overrides if not override.is_sweep_override()]
    )
    raise_if(problems + composed.problems + hydra_problems(composed, importing=False))


def run(
    composer: Composer,
    lines: Sequence[str],
    multirun: bool = False,
    announce: Callable[[str], None] = lambda line: None,
) -> Config | None:
    """Check a run or a sweep; the Config of a single run.

    Args:
        announce: gets a line that says what will happen, as soon as that is known.

    Raises:
        ConfigError: with everything that is wrong, in any job.
    """
    overrides, problems = composer.parse(lines)
    fixed = [override for override in overrides if not override.is_sweep_override()]
    base = composer.compose(fixed, multirun)
    if multirun or base.hydra.get("mode") == RunMode.MULTIRUN:
        params = (base.hydra.get("sweeper", {}).get("params") or {}).items()
        own = [*composer.parse([f"{key}={value}" for key, value in params])[0], *overrides]
        hydras = [override for override in own if override.is_hydra_override()]
        composer.sweep = (OmegaConf.select(base.node, "sweep.dir"), base.config)

        def problems_of(job: Sequence[str]) -> list[Problem]:
            return check_job(composer.compose([*hydras, *composer.parse(job)[0]]))[1]

        swept = [one for one in own if one not in hydras]
        raise_if(problems + seams.check_sweep(swept, problems_of))
        return None
    problems += [
        Problem(
            override.key_or_group,
            f"{override.input_line} is several values: add -m to sweep over them, "
            f"write a list as {override.key_or_group}=[a,b], or quote a text, as in "
            + program.joined([program.override(*str(override.input_line).partition("=")[::2])]),
        )
        for override in overrides
        if override.is_sweep_override()
    ]
    config, more = check_job(
        base, None if problems else lambda config: announce(announcement.of_run(config))
    )
    raise_if(problems + more)
    composer.examined = None if config is None else (base.config, config)
    return config


def raise_if(problems: Sequence[Problem]) -> None:
    """Raise ConfigError if there are problems."""
    if problems:
        raise ConfigError(dict.fromkeys(problems))


def check_job(
    composed: Composed, begin: Callable[[Config], None] | None = None
) -> tuple[Config | None, list[Problem]]:
    """One composed job: its configuration and all its problems."""
    problems = composed.problems + composed.unset + hydra_problems(composed)
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
        _quoting(problem, composed)
        for problem in more
        if problem.key not in said and not any(key.startswith(f"{problem.key}.") for key in said)
    ]


def _quoting(problem: Problem, composed: Composed) -> Problem:
    """A problem of a text that YAML or hydra reads as something else, with the quotes it needs."""
    got, _, expected = problem.message.partition(", expected ")
    if not got.startswith("got ") or not re.search("text|string|array", expected):
        return problem
    for line in reversed(composed.lines):
        key, _, value = line.partition("=")
        if key.lstrip("+") == problem.key:
            several = value[:1] == "[" and re.search("list|array|tuple", expected)
            entries = value[1:-1].split(",") if several else [value]
            words = ",".join(program.literal(entry.strip()) for entry in entries)
            word = f"{key}=[{words}]" if several else f"{key}={words}"
            way = f"if {value} is text, quote it for Hydra and the shell: {program.joined([word])}"
            return Problem(problem.key, f"{problem.message}; {way}")
    for file in reversed(composed.files):
        if texts := scalars(file, problem.key.rpartition(".")[2]):
            quotes = ", ".join(f"'{text}'" for text in texts[:10])
            way = f"{file} has {', '.join(texts[:10])}, which YAML reads otherwise; quote it for"
            return Problem(problem.key, f"{problem.message}; {way} text: {quotes}")
    return problem


def hydra_problems(composed: Composed, importing: bool = True) -> list[Problem]:
    """Problems of hydra's own section, on which hydra acts before any of our code runs."""
    if composed.node is None:
        return []
    return hydra_section.problems(composed.node, composed.lines, importing)
