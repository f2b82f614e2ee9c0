"""The command line: our own pass over the configuration, then Hydra, then the task.

    0 done, 2 configuration, 3 data, 75 stopped and can continue, 130 interrupted, 1 anything else

Our pass finds everything that is wrong before Hydra runs. What Hydra does then is Hydra's own:
`hydra.main` runs one job or a sweep, or prints what `--hydra-help` and `--info` ask for. A job's
configuration is always the one of our pass, also under `--cfg job`. Several ranks are as many
processes of this same command line, unless torchrun or Slurm has started them.
"""

from __future__ import annotations

import argparse
import errno
import gc
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, read_write

from penstock import late_imports, program, seams, terminal
from penstock.config import compose, familiar, targets
from penstock.config.hydra import overrides
from penstock.config.schema import Config
from penstock.distributed import launch, preemption, world
from penstock.errors import PREEMPTED, ConfigError, PenstockError, Problem
from penstock.terminal import put, say

_PACKAGES = ("penstock-loader", "torch", "hydra-core")
INTERRUPTED, NOBODY_LISTENS = 130, 141  # as shells say of SIGINT and SIGPIPE
# Hydra 1.4 has one way to behave, and warns of a program that names a version.
_VERSION: Any = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
# They would hide our groups, and run a pickle.
_REFUSED = (("--config-path", "config_path"), ("--experimental-rerun", "experimental_rerun"))
_script: str | None = None  # that this process was started from
getattr(OmegaConf, compose.register)("job_name", seams.job_name, replace=True)


def main(
    argv: Sequence[str],
    script: str | None = None,
    trust: Sequence[str] = (),
    config_dir: str | None = None,
) -> int:
    """Run a command line; once a process, as it sets variables for processes that launchers start.

    Args:
        argv: what stands after `python run.py`, or `penstock`.
        script: the file that this process was started from.
        trust, config_dir: as `--trust` and `--config-dir`, which a script may give for itself.

    Returns:
        The exit code. Where it is 2, nothing was written if the message came within the second.
    """
    global _script
    _script = script
    late_imports.install()
    launch.end_with_launcher()
    try:
        with preemption.Preemption(_say_once, at_once=True):
            if "--version" in argv:  # in every report of a problem
                put(*(f"{name} {version(name)}," for name in _PACKAGES), "Python", sys.version)
            else:
                _start(list(argv), trust, config_dir)
        return 0
    except BaseException as error:
        return report(error)


def _start(argv: list[str], trust: Sequence[str], config_dir: str | None) -> None:
    """Check all that a command line asks for, and let Hydra do it."""
    if argv[:1] == ["init"]:
        from penstock.addons.starter import init

        sys.exit(init.run(argv[1:]))
    parser = compose.options()
    parser.add_argument("--trust", action="append", default=[])
    args, unknown = parser.parse_known_intermixed_args(argv)
    if unknown := [*unknown, *(option for option, name in _REFUSED if getattr(args, name))]:
        raise ConfigError(_no_option(option, argv) for option in unknown)
    before, folder = os.environ.get(targets.VARIABLE), args.config_dir or config_dir
    if not launch.is_of_ours():  # a rank suggests the command that its launcher was given
        typed = [word for name in (before, *args.trust) if name for word in ("--trust", name)]
        typed += ["--config-dir", args.config_dir] if args.config_dir else []
        os.environ[program.VARIABLE] = program.started(_script, typed)
    os.environ[targets.VARIABLE] = ",".join(filter(None, [before, *trust, *args.trust]))
    if args.help:
        put(_help(folder))
    else:
        _run_hydra(args, [*compose.searched(folder), *args.overrides])


def _run_hydra(args: argparse.Namespace, words: list[str]) -> None:
    """Let Hydra run the job or the jobs, or show what is asked for, once all is checked."""
    import_trusted()
    name, job, made, stack = args.config_name or "config", execute, list[DictConfig](), ExitStack()
    try:
        if args.cfg or args.info or args.hydra_help:
            loaded, problems, _ = compose.load(words, name)
            if problems:
                raise ConfigError(problems)
            if args.cfg == "job":
                _show(loaded, args)
                return
        elif args.multirun:
            from penstock.addons.sweeps import sweep

            words = [*words, stack.enter_context(sweep.running(words, name))]
        elif not args.shell_completion:
            config = compose.compose(*words, config_name=name, begin=_announce, look=made.append)
            job, words = _single(words, config, made[0].hydra)
    except ConfigError as error:
        error.told = world.launched_rank()[1] > 0  # the first rank of each machine reports it
        raise
    flags = [
        word
        for option, value in vars(args).items()
        if value and option not in ("overrides", "trust", "config_dir", "config_name")
        for word in (f"--{option.replace('_', '-')}", value)
        if word is not True
    ]
    sys.argv = [sys.argv[0], *flags, *words]
    with stack:
        hydra.main(str(compose.CONF), name, **_VERSION)(job)()


def _no_option(option: str, argv: Sequence[str]) -> Problem:
    """The problem of an unknown option; most are keys, written as other programs take them."""
    name, _, value = option.partition("=")
    after = argv[argv.index(option) + 1 :] if option in argv else ()
    value = value or next(iter(after), "...")
    way = familiar.advice(name) or familiar.advice(name.strip("-"), value)
    keys = "; keys stand without dashes, as in batch.size=32"
    return Problem(name, f"there is no such option{way or keys}. All are in --help")


def import_trusted() -> None:
    """Import the packages that are trusted, as they may register resolvers of OmegaConf's."""
    for name in targets.trusted():
        sys.path.append(str(Path.cwd()))  # last: it takes the place of nothing that is installed
        try:
            import_module(name)
        except Exception as error:
            raise ConfigError(Problem("--trust", f"{name}: {error!r} on import")) from error


def _single(words: Sequence[str], config: Config, section: Any) -> tuple[Any, list[str]]:
    """The only job of a command line without -m, and the words of it that Hydra acts on.

    Hydra gets no value below a group: it would refuse those of a node that our pass has replaced.
    """
    each = [compose.parse(word) for word in words]
    typed = [word for word, one in zip(words, each, strict=True) if not one.is_hydra_override()]

    def job(composed: DictConfig) -> float | None:
        record: Any = HydraConfig.get()
        with read_write(record):
            record.overrides.task = typed
        return execute(composed, config)

    kept = [one for one in each if one.is_hydra_override() or "." not in one.key_or_group]
    hydras = [str(one.input_line) for one in kept if not isinstance(one.value(), dict)]
    files = section.output_subdir or "filename" in str(section.job_logging)
    return job, [*hydras, program.override("hydra.run.dir", config.run_dir if files else ".")]


def _help(folder: str | None) -> str:
    """Hydra's --help with our text and all groups, without its half a second of composing."""
    files = [file for one in (compose.CONF, folder) if one for file in Path(one).glob("*/*.yaml")]
    names = sorted((file.parent.name, file.stem) for file in files)
    groups = {group: [name for of, name in names if of == group] for group, _ in names}
    lines = (f"{group}: {', '.join(options)}" for group, options in groups.items())
    return (
        (Path(__file__).parent / "help.txt").read_text("utf-8").replace("GROUPS", "\n".join(lines))
    )


def _show(config: DictConfig, args: argparse.Namespace) -> None:
    """Print our composition as Hydra prints its own for `--cfg job`."""
    part: Any = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    if args.resolve:
        OmegaConf.resolve(part)
    part = OmegaConf.select(part, args.package) if args.package else part
    if not OmegaConf.is_config(part):
        raise ConfigError(Problem("--package", f"there is no section {args.package}"))
    header = f"# @package {args.package}\n" if args.package else ""
    put(header + OmegaConf.to_yaml(part).rstrip())


def execute(composed: DictConfig, config: Config | None = None) -> float | None:
    """Run one job that Hydra begins; returns the value that a sweep optimises.

    Args:
        composed: Hydra's composition.
        config: what our pass has made of the same words; None for a job of a sweep.

    Raises:
        SystemExit: it failed; Hydra would print a traceback of anything else.
    """
    job, logger = HydraConfig.get(), logging.getLogger("penstock")
    if job.job_logging.get("root") is None:
        logger.handlers = [terminal.Handler()]
    logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
    if config is None:
        from penstock.addons.sweeps import sweep

        return sweep.run_job(_composed, _run, report)
    try:
        return _run(config)
    except (Exception, preemption.Stop) as error:
        raise SystemExit(report(error)) from None


def _composed(folder: Path) -> Config:
    """Our composition of a job of a sweep, whose folder Hydra has named."""
    import_trusted()
    config = compose.compose(*overrides(), config_name=str(HydraConfig.get().job.config_name))
    return config.model_copy(update={"run_dir": str(folder)})


def _run(config: Config) -> float | None:
    """Run the task of a job, here or in ranks that are started for it."""
    job, task, rank = HydraConfig.get(), seams.TASKS[config.task], world.launched_rank()[0]
    if job.output_subdir:  # where Hydra has written what it composed
        folder = Path(job.runtime.output_dir, job.output_subdir)
        OmegaConf.save(OmegaConf.create(config.model_dump()), folder / "config.yaml")
        OmegaConf.save(OmegaConf.create(overrides()), folder / "overrides.yaml")
    if task.ranks and (count := launch.processes(config.distributed)):
        words = [*overrides(), program.override("run_dir", config.run_dir)]  # the last one counts
        command = launch.this_program([f"--config-name={job.job.config_name}", *words], _script)
        return launch.run(command, count, config.distributed.max_restarts)
    run = seams.function(task.run)
    if not gc.isenabled():
        # It was turned off for the imports. What was imported is frozen: to search it takes 0.4 s,
        # and again in each worker. Only the first job of a process freezes, as the garbage of one
        # job must not outlast it.
        gc.freeze()
        gc.enable()
    terminal.options["progress"] = "none" if rank else config.trainer.progress
    value: float | None = run(config)
    launch.leave_result(value)
    return value


def report(error: BaseException) -> int:
    """Say on stderr what went wrong, and return the exit code for it."""
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
    if isinstance(error, preemption.Stop):
        error = preemption.Preempted(str(error))
    rank = f"rank {world.launched_rank()[0]}: " if world.launched_size() > 1 else ""
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        error = PenstockError("too many open files; `ulimit -n 4096`, or fewer workers")
    if not isinstance(error, PenstockError) or os.environ.get("HYDRA_FULL_ERROR") == "1":
        trace = "".join(traceback.format_exception(error)).rstrip()
        say(rank + trace.replace("\n", f"\n{rank}"))
    if not isinstance(error, PenstockError):
        return 1
    if str(error) and not error.told:
        tell = _say_once if error.exit_code == PREEMPTED else say
        tell(f"{rank}{error.kind}{error}")
    return error.exit_code


def _say_once(text: str) -> None:
    """Tell a person, once for all ranks."""
    if world.launched_rank()[0] == 0:
        say(text)


def _announce(config: Config) -> None:
    """Say what a run will do, before torch is imported; for our ranks, their launcher has."""
    if not launch.is_of_ours():
        task, names = seams.TASKS[config.task], map(program.name_of, (config.model, config.dataset))
        folder = f"; run folder {config.run_dir}" if task.writes else ""
        folder = folder if config.resume in (None, "auto") else f"; resuming {config.resume}"
        _say_once(f"{config.task}: {task.sentence.format(*names)}{folder}")


if __name__ == "__main__":
    preemption.leave(main(sys.argv[1:]))
