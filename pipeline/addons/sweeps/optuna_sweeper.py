"""`sweep=optuna`: jobs whose values optuna chooses, one after the other, from the jobs before.

hydra's own plugin for optuna stops at optuna 2, which has neither a journal nor a way to end jobs
early. This one keeps to hydra's syntax: choice(...), range(...), interval(...), tag(log, ...) are
what a job's value is chosen from, everything else is the same in all jobs.

A sweep whose folder holds a study continues it: finished trials are kept, those that were
running when it was killed resume from their checkpoints, under their numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Sweep
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from penstock.addons.sweeps import grid, stored_sweep, study, sweep, sweep_grid
from penstock.addons.sweeps.job_result import FINISHED
from penstock.addons.sweeps.stored_sweep import (
    StoredJob,
    StoredSweep,
    of_job,
    read_sweep,
    result_of,
)
from penstock.addons.sweeps.study import Study
from penstock.addons.sweeps.sweep_job import metric_of
from penstock.config import preflight
from penstock.config.composition import plain
from penstock.config.hydra_internals import hydra_config, raw_value
from penstock.config.schema import Config, StudySection
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.disk import prepare
from penstock.runs.resumption import is_harmless, key_of
from penstock.terminal import say

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_SUBDIR = "${hydra.job.num}"


class OptunaSweeper(Sweeper):
    """Runs the trials of a study as jobs.

    Args:
        params: values and ranges by key, as on a command line, which comes after them.
    """

    config: DictConfig
    hydra_context: HydraContext

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self._params = [f"{key}={value}" for key, value in (params or {}).items()]

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by hydra with the configuration of the sweep."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Run the trials; called by hydra with the overrides of the command line."""
        try:
            self._sweep(arguments)
        except PenstockError as error:  # hydra would make a traceback of it
            raise SystemExit(error.exit_code) from error

    def _sweep(self, arguments: list[str]) -> None:
        study.check_installed()
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        words = {
            override.get_key_element(): override
            for override in parser.parse_overrides([*self._params, *arguments])
        }
        self._lines = {key: grid.bounds(override)[0] for key, override in words.items()}
        self._space = {
            key: distribution(override)
            for key, override in words.items()
            if override.is_sweep_override()
        }
        config = self._config()
        options, metric, mode = self._options(config)
        ends = {
            "failed": config.sweep.on_failure,
            "preempted": config.sweep.on_preempted,
        }
        self._command = StoredSweep(
            keys=[key_of(key) for key in self._space],
            began=time.time(),
            ends=[status for status, then in ends.items() if then == "stop"],
        )
        folder = Path(str(self.config.hydra.sweep.dir))
        prepare(folder)
        sweep.check_folder(folder)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        about = {
            "metric": metric,
            "mode": mode,
            "fixed": sorted(
                line
                for key, line in self._lines.items()
                if key not in self._space and not is_harmless(line)
            ),
            "space": {key: str(words[key].input_line) for key in self._space},
        }
        with study.held(folder):
            trials = Study.open(folder, options, mode, about)
            self._check_same(folder, trials, about)
            with sweep_grid.context_of(self.launcher):
                self._run(folder, trials, options)

    def _config(self) -> Config:
        """The configuration of a job with the first value of every key."""
        lines = list(self._lines.values())
        composed = self.hydra_context.config_loader.load_sweep_config(self.config, lines)
        with hydra_config(composed):
            own = [str(name) for name in composed if name != "hydra"]
            return preflight.accept(plain(OmegaConf.masked_copy(composed, own)))

    def _options(self, config: Config) -> tuple[StudySection, str, str]:
        """The section of the study, and the name and the mode of what its trials are judged by."""
        problems = []
        options = config.sweep.optuna
        metric, mode = metric_of(config)
        if options is None:
            problems.append(Problem("sweep", "is not optuna, whose section this sweeper needs"))
        if metric is None or mode is None:
            problems.append(
                Problem(
                    "task",
                    f"{config.task} measures nothing that optuna could "
                    "make better; fit and validate do",
                )
            )
        if not self._space:
            problems.append(
                Problem(
                    "sweep",
                    "optuna has nothing to choose; write a key as "
                    "choice(a,b), range(1,9) or interval(0.1,1.0)",
                )
            )
        if raw_value(self.config.hydra.sweep, "subdir") != _SUBDIR:
            problems.append(
                Problem(
                    "hydra.sweep.subdir",
                    f"must be {_SUBDIR} with sweep=optuna: a trial is found again by its number",
                )
            )
        preflight.raise_if(problems)
        if options is not None and options.sampler == "grid":
            study.check_grid(self._space)
        return options, metric, mode  # type: ignore[return-value]

    def _check_same(self, folder: Path, trials: Study, about: Mapping[str, Any]) -> None:
        """Raise ConfigError if the study, or what else is in its folder, is of another sweep."""
        then = {**dict.fromkeys(about), **trials.about}
        problems = [
            Problem(
                "hydra.sweep.dir",
                f"the study in {trials.path} has the {name} "
                f"{str(then[name])[:300]}, and this one {about[name]}; give another folder",
            )
            for name in ("metric", "mode", "fixed", "space")
            if then[name] != about[name]
        ]
        stored = read_sweep(folder)
        known = {str(trial.number) for trial in trials.trials}
        if stored is not None and any(job.folder not in known for job in stored.jobs):
            problems.append(
                Problem(
                    "hydra.sweep.dir",
                    f"{folder} holds jobs of a sweep without optuna; give another folder",
                )
            )
        if not problems and any(trial.distributions != self._space for trial in trials.trials):
            problems.append(
                Problem(
                    "hydra.sweep.dir",
                    f"trials in {trials.path} have other keys than this sweep; give another folder",
                )
            )
        preflight.raise_if(problems)

    def _run(self, folder: Path, trials: Study, options: StudySection) -> None:
        """Run the trials that are not finished, and new ones up to their number."""
        begun, unfinished = time.monotonic(), trials.unfinished
        if number := len(trials.trials):
            done = number - len(unfinished)
            say(
                f"continuing the study in {folder}: of {options.trials} trials, {done} are "
                f"finished and {len(unfinished)} were begun"
            )
        for trial in unfinished:
            if self._launch(folder, trials, trial):
                return
        while (room := options.trials - len(trials.trials)) > 0:
            if options.timeout is not None and time.monotonic() - begun > options.timeout:
                say(
                    f"{options.timeout:g} s are over (sweep.optuna.timeout); {room} of "
                    f"{options.trials} trials are left"
                )
                return
            new = trials.begin(self._space, self._accept)
            if new is None or self._launch(folder, trials, new):  # a grid comes to its end
                return

    def _accept(self, values: Mapping[str, Any]) -> None:
        """Raise if hydra cannot compose a job of these values."""
        self.validate_batch_is_legal([self._overrides(values)])

    def _overrides(self, values: Mapping[str, Any]) -> list[str]:
        chosen = {key: f"{key}={value}" for key, value in values.items()}
        return [chosen.get(key, line) for key, line in self._lines.items()]

    def _launch(self, folder: Path, trials: Study, trial: FrozenTrial) -> bool:
        """Run a trial; whether the sweep ends after it."""
        known = [
            StoredJob(str(one.number), of_job(self._overrides(one.params))) for one in trials.trials
        ]
        stored_sweep.store(folder, replace(self._command, jobs=known))
        if sweep.running:
            sweep.running[0].mine = [job.folder for job in known]
        words = [self._overrides(trial.params)]
        try:
            for done in self.launcher.launch(words, initial_job_idx=trial.number):
                _ = done.return_value  # raises what a job raised: a bug, as jobs report errors
        except BrokenExecutor as error:
            reason = "the process of a job died; maybe the machine was out of memory"
            raise PenstockError(reason) from error
        result = result_of(folder / str(trial.number))
        if result is None or (
            result.status not in FINISHED and result.started < self._command.began
        ):
            return False  # not begun, or another process runs it
        if result.status in (*FINISHED, "failed"):
            measured = result.status == "done" and result.metric == trials.about["metric"]
            value = result.value if measured else None
            trials.end(trial.number, value, result.status == "pruned")
        return result.status in self._command.ends


def distribution(override: Override) -> Any:
    """The distribution from which optuna draws the value of an override.

    Raises:
        ConfigError: it has no value, or a log scale that optuna hasn't.
    """
    from optuna.distributions import CategoricalDistribution as Choice
    from optuna.distributions import FloatDistribution as Floats
    from optuna.distributions import IntDistribution as Integers

    key, span = override.get_key_element(), override.value()
    assert isinstance(span, Sweep)
    log = "log" in span.tags
    try:
        if isinstance(span, IntervalSweep):
            low, high = span.start, span.end
            assert low is not None
            assert high is not None
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError("it needs two numbers, the smaller one first")
            if isinstance(low, int) and isinstance(high, int):  # int(interval(...))
                return Integers(low, high, log=log)
            return Floats(low, high, log=log)
        if not isinstance(span, RangeSweep):
            if log:
                raise ValueError("a choice has no log scale")
            return Choice([line.partition("=")[2] for line in grid.values(override)])
        numbers = span.range()
        some = (
            numbers if isinstance(numbers, range) else list(islice(numbers, grid.MOST_NUMBERS + 1))
        )
        if not some or (isinstance(some, list) and len(some) > grid.MOST_NUMBERS):
            raise ValueError(f"it has no number, or more than {grid.MOST_NUMBERS}")
        low, high = sorted((some[0], some[-1]))
        if isinstance(some, range):
            return Integers(low, high, log=log, step=abs(some.step))
        return Floats(low, high, step=None if log else abs(float(span.step)), log=log)
    except ValueError as error:
        raise ConfigError(
            Problem(key, f"optuna cannot choose from {override.input_line}: {error}")
        ) from None
