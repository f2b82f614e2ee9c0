"""The command line: preflight, then hydra, then the task; a message and an exit code at the end.

    0 done, 2 configuration, 3 data, 130 interrupted, 1 anything else

What is wrong with a person's input is one message on stderr. Everything else is a bug, ours or in a
person's own code, and keeps its traceback; PENSTOCK_TRACEBACK=1 shows it for the former too.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from pipeline import contradictions, preflight, tasks, trust
from pipeline.composition import CONF, VERSION_BASE, Composer, plain
from pipeline.config import Config
from pipeline.errors import ConfigError, PenstockError, Problem
from pipeline.tasks import sweep

INTERRUPTED = 130
NOBODY_LISTENS = 141  # as a shell says of a command that SIGPIPE ended


def main(argv: Sequence[str], entry: Callable[[], Any] | None = None) -> int:
    """Run a command line.

    Args:
        argv: what stands after `python run.py`.
        entry: the @hydra.main function; one like run.py's when None.

    Returns:
        The exit code. Nothing has been written when it is 2 and preflight gave it.
    """
    try:
        with _own_options(argv) as (options, overrides):
            return _main(options, overrides, entry or _entry())
    except BaseException as error:
        return report(error)


def _main(options: list[str], overrides: list[str], entry: Callable[[], Any]) -> int:
    args = get_args_parser().parse_args([*options, *overrides])
    if args.experimental_rerun is not None:
        reason = "reads a pickle, which can run anything; give the overrides instead"
        raise ConfigError(Problem("--experimental-rerun", reason))
    if not args.shell_completion:
        # What was checked is what runs, wherever hydra would think the folder lies.
        options = [*options, "--config-path", _preflight(args).path]
    with _argv([*options, *overrides]):
        entry()
    return 0


def _preflight(args: argparse.Namespace) -> Composer:
    composer = Composer(args.config_path, args.config_name, args.config_dir)
    if args.help or args.hydra_help or args.cfg or args.info is not None:
        preflight.look(composer, args.overrides)
    else:
        preflight.run(composer, args.overrides, args.multirun)
    return composer


def _entry() -> Callable[[], Any]:
    decorate = hydra.main(version_base=VERSION_BASE, config_path=str(CONF), config_name="config")
    entry: Callable[[], Any] = decorate(execute)
    return entry


def execute(composed: DictConfig) -> float | None:
    """Run one job that hydra has composed; returns the value that a sweep optimises.

    A single run that fails ends in SystemExit, which hydra lets through. In a sweep the failure is
    recorded and the next job goes on.
    """
    _log_to_stderr()
    job = HydraConfig.get()
    if job.mode == RunMode.MULTIRUN:
        folder = Path(job.runtime.output_dir)
        return sweep.run_job(
            folder, list(job.overrides.task), lambda: _accepted(composed, folder), _run, report
        )
    try:
        return _run(_accepted(composed))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise SystemExit(report(error)) from None


def _accepted(composed: DictConfig, folder: Path | None = None) -> Config:
    config = preflight.accept(plain(composed))
    return config.model_copy(update={"run_dir": str(folder)}) if folder else config


def _run(config: Config) -> float | None:
    for notice in contradictions.notices(config):
        print(notice, file=sys.stderr)
    return tasks.load(config.task)(config)


def report(error: BaseException) -> int:
    """Say on stderr what went wrong, and return the exit code for it."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has had enough, as `head` does. Python would complain once more
        # when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_LISTENS
    if not isinstance(error, PenstockError):
        traceback.print_exception(error)
        return 1
    if any(os.environ.get(name) == "1" for name in ("PENSTOCK_TRACEBACK", "HYDRA_FULL_ERROR")):
        traceback.print_exception(error)
    print(_message(error), file=sys.stderr)
    return error.exit_code


def _message(error: PenstockError) -> str:
    if not isinstance(error, ConfigError):
        return f"error: {error}"
    count = len(error.problems)
    if count == 1:
        return f"error in the configuration: {error}"
    lines = "\n".join(f"  {problem}" for problem in error.problems)
    return f"{count} errors in the configuration:\n{lines}"


@contextmanager
def _own_options(argv: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Take --trust off a command line; hydra's options and the overrides remain.

    hydra wants its options before or after all overrides; here they may stand in between.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--trust", action="append", default=[])
    own, rest = parser.parse_known_args(list(argv))
    names = [name.strip() for given in own.trust for name in given.split(",") if name.strip()]
    preflight.raise_if(trust.check_trusted(names))
    kept = os.environ.get(trust.VARIABLE)
    everything = list(dict.fromkeys([*trust.trusted(), *names]))
    overrides = get_args_parser().parse_intermixed_args(rest).overrides
    left = list(overrides)
    options = [word for word in rest if not (left and word == left[0] and left.pop(0))]
    # In the environment, processes that launchers start see it too.
    os.environ[trust.VARIABLE] = ",".join(everything)
    try:
        yield options, overrides
    finally:
        os.environ.pop(trust.VARIABLE)
        if kept is not None:
            os.environ[trust.VARIABLE] = kept


@contextmanager
def _argv(words: list[str]) -> Iterator[None]:
    """Let hydra.main find its command line, and leave nothing of it behind."""
    kept = sys.argv
    sys.argv = [kept[0] if kept else "run.py", *words]
    try:
        yield
    finally:
        sys.argv = kept
        GlobalHydra.instance().clear()


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stderr is at the time."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def _log_to_stderr() -> None:
    """Show what our own modules log; other libraries' warnings appear as they always do."""
    for name in ("pipeline", "datasets"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(_Stderr())
            logger.setLevel(logging.INFO)
