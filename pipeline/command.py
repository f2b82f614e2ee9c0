"""The command line: preflight, then hydra, then the task; a message and an exit code at the end.

    0 done, 2 configuration, 3 data, 75 stopped and can continue, 130 interrupted, 1 anything else

A configuration that asks for several ranks is run by as many processes of this same command line,
unless torchrun has started them. An error in a person's input is one message on stderr; everything
else is a bug and keeps its traceback. PENSTOCK_TRACEBACK=1 shows it for the former too.
"""

from __future__ import annotations

import argparse
import errno
import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from penstock import late_imports, program, seams, terminal
from penstock.config import (
    hydra_internals,
    hydra_loader,
    own_options,
    preflight,
    project,
)
from penstock.config.composition import CONF, VERSION_BASE, Composer, plain, with_run_dir
from penstock.config.schema import Config
from penstock.distributed import launch, preemption, world
from penstock.distributed.preemption import Preempted, Preemption, Stop
from penstock.errors import LOST, PREEMPTED, ConfigError, PenstockError, Problem
from penstock.runs.resumption import with_overrides_of_run
from penstock.terminal import fitted, say

OmegaConf.register_new_resolver("job_name", seams.job_name, replace=True)  # of hydra.sweep.subdir

INTERRUPTED = 130
# What gloo says when a process at the other end of a connection is gone.
_LOST = ("onnection closed by peer", "onnection reset by peer", "roken pipe", "onnection refused")
NOBODY_LISTENS = 141  # as a shell says of a command that SIGPIPE ended


def main(
    argv: Sequence[str], entry: Callable[[], Any] | None = None, script: str | None = None
) -> int:
    """Run a command line.

    Args:
        argv: what stands after `python run.py`, or `penstock`.
        entry: the @hydra.main function; one like run.py's when None.
        script: the file that this process was started from; run.py if it gives its `entry`.

    Returns:
        The exit code. Nothing has been written when it is 2 and preflight gave it.
    """
    late_imports.install()
    program.started_from(sys.argv[0] if entry and script is None else script)
    launch.end_with_launcher()
    if world.is_launched():  # presence.py says what torch's C++ warns of, as one message
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        if argv and argv[0] == "init":
            return seams.init(argv[1:])
        with (
            Preemption(_say, at_once=True),
            own_options.taken(argv, _announce) as (options, overrides),
            project.importable(),
            terminal.harmless_libraries(),
        ):
            overrides = with_overrides_of_run(with_run_dir(overrides))
            with own_options.environment_with(seams.sweep_variables(options, overrides)):
                return _main(options, overrides, entry, argv)
    except BaseException as error:
        return report(error)


def _main(
    options: list[str], overrides: list[str], entry: Callable[[], Any] | None, typed: Sequence[str]
) -> int:
    with terminal.held_back():
        args = hydra_internals.get_args_parser().parse_args([*options, *overrides])
    if args.experimental_rerun is not None:
        reason = "reads a pickle, which can run anything; give the overrides instead"
        raise ConfigError(Problem("--experimental-rerun", reason))
    if args.multirun and world.is_launched():
        raise ConfigError(
            "a sweep starts the ranks of each of its jobs itself; run it with "
            f"{program.text('-m')}, and not under torchrun or srun"
        )
    only_looks = bool(
        args.help or args.hydra_help or args.cfg or args.info is not None or args.shell_completion
    )
    composer, single = _checked(args, only_looks)
    if entry is None:
        entry = hydra.main(str(CONF), "config", version_base=VERSION_BASE)(execute)
    # What was checked is what runs, wherever hydra would think the folder lies.
    words = [*(sys.argv[:1] or ["run.py"]), *options, "--config-path", composer.path, *overrides]
    job = HydraConfig.instance().cfg  # of a command around this one; none is what a person has
    looks = hydra_loader.shown() if only_looks else nullcontext()
    kept = composer.kept if single or only_looks else None
    sweeps = args.multirun and not only_looks
    loads = hydra_loader.checked(single, kept, sweeps=sweeps)
    runs = seams.run_sweep(composer, typed) if sweeps else nullcontext()
    if sweeps:  # a pattern such as ${now:%H} may not give each process another folder
        words.append(program.override("hydra.sweep.dir", composer.sweep[0]))
    try:
        checked = preflight.carried(composer)
        with hydra_internals.replaced(sys, argv=words), looks, loads, checked, runs:
            entry()
    finally:
        GlobalHydra.instance().clear()
        HydraConfig.instance().cfg = job  # hydra keeps its own where it prints what it composes
    return 0


def _checked(args: argparse.Namespace, only_looks: bool) -> tuple[Composer, bool]:
    """The composer of the configuration, and whether it is a single run's."""
    try:
        composer = Composer(args.config_path, args.config_name, args.config_dir)
        if args.shell_completion:
            return composer, False
        if only_looks:
            preflight.look(composer, args.overrides)
            return composer, False
        config = preflight.run(composer, args.overrides, args.multirun, _announce)
        return composer, config is not None
    except ConfigError as error:
        if world.launched_rank()[1]:  # the first rank of each machine reports it
            raise SystemExit(error.exit_code) from None
        raise


def execute(composed: DictConfig) -> float | None:
    """Run one job that hydra has composed; returns the value that a sweep optimises.

    A single run that fails ends in SystemExit, which hydra lets through. In a sweep the failure is
    recorded and the next job continues.
    """
    logger = logging.getLogger("penstock")
    if not logger.handlers:
        logger.addHandler(terminal.Handler())
        logger.setLevel(logging.INFO)
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return seams.run_job(partial(_accepted, composed), _run, report)
    try:
        return _run(_accepted(composed))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SystemExit(report(error)) from None


def _accepted(composed: DictConfig, folder: Path | None = None) -> Config:
    config = preflight.accept(plain(composed))
    return config.model_copy(update={"run_dir": str(folder)}) if folder else config


def _run(config: Config) -> float | None:
    with terminal.progress_shown("none" if world.launched_rank()[0] else config.trainer.progress):
        return _run_task(config)


def _run_task(config: Config) -> float | None:
    task = seams.TASKS[config.task]
    count, distributed = 0, config.distributed  # of processes to start; 0 if this is (one of) them
    if distributed.strategy != "none" and task.ranks and not world.is_launched():
        count = world.default_processes() if distributed.nproc == "auto" else distributed.nproc
        count = 0 if count == 1 and distributed.strategy == "ddp" else count
    run = None if count else seams.runner(config.task)
    if not gc.isenabled():
        # It was turned off for the imports. What was imported is frozen: to search it takes 0.4 s,
        # and again in each worker. Only the first job of a process freezes, as the garbage of one
        # job must not outlast it.
        gc.freeze()
        gc.enable()
    if run is None:
        command = launch.this_program(_arguments(config), program.script())
        with preemption.others():  # torch's launcher, which hands them on
            value: float | None = launch.run(command, count, distributed.max_restarts)
        return value
    try:
        value = run(config)
    except Stop as stop:
        if config.task == "fit" or stop.name != "SIGINT":
            raise
        raise KeyboardInterrupt from None
    if world.launched_rank()[0] == 0:
        launch.leave_result(value)
    return value


def _arguments(config: Config) -> list[str]:
    """The command line of this job for its ranks, with the folder of the run."""
    job = HydraConfig.get()
    options = ["--config-name", str(job.job.config_name)]
    for source in job.runtime.config_sources:
        if source.provider in ("main", "command-line"):
            name = "--config-path" if source.provider == "main" else "--config-dir"
            options += [name, source.path]
    words = [word for word in hydra_loader.overrides() if not word.startswith("run_dir=")]
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
    rank = f"rank {world.launched_rank()[0]}: " if world.launched_size() > 1 else ""
    if isinstance(error, Stop):
        error = Preempted(str(error))
    if not isinstance(error, PenstockError):
        return _report_bug(error, rank)
    if any(os.environ.get(name) == "1" for name in ("PENSTOCK_TRACEBACK", "HYDRA_FULL_ERROR")):
        say("".join(traceback.format_exception(error)).rstrip())
    if error.told:
        return error.exit_code
    if error.exit_code == PREEMPTED and str(error):
        _say(f"{rank}{error}")
    elif isinstance(error, ConfigError) and len(error.problems) != 1:
        lines = "\n".join(f"  {problem}" for problem in error.problems)
        say(f"{rank}{len(error.problems)} errors in the configuration:\n{lines}")
    elif str(error):
        kind = "error in the configuration" if isinstance(error, ConfigError) else "error"
        say(f"{rank}{kind}: {error}")
    return error.exit_code


def _report_bug(error: BaseException, rank: str) -> int:
    """Print a traceback, or that another rank is gone; the exit code."""
    lost = isinstance(error, RuntimeError) and any(words in str(error) for words in _LOST)
    if rank and lost:  # the rank that left has said why, or was killed
        reason = str(error).split(". This is")[0]
        say(f"{rank}ends, as it has lost another rank: {reason}")
        return LOST
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        import resource  # POSIX only

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        say(
            f"{rank}error: too many open files: a process may open {files} here. Allow more "
            "(`ulimit -n 4096`), or set a smaller loader.num_workers"
        )
        return 1
    lines = "".join(traceback.format_exception(error)).rstrip("\n").split("\n")
    say("\n".join(f"{rank}{line}" for line in lines))
    return 1


def _say(text: str) -> None:
    """Tell a person, once for all ranks."""
    if world.launched_rank()[0] == 0:
        say(text)


def _announce(text: str) -> None:
    """Tell a person at the start; the launcher has done so for ranks that are ours."""
    if not launch.is_of_ours():
        _say(fitted(text))


if __name__ == "__main__":
    preemption.leave(main(sys.argv[1:]))
