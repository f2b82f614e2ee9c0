"""`sweep=optuna`: jobs whose values Optuna chooses by ask and tell, from the jobs before.

A trial is a job like others: its folder follows from its overrides. The journal in the sweep's
folder has the trials; those that were running when the sweep was killed are run again and resume.
The values of trial n follow from the seed and the trials before it, and whether it is pruned from
what it and they have reported. So a study that was killed ends as one that was not. Several
terminals may share a study; then its trials depend on who comes first.

Cost: 0.3 s to import optuna, and 1 ms for every ten trials each time that a trial begins or ends an
epoch.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Literal

import optuna
from filelock import FileLock
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from optuna.trial import TrialState

from penstock.addons.sweeps.sweep import FINISHED, PRUNING, Job, job_name, values_of
from penstock.files.limits import Count, Index, PositiveFloat
from penstock.terminal import say
from penstock.training.loop import Observer, Record

JOURNAL, STUDY = "optuna.journal", "penstock"


class OptunaSweeper(Sweeper):
    """Runs the trials of a study as jobs, one after the other.

    Args:
        params: values and ranges by key, as on a command line, which comes after them.
    """

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        self._params = [f"{key}={value}" for key, value in (params or {}).items()]

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        """Called by Hydra with the configuration of the sweep."""
        self._loader, self._config = hydra_context.config_loader, config
        self._launcher: Any = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Run the trials; called by Hydra with the overrides of the command line."""
        parsed = OverridesParser.create(config_loader=self._loader).parse_overrides(
            [*self._params, *arguments]
        )
        self._fixed = {one.get_key_element(): values_of(one)[0] for one in parsed}
        first = self._loader.load_sweep_config(self._config, list(self._fixed.values()))
        folder, swept = (
            Path(first.hydra.sweep.dir),
            [one for one in parsed if one.is_sweep_override()],
        )
        try:
            if not swept:
                raise ValueError("write a key as choice(a,b), range(1,9) or interval(0.1,1)")
            space = {one.get_key_element(): distribution(one) for one in swept}
            self.run(folder, space, **first.sweep.optuna)
        except ValueError as error:  # also optuna's own; Hydra would make a traceback of it
            say(f"error in the study {folder / JOURNAL}: {error}")
            raise SystemExit(2) from None

    def run(
        self,
        folder: Path,
        space: dict[str, Any],
        /,
        trials: Count,
        sampler: Literal["tpe", "random"],
        pruner: Literal["none", "median", "asha"],
        startup: Index,
        warmup: Count,
        seed: Index,
        timeout: PositiveFloat | None = None,
    ) -> None:
        """Run the trials of the study in a folder; the section `sweep.optuna`.

        Args:
            space: what the value of each key is drawn from.
        """
        begun, (study, _, lock) = time.monotonic(), open_study(folder, pruner, startup, warmup)
        for trial in study.get_trials():
            if not trial.state.is_finished():
                self._run(study, trial)
        while timeout is None or time.monotonic() - begun < timeout:
            with lock:  # one process at a time chooses a trial, from all those before it
                known = study.get_trials()
                if len(known) >= trials:
                    return
                values = chosen(known, space, sampler, startup, seed)
                # One line of the journal, so that a kill leaves all of it, or nothing.
                study.add_trial(
                    optuna.trial.create_trial(
                        state=TrialState.RUNNING,
                        params=values,
                        distributions=space,
                        user_attrs={"job": job_name(self._words(values))},
                    )
                )
            self._run(study, study.get_trials()[len(known)])

    def _words(self, values: dict[str, Any]) -> list[str]:
        return [*{**self._fixed, **{key: f"{key}={one}" for key, one in values.items()}}.values()]

    def _run(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        """Run a trial as a job, and tell the study of it, if it has come to its end."""
        (done,) = self._launcher.launch([self._words(trial.params)], initial_job_idx=trial.number)
        job = Job.read(Path(done.hydra_cfg.hydra.runtime.output_dir))
        if job.status in (*FINISHED, "failed"):
            sign = -1 if job.manifest.get("mode") == "max" else 1  # the study minimises
            value = None if job.status != "done" or job.value is None else sign * job.value
            study.tell(
                trial.number,
                value,
                state={"pruned": TrialState.PRUNED, "failed": TrialState.FAIL}.get(job.status),
                skip_if_finished=True,
            )


# The name by which Hydra knows it, see `register`.
OptunaSweeper.__module__ = "hydra_plugins.penstock"


def register() -> None:
    """Let Hydra find the sweeper, which Hydra 1.3 imports from this package only."""
    Plugins.instance().register(OptunaSweeper)
    sys.modules.setdefault("hydra_plugins", type(sys)("hydra_plugins"))
    sys.modules[OptunaSweeper.__module__] = sys.modules[__name__]


def open_study(
    folder: Path, pruner: str, startup: int, warmup: int
) -> tuple[optuna.Study, Any, Any]:
    """The study in a sweep's folder, begun if there is none; its storage and the journal's lock."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path, pruners = folder / JOURNAL, optuna.pruners
    # This lock ends with its process; optuna's own would keep a study waiting after a kill.
    lock: Any = FileLock(folder / f".{JOURNAL}.lock")
    backend = optuna.storages.journal.JournalFileBackend(str(path), lock_obj=lock)  # type: ignore[attr-defined]
    with lock:  # of a line that a killed process wrote in part
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    storage = optuna.storages.JournalStorage(backend)
    prunes = {
        "none": pruners.NopPruner(),
        "median": pruners.MedianPruner(startup, warmup),
        "asha": pruners.SuccessiveHalvingPruner(warmup, reduction_factor=3),
    }[pruner]
    study = optuna.create_study(
        storage=storage,
        study_name=STUDY,
        sampler=optuna.samplers.RandomSampler(),  # `chosen` chooses
        pruner=prunes,
        load_if_exists=True,
    )
    return study, storage, lock


def distribution(override: Any) -> Any:
    """What Optuna draws the value of an override from; raises ValueError if it cannot."""
    span, kinds, is_interval = override.value(), optuna.distributions, override.is_interval_sweep()
    if not (is_interval or override.is_range_sweep()):
        return kinds.CategoricalDistribution([one.partition("=")[2] for one in values_of(override)])
    numbers = [span.start, span.end] if is_interval else list(span.range())
    log, step = "log" in span.tags, abs(getattr(span, "step", 1))
    if all(isinstance(one, int) for one in numbers):
        return kinds.IntDistribution(min(numbers), max(numbers), log=log, step=int(step))
    return kinds.FloatDistribution(
        min(numbers), max(numbers), log=log, step=None if log or is_interval else step
    )


def chosen(
    trials: list[Any], space: dict[str, Any], sampler: str, startup: int, seed: int
) -> dict[str, Any]:
    """The values of the next trial, by the seed and the trials before it."""
    seed, samplers = (seed * 1_000_003 + len(trials)) % 2**32, optuna.samplers
    tpe = samplers.TPESampler(n_startup_trials=startup, seed=seed)
    # In memory: to ask a study writes a trial down before its values are known.
    study = optuna.create_study(sampler=tpe if sampler == "tpe" else samplers.RandomSampler(seed))
    study.add_trials(trials)
    return study.ask(dict(space)).params


class Pruning(Observer):
    """Reports the monitored value of every validated epoch, and ends a fit that falls behind.

    Args:
        trial: of the fit.
        reported: epochs that it has reported before it was killed.
    """

    def __init__(self, fit: Any, trial: optuna.Trial, reported: int) -> None:
        self._fit, self._trial, self._reported = fit, trial, reported
        self.on_epoch_end({})  # it may have been killed before it was judged

    def on_epoch_end(self, record: Record) -> None:
        value = record.get(f"val/{self._fit.options.monitor}", float("nan"))
        if abs(value) < float("inf") and record["epoch"] >= self._reported:
            self._reported = int(record["epoch"]) + 1
            value = -value if self._fit.options.mode == "max" else value
            self._trial.report(value, self._reported)
        more = self._reported < self._fit.config.trainer.max_epochs
        if more and self._trial.should_prune():
            self.enough = PRUNING
            say(f"ended after epoch {self._reported}: it is behind other trials")


def observers(fit: Any) -> list[Observer]:
    """The observer of a run that is an unfinished trial of the study beside it."""
    options, path = fit.config.sweep.optuna, fit.folder.path
    if options is None or not (path.parent / JOURNAL).exists():
        return []
    settings = (options[name] for name in ("pruner", "startup", "warmup"))
    study, storage, _ = open_study(path.parent, *settings)
    known = storage.get_study_id_from_name(STUDY)
    return [
        Pruning(
            fit,
            optuna.Trial(study, storage.get_trial_id_from_study_id_trial_number(known, one.number)),
            one.last_step or 0,
        )
        for one in study.get_trials()
        if not one.state.is_finished() and one.user_attrs.get("job") == path.name
    ]
