"""The command line: our own pass over the configuration, then Hydra, then the task.

    0 done, 2 configuration, 3 data, 75 stopped and can continue, 130 interrupted, 1 anything else

Our pass finds everything that is wrong before Hydra runs. What Hydra does then is Hydra's own: it
runs one job on what our pass has composed, or shows that under `--cfg`; `hydra.main` runs a sweep,
or prints what `--hydra-help` and `--info` ask for. A job's configuration is always the one of our
pass. Several ranks are as many processes of this same command line, unless torchrun or Slurm has
started them.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from penstock import late_imports, program, seams, terminal
from penstock.config import compose, familiar, targets
from penstock.config.hydra import overrides
from penstock.config.schema import Config
from penstock.distributed import launch, stop, world
from penstock.errors import PREEMPTED, ConfigError, PenstockError, Problem
from penstock.terminal import put, say

INTERRUPTED, NOBODY_LISTENS = 130, 141  # as shells say of SIGINT and SIGPIPE
logging.getLogger("penstock").setLevel("INFO")  # hydra.verbose may change it
getattr(OmegaConf, compose.register)(
    "job_name",
    lambda words: import_module("penstock.addons.sweeps.sweep").job_name(words),
    replace=True,
)


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
    os.environ["PENSTOCK_SCRIPT"] = script or ""  # ranks of a job on another machine need it, too
    late_imports.install()
    faulthandler.register(signal.SIGUSR2, file=2)  # prints the stack of a process that hangs
    try:
        with stop.requests("raise", _say_once):
            if "--version" in argv:  # in every report of a problem
                put(
                    *(
                        f"{one} {version(one)},"
                        for one in ("penstock-loader", "torch", "hydra-core")
                    ),
                    f"Python {sys.version}",
                )
            else:
                _start(list(argv), trust, config_dir)
        return 0
    except BaseException as error:
        return report(error)


def _start(argv: list[str], trust: Sequence[str], config_dir: str | None) -> None:
    """Check all that a command line asks for, and let Hydra do it."""
    if argv[:1] == ["init"]:
        sys.exit(import_module("penstock.addons.starter.init").run(argv[1:]))
    parser = compose.options()
    parser.add_argument("--trust", action="append", default=[])
    args, unknown = parser.parse_known_intermixed_args(argv)
    # They would hide our groups, and run a pickle.
    refused = {"--config-path": args.config_path, "--experimental-rerun": args.experimental_rerun}
    if unknown := [*unknown, *(option for option, value in refused.items() if value)]:
        raise ConfigError(_no_option(option, argv) for option in unknown)
    before, folder = os.environ.get(targets.VARIABLE), args.config_dir or config_dir
    if not launch.is_of_ours():  # a rank suggests the command that its launcher was given
        typed = [
            *(("--trust", name) for name in (before, *args.trust)),
            ("--config-dir", args.config_dir),
        ]
        os.environ[program.VARIABLE] = program.started(
            os.environ["PENSTOCK_SCRIPT"], [word for pair in typed if pair[1] for word in pair]
        )
    os.environ[targets.VARIABLE] = ",".join(filter(None, [before, *trust, *args.trust]))
    if args.help:
        put(_help(folder))
    else:
        _run_hydra(args, [*compose.searched(folder), *args.overrides])


def _run_hydra(args: Any, words: list[str]) -> None:
    """Let Hydra run the job or the jobs, or show what is asked for, once all is checked."""
    if hydra.__version__.startswith("1.3."):  # before it runs, it would read +GROUP as 1.1 did
        hydra.version.setbase("1.3")
    import_trusted()
    name, config, stack = args.config_name or "config", None, ExitStack()
    shows, job = args.cfg or args.info or args.hydra_help, None
    try:
        if args.multirun and not shows:
            sweep = import_module("penstock.addons.sweeps.sweep")
            words = [*words, stack.enter_context(sweep.running(words, name))]
        elif not args.shell_completion:
            made, problems, files = compose.load(words, name)
            compose.refuse(problems if shows else ())
            if not shows:
                if str(made.hydra.mode) == "RunMode.MULTIRUN":  # as a file may say
                    args.multirun = True
                    _run_hydra(args, words)
                    return
                config = compose.accept(
                    compose.resolved(made, problems), problems, _announce, words, files
                )
                made.hydra.run.dir = (
                    config.run_dir
                    if made.hydra.output_subdir or "filename" in str(made.hydra.job_logging)
                    else "."
                )
            job = None if args.info or args.hydra_help else _hydra_of(made, words, name)
    except ConfigError as error:
        error.reported = world.launched_rank()[1] > 0  # the first rank of each machine reports it
        raise
    with stack:
        if job:
            compose.reporting(
                lambda: (
                    job.show_cfg(name, [], args.cfg, args.package, args.resolve)
                    if args.cfg
                    else job.run(name, lambda composed: execute(config), [])
                )
            )
        else:
            sys.argv[1:] = [
                word
                for option, value in vars(args).items()
                if value and option not in ("overrides", "trust", "config_dir", "config_name")
                for word in (f"--{option.replace('_', '-')}", value)
                if word is not True
            ] + words
            # Hydra 1.4 has one way to behave, and warns of a program that names a version.
            hydra.main(str(compose.CONF), name, *("1.3",) * hydra.__version__.startswith("1.3."))(
                lambda composed: execute(config)
            )()


def _hydra_of(made: DictConfig, words: Sequence[str], name: str) -> compose.Hydra:
    """Hydra, with a job that is composed already: to do so again, twice, takes it 0.2 s."""
    made.hydra.overrides.update(
        {
            kind: [
                one.input_line
                for one in map(compose.parse, words)
                if one.is_hydra_override() == (kind == "hydra")
            ]
            for kind in ("task", "hydra")
        }
    )
    loader = compose.open_loader(made.hydra.searchpath or (), name)
    loader.made = made
    return compose.Hydra(str(made.hydra.job.name), loader)


def _no_option(option: str, argv: Sequence[str]) -> Problem:
    """The problem of an unknown option; most are keys, written as other programs take them."""
    name, _, value = option.partition("=")
    return Problem(
        name,
        "there is no such option"
        + (
            familiar.advice(name)
            or familiar.advice(
                name.strip("-"),
                value or " ".join(argv).partition(f"{option} ")[2].partition(" ")[0] or "...",
            )
            or "; keys stand without dashes, as in batch.size=32"
        )
        + ". All are in --help",
    )


def import_trusted() -> None:
    """Import the packages that are trusted, as they may register resolvers of OmegaConf's."""
    for name in targets.trusted():
        sys.path.append(str(Path.cwd()))  # last: it takes the place of nothing that is installed
        try:
            import_module(name)
        except Exception as error:
            raise ConfigError(Problem("--trust", f"{name}: {error!r} on import")) from error


def _help(folder: str | None) -> str:
    """Hydra's --help with our text and all groups, without its half a second of composing."""
    files = [file for one in (compose.CONF, folder) if one for file in Path(one).glob("*/*.yaml")]
    groups = "".join(
        f"{group}: {', '.join(sorted(one.stem for one in files if one.parent.name == group))}\n"
        for group in sorted({one.parent.name for one in files})
    )
    return (
        Path(__file__)
        .with_name("help.txt")
        .read_text("utf-8")
        .replace("python run.py", program.text())
        .replace("GROUPS\n", groups)
    )


def execute(config: Config | None) -> float | None:
    """Run one job that Hydra begins; returns the value that a sweep optimises.

    Args:
        config: what our pass has made of its words; None for a job of a sweep.

    Raises:
        SystemExit: it failed; Hydra would print a traceback of anything else.
    """
    # What modules log goes to stderr, as messages do, unless Hydra's own logging was chosen.
    logging.getLogger("penstock").handlers = (
        [terminal.Handler()] if HydraConfig.get().job_logging.get("root") is None else []
    )
    if config is None:
        return import_module("penstock.addons.sweeps.sweep").run_job(_composed, _run, report)
    try:
        return _run(config)
    except (Exception, stop.Stop) as error:
        raise SystemExit(report(error)) from None


def _composed(folder: Path) -> Config:
    """Our composition of a job of a sweep, whose folder Hydra has named."""
    import_trusted()
    return compose.compose(
        *overrides(), config_name=str(HydraConfig.get().job.config_name)
    ).model_copy(update={"run_dir": str(folder)})


def _run(config: Config) -> float | None:
    """Run the task of a job, here or in ranks that are started for it."""
    job, task = HydraConfig.get().job, seams.TASKS[config.task]
    if task.ranks and (count := launch.processes(config.distributed)):
        ranks = [
            sys.executable,
            *([own] if (own := os.environ.get("PENSTOCK_SCRIPT")) else ["-m", "penstock.command"]),
            f"--config-name={job.config_name}",
            *overrides(),
            program.override("run_dir", config.run_dir),  # the last one counts
            "hydra.mode=RUN",
        ]
        launch.run(ranks, count, config.distributed.max_restarts)
        return None
    run: Callable[[Config], float | None] = seams.function(task.run)
    if not gc.isenabled():
        # It was turned off for the imports. What was imported is frozen: to search it takes 0.4 s,
        # and again in each worker. Only the first job of a process freezes, as the garbage of one
        # job must not outlast it.
        gc.freeze()
        gc.enable()
    terminal.options["progress"] = "none" if world.launched_rank()[0] else config.trainer.progress
    return run(config)


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
    if isinstance(error, stop.Stop):
        error = stop.Preempted(str(error))
    rank = f"rank {world.launched_rank()[0]}: " if world.from_environment("cpu").size > 1 else ""
    known = error if isinstance(error, PenstockError) else None
    if known is None or os.environ.get("HYDRA_FULL_ERROR") == "1":
        say(rank + "".join(traceback.format_exception(error)).rstrip().replace("\n", f"\n{rank}"))
    if known and str(known) and not known.reported:
        (_say_once if known.exit_code == PREEMPTED else say)(f"{rank}{known.kind}{known}")
    return known.exit_code if known else 1


def _say_once(text: str) -> None:
    """Tell a person, once for all ranks."""
    if world.launched_rank()[0] == 0:
        say(text)


def _announce(config: Config) -> None:
    """Say what a run will do, before torch is imported; for our ranks, their launcher has."""
    if not launch.is_of_ours():
        task, names = seams.TASKS[config.task], map(program.name_of, (config.model, config.dataset))
        folder = f"; run folder {config.run_dir}" * task.writes
        resuming = f"; resuming {config.resume}" * (config.resume not in (None, "auto"))
        _say_once(f"{config.task}: {task.sentence.format(*names)}{resuming or folder}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
