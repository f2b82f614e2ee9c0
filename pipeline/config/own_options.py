"""Penstock's own options, taken off a command line before hydra sees it.

    --trust PACKAGE             a configuration may call what is in it
    --version                   which is printed, and that is all
    --trust and --config-dir    of the working folder's pyproject.toml (`project`)

What is trusted goes into the environment, where processes that launchers start find it too.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import penstock
from penstock import terminal
from penstock.config import (
    familiar,
    hydra_internals,
    preflight,
    project,
    targets,
)
from penstock.config.familiar import instead
from penstock.distributed import launch
from penstock.errors import Problem
from penstock.terminal import put


@contextmanager
def taken(
    argv: Sequence[str], announce: Callable[[str], None]
) -> Iterator[tuple[list[str], list[str]]]:
    """hydra's options and the overrides of a command line, while Penstock's own are in force.

    hydra wants its options before or after all overrides; here they may stand in between.

    Args:
        announce: gets a line that says what the working folder's pyproject.toml sets.

    Raises:
        ConfigError: an option is unknown or cannot be allowed.
        SystemExit: --version.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--trust", action="append", default=[])
    with terminal.held_back():
        own, rest = parser.parse_known_args(list(argv))
    trust = _names(own.trust)
    if "--version" in rest:
        versions = [
            f"Penstock {penstock.__version__}"
        ]  # in every report of a problem; imports nothing
        for name in ("torch", "torchvision", "hydra-core"):
            try:
                versions.append(f"{name} {metadata.version(name)}")
            except metadata.PackageNotFoundError:
                versions.append(f"{name} (not installed)")
        put(", ".join([*versions, f"Python {platform.python_version()}"]))
        raise SystemExit(0)
    with terminal.held_back():
        args, unknown = hydra_internals.get_args_parser().parse_known_intermixed_args(rest)
    preflight.raise_if([_no_option(word, rest) for word in unknown if word.startswith("-")])
    from_project: list[str] = []
    if launch.is_of_ours():
        ours = project.current()
    elif (ours := project.find(Path.cwd())) is not None:
        trusts, configures = not trust, args.config_dir is None
        if trusts and not args.shell_completion:
            trust = list(ours.trust)
        if configures and ours.config_dir:
            from_project = ["--config-dir", ours.config_dir]
        said = ours.said(trusts, configures)
        if said and not args.shell_completion:
            announce(said)
    elif not args.shell_completion:
        ours = project.of_trusted(Path.cwd(), [*targets.trusted(), *trust])
    if args.shell_completion:  # who presses Tab has not asked for a folder's code yet
        ours = None
    overrides = args.overrides
    left = list(overrides)
    options = [word for word in rest if not (left and word == left[0] and left.pop(0))]
    # In the environment, processes that launchers start see it too.
    trusted = dict.fromkeys([*_names([os.environ.get(targets.VARIABLE, "")]), *trust])
    variables = {
        targets.VARIABLE: ",".join(trusted),
        project.VARIABLE: project.as_variable(ours),
    }
    with environment_with(variables):
        targets.trusted()
        yield [*options, *from_project], overrides


def _names(values: Iterable[str]) -> list[str]:
    """The names in values such as "a,b"."""
    return [name.strip() for word in values for name in word.split(",") if name.strip()]


@contextmanager
def environment_with(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables for a time; None leaves one as it is, and puts it back, too."""
    kept = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    try:
        yield
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _no_option(word: str, words: list[str]) -> Problem:
    """The problem of an unknown option; most are keys, written as other programs take them."""
    name, _, value = word.partition("=")
    if sentence := instead(name):
        return Problem(name, sentence)
    after = words[words.index(word) + 1 :]
    value = value or (after[0] if after and not set("-=") & set(after[0]) else "...")
    way = familiar.key(name.strip("-"), value)
    written = familiar.hint(way) or "; keys stand without dashes, as in batch.size=32"
    return Problem(name, f"there is no such option{written}. All are in --help")
