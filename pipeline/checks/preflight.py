"""Everything that is wrong with a run, found before anything is built, written or downloaded.

    argv -> composition -> schema -> targets and their arguments -> contradictions

All problems come at once in one ConfigError. A sweep is checked job by job before its first job.
Cost: about 0.15 s a configuration beside importing the modules that its targets live in.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline import config as schema
from pipeline import endpoints
from pipeline.checks import environment, nodes, trust
from pipeline.checks.composition import Composed, Composer, search_path_problems
from pipeline.config import Config
from pipeline.disclosure import Plain
from pipeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

MOST_JOBS = 200  # of a sweep are looked at beforehand; every job is looked at when it starts


def examine(container: Mapping[str, Any]) -> tuple[Config, list[Problem]]:
    """The typed configuration of a plain, resolved dict, and all that is wrong with it."""
    from pipeline.checks import contradictions  # imports torch, which `look` does without

    config, problems = schema.check(container)
    if isinstance(container, Plain):
        problems += environment.check(container)
    problems += endpoints.check(container)
    wrong = bool(problems)
    found = {}
    for part in nodes.parts(config):
        found[part.key], more = nodes.check(part)
        problems += more
    return config, problems + contradictions.find(config, found, partly=wrong)


def compose(*overrides: str, config_dir: str | None = None) -> Config:
    """The configuration that `python run.py <overrides>` would run, for use as a library.

    Args:
        overrides: as on the command line, e.g. "sampler=weighted", "loader.num_workers=4".
        config_dir: a folder of groups of your own.

    Raises:
        ConfigError: with everything that is wrong.
    """
    config = run(Composer(config_dir=config_dir), overrides)
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
    raise_if(problems + composed.problems + _hydra_problems(composed))


def run(composer: Composer, lines: Sequence[str], multirun: bool = False) -> Config | None:
    """Check a run or a sweep; the Config of a single run.

    Raises:
        ConfigError: with everything that is wrong, in any job.
    """
    overrides, problems = composer.parse(lines)
    fixed = [one for one in overrides if not one.is_sweep_override()]
    base = composer.compose(fixed, multirun)
    if multirun or base.multirun:
        raise_if(problems + _sweep(composer, overrides, base))
        return None
    problems += [
        Problem(one.key_or_group, f"{one.input_line} is several values: add -m to sweep over them, "
                f"or write a list as {one.key_or_group}=[a,b]")
        for one in overrides
        if one.is_sweep_override()
    ]  # fmt: skip
    config, more = _job(base)
    raise_if(problems + more)
    return config


def _sweep(composer: Composer, overrides: Sequence[Override], base: Composed) -> list[Problem]:
    """The problems of a sweep's jobs.

    A sweeper that chooses values as it goes (optuna and the like) is checked with the values that
    are fixed; its jobs are checked as they come.
    """
    sweeper = base.hydra.get("sweeper", {})
    if not base.complete or not str(sweeper.get("_target_", "")).endswith(".BasicSweeper"):
        return _job(base)[1]
    params = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    more, problems = composer.parse(params)
    hydras = [one for one in overrides if one.is_hydra_override()]
    # The command line comes last and wins, as in the sweeper itself.
    swept = [*more, *(one for one in overrides if not one.is_hydra_override())]
    axes = {one.get_key_element(): _values(one) for one in swept}
    jobs = list(itertools.islice(itertools.product(*axes.values()), MOST_JOBS))
    seen: dict[Problem, list[str]] = {}
    for job in jobs:
        chosen, _ = composer.parse(job)
        for problem in dict.fromkeys(_job(composer.compose([*hydras, *chosen]))[1]):
            seen.setdefault(problem, []).append(_combination(job, axes))
    return problems + [
        problem if len(where) == len(jobs) else _of_job(problem, where[0])
        for problem, where in seen.items()
    ]


def raise_if(problems: Sequence[Problem]) -> None:
    """Raise ConfigError if there are problems."""
    if problems:
        raise ConfigError(_distinct(problems))


def _values(override: Override) -> list[str]:
    """The override lines that a sweep over one key is made of."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key = override.get_key_element()
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def _combination(job: Sequence[str], axes: Mapping[str, Sequence[str]]) -> str:
    return " ".join(
        line for line, values in zip(job, axes.values(), strict=True) if len(values) > 1
    )


def _of_job(problem: Problem, combination: str) -> Problem:
    return Problem(problem.key, f"{problem.message} (in the job {combination})")


def _job(composed: Composed) -> tuple[Config | None, list[Problem]]:
    """One composed job: its configuration and all its problems."""
    problems = composed.problems + composed.unset + _hydra_problems(composed)
    if not composed.complete:
        return None, problems
    said = {problem.key for problem in problems}
    config, more = examine(composed.config)
    return config, problems + [problem for problem in more if not _said(problem.key, said)]


def _said(key: str, keys: Collection[str]) -> bool:
    """Whether something was said already of a key, or of one below it."""
    return key in keys or any(one.startswith(key + ".") for one in keys if key)


def _distinct(problems: Sequence[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


# hydra builds its callbacks, sweeper, launcher and log handlers from the configuration by itself,
# before any code of ours runs, so what they name is checked here.
_HYDRA_PARTS = (
    "hydra._internal.core_plugins.", "hydra_plugins.", "hydra.experimental.callbacks.",
    "pipeline.tasks.sweep.",
)  # fmt: skip
_LOGGING_PARTS = ("logging.StreamHandler", "logging.FileHandler", "logging.NullHandler",
                  "logging.Formatter", "logging.handlers.RotatingFileHandler",
                  "colorlog.", "rich.logging.")  # fmt: skip
_STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
_GUARDED = re.compile(r"PENSTOCK_|HYDRA_|PYTHON|LD_|DYLD_")


def _hydra_problems(composed: Composed) -> list[Problem]:
    """What hydra's own node may not do: call what is not hydra's, or change what is trusted."""
    node = composed.hydra
    problems = []
    for section in ("callbacks", "launcher", "sweeper"):
        for key, name in _named(node.get(section), f"hydra.{section}", ("_target_",)):
            if not _may(name, _HYDRA_PARTS):
                problems.append(Problem(key, _refused(name, "a plugin of hydra's")))
    for section in ("job_logging", "hydra_logging"):
        for key, name in _named(node.get(section), f"hydra.{section}", ("()", "class")):
            if not _may(name, _LOGGING_PARTS):
                problems.append(Problem(key, _refused(name, "a log handler")))
        for key, value in _texts(node.get(section), f"hydra.{section}"):
            if value.startswith("ext://") and value not in _STREAMS:
                problems.append(Problem(key, f"got {value}, expected {' | '.join(_STREAMS)}"))
    for name in node.get("job", {}).get("env_set", {}):
        if _GUARDED.match(str(name)):
            reason = "decides what runs or is trusted; set it outside of the configuration"
            problems.append(Problem(f"hydra.job.env_set.{name}", reason))
    for entry in node.get("searchpath") or []:
        problems += search_path_problems("hydra.searchpath", str(entry))
    return problems


def _refused(name: str, kind: str) -> str:
    package = name.split(".")[0]
    way = "" if package in trust.NEVER else f". If it is yours: --trust {package}"
    return f"{name} is not {kind}, so it is not called{way}"


def _may(name: str, allowed: Sequence[str]) -> bool:
    known = any(name == one or (one.endswith(".") and name.startswith(one)) for one in allowed)
    return known or any(name.startswith(one + ".") for one in trust.trusted())


def _named(node: Any, key: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Key and value of every entry called one of `names`, at any depth."""
    for below, value in _texts(node, key):
        if below.rpartition(".")[2] in names:
            yield below, value


def _texts(node: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _texts(value, f"{key}.{name}")
    elif isinstance(node, list):
        for place, value in enumerate(node):
            yield from _texts(value, f"{key}[{place}]")
    elif isinstance(node, str):
        yield key, node
