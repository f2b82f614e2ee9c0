"""`sweep=optuna`: jobs whose values optuna chooses, one after the other, from the jobs before.

hydra's own plugin for optuna stops at optuna 2, which has neither a journal nor a way to end jobs
early. This one keeps to hydra's syntax: choice(...), range(...), interval(...), tag(log, ...) are
what a job's value is chosen from, everything else is the same in all jobs.

A sweep whose folder holds a study goes on with it: finished trials are kept, those that were
running when it was killed resume from their checkpoints, under their numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Sweep
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from pipeline.config import preflight
from pipeline.config.composition import plain
from pipeline.config.hydra_internals import hydra_config, raw_value
from pipeline.config.schema import Config, StudySection
from pipeline.distributed.world import usable_cpus
from pipeline.errors import ConfigError, PenstockError, Problem
from pipeline.files.disk import prepare
from pipeline.runs import study
from pipeline.runs.job_result import RESULT, JobResult
from pipeline.runs.study import Study
from pipeline.tasks.sweep import metric_of
from pipeline.terminal import say

_SUBDIR = "${hydra.job.num}"


class OptunaSweeper(Sweeper):
    """Runs the trials of a study as jobs.

    Args:
        params: values and ranges by key, as on a command line, which comes after them.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self._params = [f"{key}={value}" for key, value in (params or {}).items()]
        self._before: set[int] = set()  # trials of earlier starts of this sweep

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by hydra with the configuration of the sweep."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Run the trials; called by hydra with the overrides of the command line."""
        try:
            self._sweep(arguments)
        except PenstockError as error:  # hydra would make a traceback of it
            raise SystemExit(error.exit_code) from error

    def _sweep(self, arguments: list[str]) -> None:
        study.check_installed()
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        words = {one.get_key_element(): one
                 for one in parser.parse_overrides([*self._params, *arguments])}  # fmt: skip
        self._lines = {key: preflight.bounds(one)[0] for key, one in words.items()}
        self._space = {key: distribution(one) for key, one in words.items()
                       if one.is_sweep_override()}  # fmt: skip
        fixed = [line for key, line in self._lines.items() if key not in self._space]
        config = self._config()
        options, metric, mode = self._options(config)
        folder = Path(str(self.config.hydra.sweep.dir))
        prepare(folder)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        about = {"metric": metric, "mode": mode, "fixed": sorted(filter(_is_kept, fixed)),
                 "space": {key: str(words[key].input_line) for key in self._space}}  # fmt: skip
        with study.held(folder):
            trials = Study.open(folder, options, mode, about)
            self._check_same(trials, about)
            self._run(folder, trials, options)

    def _config(self) -> Config:
        """The configuration of a job with the first value of every key."""
        lines = list(self._lines.values())
        composed = self.hydra_context.config_loader.load_sweep_config(self.config, lines)
        with hydra_config(composed):
            own = [name for name in composed if name != "hydra"]
            return preflight.accept(plain(OmegaConf.masked_copy(composed, own)))

    def _options(self, config: Config) -> tuple[StudySection, str, str]:
        """The section of the study, and the name and the mode of what its trials are judged by."""
        problems = []
        options = config.sweep.optuna
        metric, mode = metric_of(config)
        if options is None:
            problems.append(Problem("sweep", "is not optuna, whose section this sweeper needs"))
        if metric is None or mode is None:
            problems.append(Problem("task", f"{config.task} measures nothing that optuna could "
                                    "make better; fit and validate do"))  # fmt: skip
        if not self._space:
            problems.append(Problem("sweep", "optuna has nothing to choose; write a key as "
                                    "choice(a,b), range(1,9) or interval(0.1,1.0)"))  # fmt: skip
        if raw_value(self.config.hydra.sweep, "subdir") != _SUBDIR:
            problems.append(Problem("hydra.sweep.subdir", f"must be {_SUBDIR} with sweep=optuna: a "
                                    "trial is found again by its number"))  # fmt: skip
        preflight.raise_if(problems)
        if options is not None and options.sampler == "grid":
            study.check_grid(self._space)
        return options, metric, mode  # type: ignore[return-value]

    def _check_same(self, trials: Study, about: Mapping[str, Any]) -> None:
        """Raise ConfigError if a study is of another sweep than this."""
        then, now = trials.about, dict(about)
        problems = [
            Problem(key, f"the study in {trials.path} was begun with {key}={then.get(key)!r}, and "
                    f"this sweep has {now[key]!r}")
            for key in ("metric", "mode") if then.get(key) != now[key]
        ]  # fmt: skip
        lines = [
            {key: word for key, _, word in (line.partition("=") for line in map(str, words))}
            for words in (
                [*_list(then.get("fixed")), *_mapping(then.get("space")).values()],
                [*now["fixed"], *now["space"].values()],
            )
        ]
        for key in sorted(lines[0].keys() | lines[1].keys()):
            old, new = (one.get(key, "not set") for one in lines)
            if old != new:
                problems.append(Problem(key, f"was {old[:100]} in the study in {trials.path}, and "
                                        f"is {new[:100]}; to begin another study, give another "
                                        "hydra.sweep.dir"))  # fmt: skip
        for trial in trials.trials:
            if trial.distributions != self._space and not problems:
                problems.append(Problem("hydra.sweep.dir", f"trial {trial.number} of {trials.path} "
                                        "has other keys than this sweep"))  # fmt: skip
        preflight.raise_if(problems)

    def _run(self, folder: Path, trials: Study, options: StudySection) -> None:
        """Run all trials that are not finished, and new ones up to their number."""
        begun = time.monotonic()
        self._before = {one.number for one in trials.trials}
        unfinished = trials.unfinished
        for number in self._before - {one.number for one in unfinished}:
            _count_again(folder / str(number))
        if self._before:
            finished = len(self._before) - len(unfinished)
            say(f"going on with the study in {folder}: of {options.trials} trials, {finished} are "
                f"finished and {len(unfinished)} were begun")  # fmt: skip
        for trial in unfinished:
            self._launch(folder, trials, [(trial.number, trial.params)])
        side_by_side = self._side_by_side()
        while (room := options.trials - len(trials.trials)) > 0:
            if options.timeout is not None and time.monotonic() - begun > options.timeout:
                say(f"{options.timeout:g} s are over (sweep.optuna.timeout), and {room} of "
                    f"{options.trials} trials are left for the next start")  # fmt: skip
                break
            some = [trials.begin(self._space, side_by_side > 1, self._accept)
                    for _ in range(min(room, side_by_side))]  # fmt: skip
            jobs = [(one.number, one.params) for one in some if one is not None]
            if not jobs:
                break  # the last combination of a grid
            self._launch(folder, trials, jobs)

    def _side_by_side(self) -> int:
        """How many jobs the launcher runs at a time."""
        node = self.config.hydra.launcher
        if "joblib" not in str(node._target_):
            return 1
        jobs = int(node.get("n_jobs") or 1)
        return jobs if jobs > 0 else max(1, usable_cpus() + 1 + jobs)

    def _accept(self, values: Mapping[str, Any]) -> None:
        """Raise if hydra cannot compose a job of these values."""
        self.validate_batch_is_legal([self._overrides(values)])

    def _overrides(self, values: Mapping[str, Any]) -> list[str]:
        chosen = {key: f"{key}={value}" for key, value in values.items()}
        return [chosen.get(key, line) for key, line in self._lines.items()]

    def _launch(
        self, folder: Path, trials: Study, jobs: Sequence[tuple[int, Mapping[str, Any]]]
    ) -> None:
        """Run trials with successive numbers, and write down how they ended."""
        words = [self._overrides(values) for _, values in jobs]
        for (number, _), one in zip(jobs, words, strict=True):
            if number in self._before and "resume" not in self._lines:
                one.append("resume=auto")
        for one in self.launcher.launch(words, initial_job_idx=jobs[0][0]):
            one.return_value  # noqa: B018  (raises what ended a job before it could say so)
        for number, _ in jobs:
            result = JobResult.read(folder / str(number) / RESULT)
            if result.status in ("done", "pruned", "failed"):
                same = result.metric == trials.about["metric"]
                value = result.value if result.status == "done" and same else None
                trials.end(number, value, result.status == "pruned")


def distribution(one: Override) -> Any:
    """What optuna draws the value of an override from.

    Raises:
        ConfigError: it has no value, or a log scale that optuna hasn't.
    """
    from optuna.distributions import CategoricalDistribution as Choice
    from optuna.distributions import FloatDistribution as Floats
    from optuna.distributions import IntDistribution as Integers

    key, given = one.get_key_element(), one.value()
    assert isinstance(given, Sweep)
    log = "log" in given.tags
    try:
        if isinstance(given, IntervalSweep):
            low, high = given.start, given.end
            assert low is not None
            assert high is not None
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError("it needs two numbers, the smaller one first")
            if isinstance(low, int) and isinstance(high, int):  # int(interval(...))
                return Integers(low, high, log=log)
            return Floats(low, high, log=log)
        if not isinstance(given, RangeSweep):
            if log:
                raise ValueError("a choice has no log scale")
            return Choice([line.partition("=")[2] for line in preflight.values(one)])
        numbers = given.range()
        some = (
            numbers
            if isinstance(numbers, range)
            else list(islice(numbers, preflight.MOST_NUMBERS + 1))
        )
        if not some or (isinstance(some, list) and len(some) > preflight.MOST_NUMBERS):
            raise ValueError(f"it has no number, or more than {preflight.MOST_NUMBERS}")
        low, high = sorted((some[0], some[-1]))
        if isinstance(some, range):
            return Integers(low, high, log=log, step=abs(some.step))
        return Floats(low, high, step=None if log else abs(float(given.step)), log=log)
    except ValueError as error:
        raise ConfigError(
            Problem(key, f"optuna cannot choose from {one.input_line}: {error}")
        ) from None


def _is_kept(line: str) -> bool:
    """Whether an override has to be the same whenever a study goes on."""
    key = line.partition("=")[0].lstrip("+~")
    return key not in ("resume", "run_dir", "sweep") and not key.startswith("sweep.")


def _count_again(folder: Path) -> None:
    """Let the table of this start show a trial that an earlier one has finished."""
    if (folder / RESULT).exists():
        replace(JobResult.read(folder / RESULT), started=time.time()).write(folder)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
