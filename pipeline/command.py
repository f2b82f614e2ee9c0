"""The command line: our own pass over the configuration, then Hydra, then the task.

    0 done, 2 configuration, 3 data, 75 stopped and can continue, 130 interrupted, 1 anything else

Our pass finds everything that is wrong before Hydra runs. What Hydra does then is Hydra's own:
`hydra.main` runs one job or a sweep, or prints what `--help` and `--info` ask for. A job's
configuration is always the one of our pass, also under `--cfg job`. Several ranks are as many
processes of this same command line, unless torchrun or Slurm has started them.
"""

from __future__ import annotations

import argparse
import errno
import gc
import logging
import os
import shlex
import string
import sys
import tomllib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import OverrideType
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from penstock import late_imports, program, seams, terminal
from penstock.config import announcement, compose, familiar, targets
from penstock.config.hydra import overrides
from penstock.config.schema import Config
from penstock.distributed import launch, preemption, world
from penstock.distributed.preemption import Preempted, Preemption, Stop
from penstock.errors import LOST, PREEMPTED, ConfigError, PenstockError, Problem
from penstock.terminal import put, say

getattr(OmegaConf, compose.register)(
    "job_name", seams.job_name, replace=True
)  # of hydra.sweep.subdir
INTERRUPTED, NOBODY_LISTENS = 130, 141  # as shells say of SIGINT and SIGPIPE
# What gloo says when a process at the other end of a connection is gone.
_LOST = ("onnection closed by peer", "onnection reset by peer", "roken pipe", "onnection refused")
# Hydra 1.4 has one way to behave, and warns of a program that names a version.
_VERSION: Any = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
_script: str | None = None  # that this process was started from
_FLAGS = ("--help -h", "--hydra-help", "--resolve", "--run -r", "--multirun -m")
_VALUES = ("--package -p", "--config-path -cp", "--config-name -cn", "--config-dir -cd")


def main(argv: Sequence[str], script: str | None = None) -> int:
    """Run a command line.

    Args:
        argv: what stands after `python run.py`, or `penstock`.
        script: the file that this process was started from.

    Returns:
        The exit code. Where it is 2, nothing was written if the message came within the second.
    """
    global _script
    _script = script
    late_imports.install()
    launch.end_with_launcher()
    try:
        if argv and argv[0] == "init":
            return seams.init(argv[1:])
        if "--version" in argv:  # in every report of a problem; imports nothing
            versions = (
                f"{name} {version(name)}" for name in ("penstock-loader", "torch", "hydra-core")
            )
            put(", ".join([*versions, f"Python {sys.version.split()[0]}"]))
            return 0
        with Preemption(_say, at_once=True), _options(argv, script) as args:
            _main(args)
            return 0
    except BaseException as error:
        return report(error)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


@contextmanager
def _options(argv: Sequence[str], script: str | None) -> Iterator[argparse.Namespace]:
    """Hydra's options and ours, which may stand between overrides (`words`), while they hold.

    `[tool.penstock]` of the working folder's pyproject.toml may hold `trust` and `config_dir`. It
    counts only there, as it says whose code is run. Variables reach processes that launchers start.

    Raises:
        ConfigError: an option is unknown, lacks its value or cannot be trusted.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--trust", action="append", default=[])
    for flags in (*_FLAGS, "--shell-completion -sc"):
        parser.add_argument(*flags.split(), action="store_true")
    for flags in _VALUES:
        parser.add_argument(*flags.split())
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--info", "-i", nargs="?", const="all")
    parser.add_argument("words", nargs="*")
    args, unknown = parser.parse_known_intermixed_args(list(argv))
    if unknown:
        raise ConfigError([_no_option(word, argv) for word in unknown])
    typed = ["--config-dir", args.config_dir] * bool(args.config_dir)
    shown = list(args.trust)
    table = {} if launch.is_of_ours() or args.shell_completion else _project()
    table = {"trust": [*map(str, table.get("trust", ()))], "config_dir": table.get("config_dir")}
    used = {name: at for name, at in table.items() if at and not getattr(args, name)}
    vars(args).update(used)
    if used:
        _announce(f"{', '.join(f'{k}={v}' for k, v in used.items())}, as pyproject.toml says")
    names = [name.strip() for word in args.trust for name in word.split(",") if name.strip()]
    trusted = [*filter(None, [os.environ.get(targets.VARIABLE)]), *names]
    shown = [*filter(None, [os.environ.get(targets.VARIABLE)]), *shown]
    typed = ["--trust", ",".join(dict.fromkeys(shown)), *typed] if shown else typed
    variables = {
        targets.VARIABLE: ",".join(dict.fromkeys(trusted)),
        program.VARIABLE: _own(script, typed),
    }
    variables |= seams.sweep_variables(["-m"] * args.multirun, args.words)
    kept = {name: os.environ[name] for name in variables if name in os.environ}
    path, words = list(sys.path), sys.argv
    os.environ |= variables
    try:
        import_trusted()
        yield args
    finally:
        sys.path[:], sys.argv = path, words
        for name in variables:
            del os.environ[name]
        os.environ |= kept


def _own(script: str | None, options: Sequence[str]) -> str:
    """The command that suggestions begin with."""
    own = os.environ.get(program.VARIABLE)
    if own and launch.is_of_ours():
        return own
    start = ["python", script] if script and script.endswith(".py") else [program.first()]
    return " ".join([*start, *map(shlex.quote, options)])


def _project() -> dict[str, Any]:
    """The table of the working folder's pyproject.toml: `trust` and `config_dir`."""
    try:
        text = Path("pyproject.toml").read_text(encoding="utf-8")
        table = tomllib.loads(text)["tool"]["penstock"]
        known = isinstance(table, dict) and table.keys() <= {"trust", "config_dir"}
        if known and isinstance(table.get("trust", []), list):
            return table
    except (OSError, KeyError):
        return {}
    except ValueError as error:
        raise ConfigError(Problem("pyproject.toml", str(error))) from None
    example = 'takes trust = ["my_package"] and config_dir = "conf"'
    raise ConfigError(Problem("pyproject.toml: tool.penstock", example))


def import_trusted() -> None:
    """Import the packages that are trusted, as they may register resolvers of OmegaConf's.

    One may lie in the working folder, which comes last on `sys.path`: nothing in it takes the place
    of what is installed.
    """
    for name in {name.partition(".")[0] for name in targets.trusted()}:
        if not name.isidentifier():
            raise ConfigError(Problem("--trust", f"{name!r} is not the name of a package"))
        if find_spec(name) is None and PathFinder.find_spec(name, [str(Path.cwd())]):
            sys.path.append(str(Path.cwd()))
        if find_spec(name) is not None:  # else who names it gets the message
            try:
                import_module(name)
            except Exception as error:
                raise ConfigError(Problem(f"--trust {name}", f"{error!r} on import")) from error


def _no_option(word: str, words: Sequence[str]) -> Problem:
    """The problem of an unknown option; most are keys, written as other programs take them."""
    name, _, value = word.partition("=")
    after = words[words.index(word) + 1 :]
    value = value or (after[0] if after and not set("-=") & set(after[0]) else "...")
    way = familiar.advice(name) or familiar.advice(name.strip("-"), value)
    written = way or "; keys stand without dashes, as in batch.size=32"
    return Problem(name, f"there is no such option{written}. All are in --help")


def _main(args: argparse.Namespace) -> None:
    kinds = (args.run, args.multirun, args.cfg, args.info, args.shell_completion)
    if sum(map(bool, kinds)) > 1:
        raise ConfigError("give one of --run, -m, --cfg, --info and -sc; --cfg shows a single job")
    if [name for name, at in vars(args).items() if at] == ["help"] and not targets.trusted():
        put(_help())
        return
    if args.multirun and world.is_launched():
        alone = f"run it with {program.text('-m')}, and not under torchrun or srun"
        raise ConfigError(f"a sweep starts the ranks of each of its jobs itself; {alone}")
    # The folder of a run has one name, whichever of the two was typed.
    named = {word.partition("=")[0].lstrip("+") for word in args.words}
    if {"run_dir", "hydra.run.dir"} <= named:
        raise ConfigError(Problem("hydra.run.dir", "is another name for run_dir; leave one out"))
    words, typed = list(args.words), args.words
    places = {name: getattr(args, name) for name in ("config_path", "config_name", "config_dir")}
    made, config, sweep = list[DictConfig](), None, None
    try:
        if args.help or args.hydra_help or args.cfg or args.info:
            loaded, problems, _ = compose.load(words, **places)
            if problems:
                raise ConfigError(problems)
            made.append(loaded)
        elif args.multirun:
            sweep = _sweep(words, places)
        elif not args.shell_completion:
            config = compose.compose(
                *words,
                **places,
                begin=lambda one: _announce(announcement.of_run(one)),
                look=made.append,
            )
    except ConfigError as error:
        if args.config_path and "Could not load" in str(error):
            way = "hides our groups; --config-dir FOLDER --config-name NAME adds yours to them"
            error = ConfigError([Problem("--config-path", way), *error.problems])
        error.told = world.launched_rank()[1] > 0  # the first rank of each machine reports it
        raise error from None
    if args.cfg == "job":
        _show(made[0], args)
        return
    # Hydra adds to a node, which ours replaces, or which the folder of a run gives; so no key of it
    # need be there already.
    there = list[str]()
    for place, one in enumerate(map(compose.parse, words) if config is not None else ()):
        inside = "." in one.key_or_group and not one.is_hydra_override()
        inside |= isinstance(one.value(), dict)
        added = "++" * (inside and one.type is OverrideType.CHANGE)
        words[place] = f"{added}{one.input_line}"
        if inside and one.is_delete():
            value = "''" if one.value() is None else one.get_value_element_as_str()
            there.append(f"++{one.key_or_group}={value}")  # Hydra deletes what is there alone
    words[:0] = there
    if config is not None:
        section = made[0].hydra
        files = section.output_subdir or "filename" in str(section.job_logging)
        words.append(program.override("hydra.run.dir", config.run_dir if files else "."))
        if section.verbose is True:  # Hydra says what it reads before it begins a job
            logging.getLogger().addHandler(terminal.Handler())
    if sweep is not None:  # a pattern such as ${now:%H} may give each process another folder
        words.append(program.override("hydra.sweep.dir", sweep[0]))
    flags = [f"--{name.replace('_', '-')}" for name, value in vars(args).items() if value is True]
    for name in ("config_dir", "cfg", "info", "package"):
        if value := getattr(args, name):
            flags += [f"--{name.replace('_', '-')}", value]
    sys.argv = [sys.argv[0], *flags, *words]

    @wraps(execute)  # of whose module Hydra takes the name of a job
    def single(composed: DictConfig) -> float | None:
        section: Any = HydraConfig.get()
        each = zip(typed, map(compose.parse, typed), strict=True)
        with read_write(section):  # what is suggested for pasting has the words as typed
            section.overrides.task = [word for word, one in each if not one.is_hydra_override()]
        return execute(composed, config)

    with seams.run_sweep(*sweep) if sweep is not None else nullcontext():
        begin = hydra.main(
            args.config_path or str(compose.CONF), args.config_name or "config", **_VERSION
        )
        begin(single if sweep is None else execute)()


def _help() -> str:
    """What Hydra's --help prints of our own options, without its half a second of composing."""
    texts = yaml.safe_load((compose.CONF / "hydra/help/penstock.yaml").read_text("utf-8"))
    groups = sorted(compose.CONF.iterdir())
    names = {group: sorted(file.stem for file in group.glob("*.yaml")) for group in groups}
    lines = (f"{group.name}: {', '.join(each)}\n" for group, each in names.items() if each)
    return string.Template(texts["template"]).substitute(APP_CONFIG_GROUPS="".join(lines))


def _sweep(words: Sequence[str], places: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The folder of a sweep, and the values that its jobs start from, once all are checked."""
    folder, path = places["config_dir"], places["config_path"]
    loader = compose.open_loader(folder, path, places["config_name"] or "config", ())
    overrides = [compose.parse(word, loader) for word in words]
    fixed = [str(one.input_line) for one in overrides if not one.is_sweep_override()]
    base, problems, _ = compose.load(fixed, **places)
    params = () if problems else (base.hydra.sweeper.get("params") or {}).items()
    swept = [compose.parse(f"{key}={value}", loader) for key, value in params]
    swept += [one for one in overrides if not one.is_hydra_override()]
    hydras = [str(one.input_line) for one in overrides if one.is_hydra_override()]

    def problems_of(job: Sequence[str]) -> list[Problem]:
        try:
            compose.compose(*hydras, *job, **places)
        except ConfigError as error:
            return error.problems
        return []

    if problems := problems or seams.check_sweep(swept, problems_of):
        raise ConfigError(problems)
    return Path(str(base.hydra.sweep.dir)), compose.resolved(base, [])


def _show(config: DictConfig, args: argparse.Namespace) -> None:
    """Print our composition as Hydra prints its own for `--cfg job`."""
    with open_dict(config):
        config.pop("hydra", None)
    part = config if args.package in (None, "_global_") else OmegaConf.select(config, args.package)
    if part is None:
        raise ConfigError(Problem("--package", f"there is no {args.package} in the configuration"))
    if args.resolve and OmegaConf.is_config(part):
        OmegaConf.resolve(part)
    if part is not config:
        put(f"# @package {args.package}")
    put(OmegaConf.to_yaml(part).rstrip() if OmegaConf.is_config(part) else part)


def execute(composed: DictConfig, config: Config | None = None) -> float | None:
    """Run one job that Hydra begins; returns the value that a sweep optimises.

    A single run that fails ends in SystemExit, which Hydra lets through.

    Args:
        composed: Hydra's composition.
        config: what our pass has made of the same words.
    """
    root, logger = logging.getLogger(), logging.getLogger("penstock")
    if HydraConfig.get().job_logging.get("root") is None:
        if not any(isinstance(one, terminal.Handler) for one in (*logger.handlers, *root.handlers)):
            logger.addHandler(terminal.Handler())
        logger.setLevel(min(root.level, logger.level or logging.INFO, logging.INFO))
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return seams.run_job(_composed, _run, report)
    try:
        return _run(config or _composed())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SystemExit(report(error)) from None


def _composed(folder: Path | None = None) -> Config:
    """Our composition of this job's words."""
    import_trusted()
    more: Any = OmegaConf.to_container(HydraConfig.get().overrides.hydra)
    words = [
        *overrides(),
        *(word for word in more if word.lstrip("+").startswith("hydra.searchpath=")),
    ]
    config = compose.compose(*words, **_sources())
    return config.model_copy(update={"run_dir": str(folder)}) if folder else config


def _sources() -> dict[str, Any]:
    """Where this job's configuration is composed from: options of the command line, by name."""
    job = HydraConfig.get()
    names = {"main": "config_path", "command-line": "config_dir"}
    paths = {
        names[source.provider]: f"pkg://{source.path}" if source.schema == "pkg" else source.path
        for source in job.runtime.config_sources
        if source.provider in names
    }
    return {"config_name": str(job.job.config_name), **paths}


def _run(config: Config) -> float | None:
    job = HydraConfig.get()
    if job.output_subdir:  # Hydra has written its own composition there
        file = Path(job.runtime.output_dir, job.output_subdir, "config.yaml")
        OmegaConf.save(OmegaConf.create(config.model_dump()), file)
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
        options = [f"--{name.replace('_', '-')}={value}" for name, value in _sources().items()]
        words = [word for word in overrides() if not word.startswith("run_dir=")]
        words.append(program.override("run_dir", config.run_dir))
        command = launch.this_program([*options, *words], _script)
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
    rank = f"rank {world.launched_rank()[0]}: " if world.launched_size() > 1 else ""
    if isinstance(error, Stop):
        error = Preempted(str(error))
    trace = "".join(traceback.format_exception(error)).rstrip().replace("\n", f"\n{rank}")
    if not isinstance(error, PenstockError):
        if rank and isinstance(error, RuntimeError) and any(lost in str(error) for lost in _LOST):
            # The rank that left has said why, or was killed.
            say(f"{rank}ends, as it has lost another rank: {str(error).split('. This is')[0]}")
            return LOST
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            trace = "error: too many open files; `ulimit -n 4096`, or a smaller loader.num_workers"
        say(f"{rank}{trace}")
        return 1
    if any(os.environ.get(name) == "1" for name in ("PENSTOCK_TRACEBACK", "HYDRA_FULL_ERROR")):
        say(trace)
    if error.told or not str(error):
        return error.exit_code
    if isinstance(error, ConfigError) and len(error.problems) != 1:
        lines = "\n".join(f"  {problem}" for problem in error.problems)
        say(f"{rank}{len(error.problems)} errors in the configuration:\n{lines}")
    elif error.exit_code == PREEMPTED:
        _say(f"{rank}{error}")
    else:
        kind = "error in the configuration" if isinstance(error, ConfigError) else "error"
        say(f"{rank}{kind}: {error}")
    return error.exit_code


def _say(text: str) -> None:
    """Tell a person, once for all ranks."""
    if world.launched_rank()[0] == 0:
        say(text)


def _announce(text: str) -> None:
    """Tell a person at the start; the launcher has done so for ranks that are ours."""
    if not launch.is_of_ours():
        _say(text)


if __name__ == "__main__":
    preemption.leave(main(sys.argv[1:]))
