"""The command line: preflight, then hydra, then the task; a message and an exit code at the end.

    0 done, 2 configuration, 3 data, 75 stopped and can go on, 130 interrupted, 1 anything else

A configuration that asks for several ranks is run by as many processes of this same command line;
under torchrun they are there already.

What is wrong with a person's input is one message on stderr. Everything else is a bug, ours or in a
person's own code, and keeps its traceback; PENSTOCK_TRACEBACK=1 shows it for the former too.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

import pipeline
from pipeline import tasks, terminal
from pipeline.config import (
    allowances,
    endpoints,
    familiar_names,
    hydra_loader,
    hydra_output,
    preflight,
)
from pipeline.config.composition import CONF, VERSION_BASE, Composer, plain, with_run_dir
from pipeline.config.schema import Config
from pipeline.distributed import launch, preemption, world
from pipeline.distributed.preemption import Preempted, Preemption, Stop
from pipeline.errors import PREEMPTED, ConfigError, PenstockError, Problem
from pipeline.runs.resumption import with_overrides_of_run
from pipeline.tasks import sweep
from pipeline.terminal import put, say

INTERRUPTED = 130
OF_MANY_RANKS = ("fit", "validate", "digest")  # tasks that ranks share; one process does others
_script: str | None = None  # the file that this program was started from
# What gloo says when a process at the other end of a connection is gone.
_LOST = ("onnection closed by peer", "onnection reset by peer", "roken pipe", "onnection refused")
NOBODY_LISTENS = 141  # as a shell says of a command that SIGPIPE ended
# Signals that come within these seconds of the first are its echo: a terminal sends Ctrl-C to all
# processes, and the launcher hands it on to its ranks.
_ECHO = 2.0


def main(argv: Sequence[str], entry: Callable[[], Any] | None = None) -> int:
    """Run a command line.

    Args:
        argv: what stands after `python run.py`.
        entry: the @hydra.main function; one like run.py's when None.

    Returns:
        The exit code. Nothing has been written when it is 2 and preflight gave it.
    """
    global _script
    _script = sys.argv[0] if entry else None
    try:
        with (
            Preemption(_ECHO, _say, at_once=True),
            _own_options(argv) as (options, overrides),
            terminal.harmless_libraries(),
        ):
            given = with_overrides_of_run(with_run_dir(overrides))
            return _main(options, given, entry or _entry(), argv)
    except BaseException as error:
        return report(error)


def _main(
    options: list[str], overrides: list[str], entry: Callable[[], Any], typed: Sequence[str]
) -> int:
    with terminal.held_back():
        args = get_args_parser().parse_args([*options, *overrides])
    if args.experimental_rerun is not None:
        reason = "reads a pickle, which can run anything; give the overrides instead"
        raise ConfigError(Problem("--experimental-rerun", reason))
    if args.multirun and world.is_launched():
        raise ConfigError("a sweep starts the ranks of each of its jobs itself; run it with python "
                          "run.py -m, and not under torchrun or srun")  # fmt: skip
    # What was checked is what runs, wherever hydra would think the folder lies.
    composer, single = _checked(args)
    options = [*options, "--config-path", composer.path]
    looks = hydra_output.shown() if _only_looks(args) else hydra_output.saved()
    kept = composer.kept if single or _only_looks(args) else None
    loads = hydra_loader.checked(single, hydra_output.JobLoader, kept)
    try:
        with _argv([*options, *overrides]), looks, loads:
            if single:
                entry()
            else:
                with _environment(_for_jobs()), preemption.job():
                    entry()
    except Stop as stop:
        sweep.say_how_far([_program(), *typed])
        if args.multirun:
            text = "stopped in the sweep, where nothing is lost"
            raise Preempted(f"{stop.name}: {text}") from None
        raise
    except BaseException:
        sweep.say_how_far([_program(), *typed])
        raise
    return 0


def _program() -> str:
    """What stands after `python` in a command line for this program."""
    return _script if _script is not None else "run.py"


def _checked(args: argparse.Namespace) -> tuple[Composer, bool]:
    """What composed the configuration, and whether it is a single run's."""
    try:
        return _preflight(args)
    except ConfigError as error:
        if world.launched_rank()[1]:  # the first rank of each machine says it
            raise SystemExit(error.exit_code) from None
        raise


def _preflight(args: argparse.Namespace) -> tuple[Composer, bool]:
    composer = Composer(args.config_path, args.config_name, args.config_dir)
    if args.shell_completion:  # its overrides are unfinished; the loader looks at them
        return composer, False
    if _only_looks(args):
        preflight.look(composer, args.overrides)
        return composer, False
    single = preflight.run(composer, args.overrides, args.multirun, _announce) is not None
    return composer, single


def _announce(text: str) -> None:
    """Tell a person at the start, once for all ranks."""
    if world.launched_rank()[0] == 0 and not launch.is_of_ours():
        say(text)


def _only_looks(args: argparse.Namespace) -> bool:
    return bool(args.help or args.hydra_help or args.cfg or args.info is not None)


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
        with preemption.job():
            return sweep.run_job(
                folder, hydra_output.overrides(), lambda: _accepted(composed, folder), _run, report
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
    from pipeline.config import notices  # imports torch, which `--help` does without

    for notice in (*notices.find(config), *endpoints.notices(config.plain())):
        _announce(notice)
    count = _ranks_to_start(config)
    if count:
        command = launch.this_program(_arguments(config), _script)
        with preemption.others():  # torch's launcher, which hands them on
            value: float | None = launch.run(command, count, config.distributed.max_restarts)
        return value
    task = tasks.load(config.task)
    gc.freeze()  # what was imported stays; to look through it costs 0.4 s, and in each worker again
    gc.enable()
    try:
        value = task(config)
    except Stop as stop:
        if config.task == "fit" or stop.name != "SIGINT":
            raise
        raise KeyboardInterrupt from None
    if world.launched_rank()[0] == 0:
        launch.leave_result(value)
    return value


def _ranks_to_start(config: Config) -> int:
    """How many processes to start for this run; 0 if this process is (one of) them."""
    wanted = config.distributed
    if wanted.strategy == "none" or config.task not in OF_MANY_RANKS or world.is_launched():
        return 0
    count = world.default_processes() if wanted.nproc == "auto" else wanted.nproc
    return 0 if count == 1 and wanted.strategy == "ddp" else count


def _arguments(config: Config) -> list[str]:
    """The command line of this job for its ranks, which shall all mean the same folder."""
    job = HydraConfig.get()
    options = ["--config-name", str(job.job.config_name)]
    for source in job.runtime.config_sources:
        if source.provider in ("main", "command-line"):
            name = "--config-path" if source.provider == "main" else "--config-dir"
            options += [name, source.path]
    words = [word for word in hydra_output.overrides() if not word.startswith("run_dir=")]
    return [*options, *words, f"run_dir='{config.run_dir}'"]


def report(error: BaseException) -> int:
    """Say on stderr what went wrong, and return the exit code for it."""
    if isinstance(error, SystemExit) and isinstance(error.__cause__, PenstockError):
        error = error.__cause__  # what hydra would have made a traceback of
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has had enough, as `head` does. Python would complain once more
        # when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_LISTENS
    rank = _rank()
    if isinstance(error, Stop):
        error = Preempted(str(error))
    if not isinstance(error, PenstockError):
        return _print_traceback(error, rank)
    if any(os.environ.get(name) == "1" for name in ("PENSTOCK_TRACEBACK", "HYDRA_FULL_ERROR")):
        say("".join(traceback.format_exception(error)).rstrip())
    if error.exit_code == PREEMPTED and str(error):
        _say(f"{rank}{_message(error)}")
    elif str(error):
        say(f"{rank}{_message(error)}")
    return error.exit_code


def _say(text: str) -> None:
    """Tell a person, once for all ranks."""
    if _rank() in ("", "rank 0: "):
        say(text)


def _rank() -> str:
    """What a message begins with where several ranks may have one."""
    return f"rank {world.launched_rank()[0]}: " if world.launched_size() > 1 else ""


def _print_traceback(error: BaseException, rank: str) -> int:
    """Show a bug, or say that another rank is gone; the exit code."""
    lost = isinstance(error, RuntimeError) and any(words in str(error) for words in _LOST)
    if rank and lost:  # whoever left has said why, or was killed
        reason = str(error).split(". This is")[0]
        say(f"{rank}ends, as it has lost another rank: {reason}")
        return launch.LOST
    lines = "".join(traceback.format_exception(error))
    say("\n".join(f"{rank}{line}" for line in lines.rstrip("\n").split("\n")))
    return 1


def _message(error: PenstockError) -> str:
    if error.exit_code == PREEMPTED:
        return str(error)
    if not isinstance(error, ConfigError):
        return f"error: {error}"
    count = len(error.problems)
    if count == 1:
        return f"error in the configuration: {error}"
    lines = "\n".join(f"  {problem}" for problem in error.problems)
    return f"{count} errors in the configuration:\n{lines}"


@contextmanager
def _own_options(argv: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Take our own options off a command line; hydra's and the overrides remain.

    hydra wants its options before or after all overrides; here they may stand in between.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option, variable in allowances.OPTIONS.items():
        parser.add_argument(option, dest=variable, action="append", default=[])
    with terminal.held_back():
        own, rest = parser.parse_known_args(list(argv))
    named = {variable: allowances.names(given) for variable, given in vars(own).items()}
    preflight.raise_if(allowances.check(named))
    if "--version" in rest:
        put(_versions())
        raise SystemExit(0)
    with terminal.held_back():
        args, unknown = get_args_parser().parse_known_intermixed_args(rest)
    preflight.raise_if([_no_option(word, rest) for word in unknown if word.startswith("-")])
    overrides = args.overrides
    left = list(overrides)
    options = [word for word in rest if not (left and word == left[0] and left.pop(0))]
    # In the environment, processes that launchers start see it too.
    allowed = {
        variable: ",".join(
            dict.fromkeys([*allowances.names([os.environ.get(variable, "")]), *names])
        )
        for variable, names in named.items()
    }
    with _environment({**allowed, endpoints.SAID: os.environ.get(endpoints.SAID)}):
        yield options, overrides


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
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


def _for_jobs() -> dict[str, str]:
    """Variables by which programs of a launcher (`python -m ...`) import what this one does: our
    code first, and nothing from the folder that they start in.
    """
    path = [str(Path(pipeline.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONSAFEPATH": "1"}


def _versions() -> str:
    """What belongs into every report of a problem; read without importing any of it."""
    said = [f"Penstock {pipeline.__version__}"]
    for name in ("torch", "torchvision", "hydra-core"):
        try:
            said.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            said.append(f"{name} (not installed)")
    return ", ".join([*said, f"Python {platform.python_version()}"])


def _no_option(word: str, words: list[str]) -> Problem:
    """The problem of an option that nobody knows: most are keys, as other programs take them."""
    name, _, value = word.partition("=")
    after = words[words.index(word) + 1 :]
    value = value or (after[0] if after and not set("-=") & set(after[0]) else "...")
    way = familiar_names.key(name.strip("-"), value)
    written = familiar_names.hint(way) or "; keys stand without dashes, as in batch.size=32"
    return Problem(name, f"there is no such option{written}. All are in --help")


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


def _log_to_stderr() -> None:
    """Show what our own modules log; other libraries' warnings appear as they always do."""
    logger = logging.getLogger("pipeline")
    if not logger.handlers:
        logger.addHandler(terminal.Handler())
        logger.setLevel(logging.INFO)


if __name__ == "__main__":
    preemption.leave(main(sys.argv[1:]))
