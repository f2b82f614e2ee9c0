"""`sweep=optuna`: jobs whose values Optuna chooses by ask and tell, from the jobs before.

A trial is a job like others: its folder follows from its overrides. The journal in the sweep's
folder has the trials; those that were running when the sweep was killed are run again and resume.
The values of trial n follow from the seed and the trials before it, and whether it is pruned from
what it and they have reported. So a study that was killed ends as one that was not. Several
terminals may share a study; then its trials depend on who comes first.

optuna is imported where it is used. Cost: 0.3 s for that, and 1 ms for every ten trials each time
that a trial begins or ends an epoch.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from penstock.addons.sweeps.jobs import FINISHED, PRUNING, Job, job_name
from penstock.addons.sweeps.sweep import values_of
from penstock.config.schema import StudySection
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.runs.manifest import has_manifest, read_manifest
from penstock.terminal import say
from penstock.training.observer import Observer, Record

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

    from penstock.tasks.fit import Fit

JOURNAL, STUDY = "optuna.journal", "penstock"


class OptunaSweeper(Sweeper):
    """Runs the trials of a study as jobs, one after the other.

    Args:
        params: values and ranges by key, as on a command line, which comes after them.
    """

    config: Any
    hydra_context: Any
    launcher: Any

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self._params = [f"{key}={value}" for key, value in (params or {}).items()]

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra with the configuration of the sweep."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Run the trials; called by Hydra with the overrides of the command line."""
        try:
            self._sweep([*self._params, *arguments])
        except PenstockError as error:  # Hydra would make a traceback of it
            say(f"error: {error}")
            raise SystemExit(error.exit_code) from None

    def _sweep(self, words: list[str]) -> None:
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        given = {one.get_key_element(): one for one in parser.parse_overrides(words)}
        self._fixed = {key: values_of(one)[0] for key, one in given.items()}
        first = self.hydra_context.config_loader.load_sweep_config(
            self.config, list(self._fixed.values())
        )
        swept = {key: one for key, one in given.items() if one.is_sweep_override()}
        if first.sweep.get("optuna") is None or not swept:
            way = (
                "choose sweep=optuna, and write keys as choice(a,b), range(1,9) or interval(0.1,1)"
            )
            raise ConfigError(Problem("sweep", f"Optuna has nothing to choose; {way}"))
        options = StudySection(**first.sweep.optuna)
        folder = Path(str(self.config.hydra.sweep.dir))
        # One process at a time chooses a trial, which follows from all those before it.
        with FileLock(folder / f".{JOURNAL}.trials") as lock:
            study, _ = open_study(folder, options)
            space = {key: distribution(one, options.sampler) for key, one in swept.items()}
            if any(trial.distributions != space for trial in study.get_trials(deepcopy=False)):
                reason = f"{folder} has trials that chose from other values; give another folder"
                raise ConfigError(Problem("hydra.sweep.dir", reason))
            unfinished = [one for one in study.get_trials() if not one.state.is_finished()]
        begun = time.monotonic()
        for trial in unfinished:
            self._run(study, trial)
        while options.timeout is None or time.monotonic() - begun < options.timeout:
            with lock:
                trials = study.get_trials(deepcopy=False)
                values = _chosen(trials, space, options) if len(trials) < options.trials else None
                if values is None:  # also after the last one of a grid
                    return
                study.add_trial(_begun(values, space, job_name(self._words(values))))
            self._run(study, study.get_trials()[len(trials)])
        say(f"{options.timeout:g} s are over (sweep.optuna.timeout), so no other trial begins")

    def _words(self, values: Mapping[str, Any]) -> list[str]:
        return list(
            {**self._fixed, **{key: f"{key}={one}" for key, one in values.items()}}.values()
        )

    def _run(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        """Run a trial as a job, and tell the study of it, if it has come to its end."""
        from optuna.trial import TrialState

        words = self._words(trial.params)
        (done,) = self.launcher.launch([words], initial_job_idx=trial.number)
        _ = done.return_value  # raises what the job raised
        folder = Path(done.hydra_cfg.hydra.runtime.output_dir)
        job = Job(folder.name, folder, read_manifest(folder) if has_manifest(folder) else {})
        if job.status in (*FINISHED, "failed"):
            state = TrialState.PRUNED if job.status == "pruned" else TrialState.FAIL
            outcome: dict[str, Any] = {"state": state}
            if job.status == "done" and job.value is not None:
                sign = -1 if job.manifest.get("mode") == "max" else 1
                outcome = {"values": sign * job.value}
            study.tell(trial.number, **outcome, skip_if_finished=True)


# The name by which Hydra knows it, see `sweep.running`.
OptunaSweeper.__module__ = "hydra_plugins.penstock"


def open_study(
    folder: Path, options: StudySection
) -> tuple[optuna.Study, optuna.storages.JournalStorage]:
    """The study in a sweep's folder, begun if there is none; it minimises.

    Raises:
        ConfigError: optuna is missing, or cannot read the journal.
    """
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        way = "pip install 'penstock-loader[optuna]', or choose sweep=grid"
        raise ConfigError(
            Problem("sweep", f"optuna cannot be imported ({error}): {way}")
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path, pruners = folder / JOURNAL, optuna.pruners
    # This lock ends with its process; optuna's own would keep a study waiting after a kill.
    lock: Any = FileLock(folder / f".{JOURNAL}.append")
    with lock:
        path.touch()
        if not (text := path.read_bytes()).endswith(b"\n"):  # a killed process wrote a part of it
            os.truncate(path, text.rfind(b"\n") + 1)
    pruner = {
        "none": pruners.NopPruner(),
        "median": pruners.MedianPruner(options.startup, options.warmup),
        "asha": pruners.SuccessiveHalvingPruner(options.warmup, reduction_factor=3),
    }[options.pruner]
    try:
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        sampler = optuna.samplers.RandomSampler()  # `_chosen` chooses
        study = optuna.create_study(
            storage=storage, study_name=STUDY, sampler=sampler, pruner=pruner, load_if_exists=True
        )
        study.get_trials(deepcopy=False)
    except Exception as error:  # whatever a damaged journal makes optuna raise
        way = "move it away to begin a new study"
        reason = f"optuna cannot read {path}: {error!r:.300}; {way}"
        raise ConfigError(Problem("hydra.sweep.dir", reason)) from error
    return study, storage


def distribution(override: Override, sampler: str) -> BaseDistribution:
    """What Optuna draws the value of an override from; raises ConfigError if it cannot."""
    from optuna.distributions import CategoricalDistribution as Choice
    from optuna.distributions import FloatDistribution as Floats
    from optuna.distributions import IntDistribution as Integers

    span: Any = override.value()
    is_interval = override.is_interval_sweep()
    try:
        if is_interval and sampler == "grid":
            raise ValueError("a grid has no intervals; write choice(...) or range(...)")
        if sampler == "grid" or not (is_interval or override.is_range_sweep()):
            return Choice([line.partition("=")[2] for line in values_of(override)])
        numbers: Any = (span.start, span.end) if is_interval else list(span.range())
        step, log = None if is_interval else abs(span.step), "log" in span.tags
        if all(isinstance(one, int) for one in numbers):
            return Integers(min(numbers), max(numbers), log=log, step=int(step or 1))
        return Floats(min(numbers), max(numbers), log=log, step=None if log else step)
    except ValueError as error:
        reason = f"Optuna cannot choose from {override.input_line}: {error}"
        raise ConfigError(Problem(override.get_key_element(), reason)) from error


def _chosen(
    trials: list[optuna.trial.FrozenTrial], space: Mapping[str, Any], options: StudySection
) -> dict[str, Any] | None:
    """The values of the next trial, by the seed and the trials before it; None after a grid."""
    import optuna

    if options.sampler == "grid":
        every = itertools.product(*(drawn_from.choices for drawn_from in space.values()))
        values = next(itertools.islice(every, len(trials), None), None)
        return None if values is None else dict(zip(space, values, strict=True))
    seed = int(np.random.SeedSequence([options.seed, len(trials)]).generate_state(1)[0])
    samplers = optuna.samplers
    # In memory: to ask a study writes a trial down before its values are known.
    study = optuna.create_study(
        sampler=samplers.RandomSampler(seed)
        if options.sampler == "random"
        else samplers.TPESampler(seed=seed, n_startup_trials=options.startup)
    )
    study.add_trials(trials)
    drawn = study.ask(dict(space)).params
    return {key: _short(value, space[key]) for key, value in drawn.items()}


def _short(value: Any, drawn_from: Any) -> Any:
    """A number with few digits, for commands and tables; other values as they are."""
    if not isinstance(value, float):
        return value
    short = float(f"{value:.5g}" if drawn_from.step is None else f"{value:.12g}")
    return min(max(short, drawn_from.low), drawn_from.high)


def _begun(values: dict[str, Any], space: dict[str, Any], name: str) -> optuna.trial.FrozenTrial:
    """A trial whose job has that name: one line of the journal, so a kill leaves all or nothing."""
    from optuna.trial import TrialState, create_trial

    return create_trial(
        state=TrialState.RUNNING, params=values, distributions=space, user_attrs={"job": name}
    )


class Pruning(Observer):
    """Reports the monitored value of every validated epoch, and ends a fit that falls behind.

    Args:
        trial: of the fit.
        reported: epochs that it has reported before it was killed.
    """

    def __init__(self, fit: Fit, trial: optuna.Trial, reported: int) -> None:
        self._trial, self._reported = trial, reported
        self._monitor, self._last = fit.options.monitor, fit.config.trainer.max_epochs
        self._sign = -1 if fit.options.mode == "max" else 1
        if reported:
            self._judge()

    def on_epoch_end(self, record: Record) -> None:
        value, epochs = record.get(f"val/{self._monitor}", math.nan), int(record["epoch"]) + 1
        if math.isfinite(value) and epochs > self._reported:
            self._trial.report(self._sign * value, epochs)
            self._reported = epochs
            self._judge()

    def _judge(self) -> None:
        if self._trial.should_prune() and self._reported < self._last:
            self.enough = PRUNING
            say(f"ended after epoch {self._reported}: {self._monitor} is behind other trials")


def observers(fit: Fit) -> list[Observer]:
    """The observer of a run that is an unfinished trial of the study beside it."""
    options, path = fit.config.sweep.optuna, fit.folder.path
    if options is None or not (path.parent / JOURNAL).exists():
        return []
    from optuna.trial import Trial

    study, storage = open_study(path.parent, options)
    for one in study.get_trials():
        if not one.state.is_finished() and one.user_attrs.get("job") == path.name:
            study_id = storage.get_study_id_from_name(STUDY)
            number = storage.get_trial_id_from_study_id_trial_number(study_id, one.number)
            return [Pruning(fit, Trial(study, number), one.last_step or 0)]
    return []
