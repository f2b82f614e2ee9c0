"""A study of optuna's: trials in a journal beside a sweep, which survives a kill at any moment.

Trial n is job n of the sweep. Its values follow from the seed, n and the trials before it, and
whether it is ended early from the epochs that it and they have reported. So a study that was
killed continues as if it had not been; side by side, trials depend on who comes first.

A journal may come from anybody. It holds JSON alone, which is checked before optuna reads it.
optuna is imported by the functions here and nowhere else. Cost: 0.3 s for that, and 1 ms for every
ten trials each time that a trial begins or ends an epoch.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from penstock.config.schema import StudySection
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files import data as plain_json
from penstock.files.data import LONGEST_LINE, JsonError, integer, mapping
from penstock.files.disk import one_writer

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial
from typing import TYPE_CHECKING

from penstock.addons.sweeps.job_result import PRUNING
from penstock.terminal import say
from penstock.training.observer import Observer, Record

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit


JOURNAL = "optuna.journal"

_NAME = "penstock"  # of the one study in a journal
_BEGIN = b'{"op_code":'  # of every line
_MOST_BYTES = 64 << 20  # of a journal; optuna takes some ten times that to go through it
_OPERATIONS = 10  # that a journal can hold
_ETA = 3  # of asha: the share of trials that goes on from one rung to the next is 1 / eta


def check_installed() -> None:
    """Raise ConfigError unless optuna can be imported and has a journal."""
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend  # noqa: F401  (of optuna 4)
    except ImportError as error:
        raise ConfigError(
            Problem(
                "sweep",
                f"optuna cannot be imported ({error}): pip install "
                "'optuna>=4', or choose sweep=grid",
            )
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other sweeps from continuing the study in `folder`; raises ConfigError if one has."""
    try:
        with one_writer(folder / JOURNAL, "runs this study", wait=False):
            _cut(folder / JOURNAL)
            yield
    except TimeoutError:
        reason = f"another process runs the study in {folder}; wait for it, or stop it"
        raise ConfigError(Problem("hydra.sweep.dir", reason)) from None


class Study:
    """The study in a sweep's folder, for reading and for continuing it.

    Args:
        folder: of the sweep.
        section: how to choose and end trials; None only to read.

    Attributes:
        path: of the journal.
        about: plain values that were given when the study began.

    Raises:
        ConfigError: optuna is missing, or the journal is damaged or another one's.
    """

    def __init__(self, folder: Path, section: StudySection | None = None) -> None:
        check_installed()
        import optuna

        self.path, self._section = folder / JOURNAL, section
        _check(self.path)
        try:
            self._study = optuna.load_study(
                study_name=_NAME,
                storage=_storage(self.path),
                sampler=optuna.samplers.RandomSampler(),
                pruner=optuna.pruners.NopPruner(),
            )
            self.about: dict[str, Any] = self._study.user_attrs.get("about", {})
            known = len(self.trials) if mapping(self.about) else 0
        except Exception as error:  # whatever a foreign journal makes optuna raise
            raise _damaged(self.path, f"optuna cannot read it: {error!r}") from error
        if len(self.trials) != known:
            raise _damaged(self.path, "its study was not begun here")

    @classmethod
    def open(cls, folder: Path, section: StudySection, mode: str, about: dict[str, Any]) -> Study:
        """The study in a folder, begun if there is none.

        Args:
            mode: "min" or "max".
            about: plain values, at least one, that tell later what the study is of.
        """
        check_installed()
        import optuna

        path = folder / JOURNAL
        if not path.exists() or not path.stat().st_size:
            optuna.create_study(
                study_name=_NAME,
                storage=_storage(path),
                direction="maximize" if mode == "max" else "minimize",
            )
        study = cls(folder, section)
        if not study.about:
            study._study.set_user_attr("about", about)
            study.about = about
        return study

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials by their number; those that run, or were killed, have the state RUNNING."""
        return self._study.get_trials(deepcopy=False)

    @property
    def unfinished(self) -> list[FrozenTrial]:
        return [trial for trial in self.trials if not trial.state.is_finished()]

    def begin(
        self, space: Mapping[str, BaseDistribution], accept: Callable[[Any], None]
    ) -> FrozenTrial | None:
        """Choose the next trial and write it down; None after the last one of a grid.

        Args:
            space: the distribution of each key.
            accept: called with the values before they are written; may raise.
        """
        import optuna

        trials = self.trials
        values = self._chosen(space, trials)
        if values is None:
            return None
        accept(values)
        # One line of the journal: a kill leaves a trial with all of its values, or none.
        self._study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params=values,
                distributions=dict(space),
            )
        )
        return self.trials[len(trials)]

    def _chosen(
        self, space: Mapping[str, BaseDistribution], trials: list[FrozenTrial]
    ) -> dict[str, Any] | None:
        """The values of the next trial, as a function of the seed and the trials before it."""
        import optuna

        assert self._section is not None
        if self._section.sampler == "grid":
            lines = (_values(drawn_from) for drawn_from in space.values())
            combination = next(islice(product(*lines), len(trials), None), None)
            return None if combination is None else dict(zip(space, combination, strict=True))
        seed = int(np.random.SeedSequence([self._section.seed, len(trials)]).generate_state(1)[0])
        with _experiments():  # side by side
            sampler: optuna.samplers.BaseSampler = (
                optuna.samplers.RandomSampler(seed)
                if self._section.sampler == "random"
                else optuna.samplers.TPESampler(seed=seed, n_startup_trials=self._section.startup)
            )
        # In memory, as asking a study writes a trial down before its values are known.
        copy = optuna.create_study(direction=self._study.direction, sampler=sampler)
        copy.add_trials(trials)
        drawn = copy.ask(dict(space)).params
        return {key: _short(value, space[key]) for key, value in drawn.items()}

    def end(self, number: int, value: float | None, pruned: bool) -> None:
        """Write down how a trial ended; with no value, it has failed."""
        import optuna

        states = optuna.trial.TrialState
        if pruned:
            self._study.tell(number, state=states.PRUNED)
        elif value is None:
            self._study.tell(number, state=states.FAIL)
        else:
            self._study.tell(number, value)

    def reported(self, number: int) -> int:
        """The epochs that a trial has reported."""
        return self.trials[number].last_step or 0

    def report(self, number: int, epochs: int, value: float) -> None:
        """Write down the value that a trial has reached after that many epochs."""
        trial = self.trials[number]
        if epochs not in trial.intermediate_values and math.isfinite(value):
            storage = self._study._storage
            storage.set_trial_intermediate_value(trial._trial_id, epochs, value)

    def is_hopeless(self, number: int) -> bool:
        """Whether the pruner ends a trial after one of the epochs that it has reported.

        Pruners keep notes in a trial, so a kill can leave them incomplete. They are made anew each
        time, in memory, from what was reported.
        """
        import optuna

        states, trials = optuna.trial.TrialState, self.trials
        own = trials[number]
        copy = optuna.create_study(
            direction=self._study.direction,
            sampler=optuna.samplers.RandomSampler(),
            pruner=self._pruner(),
        )
        waiting = optuna.trial.create_trial(state=states.WAITING)
        copy.add_trials([waiting if trial is own else trial for trial in trials])
        trial, ends = copy.ask(), False
        for epochs, value in sorted(own.intermediate_values.items()):
            trial.report(value, epochs)
            ends = ends or trial.should_prune()
        for name, note in copy.trials[number].system_attrs.items():
            if name not in own.system_attrs:
                self._study._storage.set_trial_system_attr(own._trial_id, name, note)
        return ends

    def _pruner(self) -> optuna.pruners.BasePruner:
        import optuna

        assert self._section is not None
        if self._section.pruner == "median":
            return optuna.pruners.MedianPruner(self._section.startup, self._section.warmup)
        if self._section.pruner == "asha":
            return optuna.pruners.SuccessiveHalvingPruner(self._section.warmup, _ETA)
        return optuna.pruners.NopPruner()


def importance(folder: Path) -> dict[str, float]:
    """How much each key of a study matters for its value: shares of 1, the largest first.

    By optuna's PED-ANOVA over the trials that are done. Empty where fewer than two are, or all have
    the same value.

    Raises:
        ConfigError: as for `Study`.
    """
    study = Study(folder)
    import optuna

    values = {
        trial.value for trial in study.trials if trial.state is optuna.trial.TrialState.COMPLETE
    }
    if len(values) < 2:
        return {}
    with _experiments():  # in optuna 4
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        shares = optuna.importance.get_param_importances(study._study, evaluator=evaluator)
    return {name: float(share) for name, share in shares.items()}


def check_grid(space: Mapping[str, BaseDistribution]) -> None:
    """Raise ConfigError unless a grid can go over all values of a space."""
    for drawn_from in space.values():
        _values(drawn_from)


def _short(value: Any, drawn_from: Any) -> Any:
    """A number with few digits, for commands and tables; other values as they are."""
    if not isinstance(value, float):
        return value
    short = float(f"{value:.5g}" if drawn_from.step is None else f"{value:.12g}")
    return min(max(short, drawn_from.low), drawn_from.high)


@contextmanager
def _experiments() -> Iterator[None]:
    """Use what optuna calls experimental without its warning."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _values(drawn_from: BaseDistribution) -> list[object]:
    """The values of a distribution that has some; raises ConfigError for an interval."""
    import optuna

    if isinstance(drawn_from, optuna.distributions.CategoricalDistribution):
        return list(drawn_from.choices)
    assert isinstance(
        drawn_from, optuna.distributions.IntDistribution | optuna.distributions.FloatDistribution
    )
    if drawn_from.step is None:
        raise ConfigError(
            Problem(
                "sweep.optuna.sampler",
                "grid goes over all combinations, and an "
                "interval has no end of values; write choice(...) or "
                "range(...), or choose tpe or random",
            )
        )
    count = round((drawn_from.high - drawn_from.low) / drawn_from.step) + 1
    return [_short(drawn_from.low + step * drawn_from.step, drawn_from) for step in range(count)]


def _cut(path: Path) -> None:
    """Drop the last line of a journal if a killed process wrote it in part."""
    if not os.path.lexists(path):
        return
    with os.fdopen(os.open(path, os.O_RDWR), "rb+") as file:
        start = max(file.seek(0, os.SEEK_END) - LONGEST_LINE, 0)
        file.seek(start)
        data = file.read()
        end = data.rfind(b"\n") + 1
        begun = data[end : end + len(_BEGIN)]
        if begun and _BEGIN.startswith(begun):  # else it is nothing of optuna's
            file.truncate(start + end)
            os.fsync(file.fileno())


def _storage(path: Path) -> optuna.storages.JournalStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    # The operating system frees this lock with its holder. optuna's own are files, and would keep a
    # study waiting for 30 s after a kill.
    lock_file = path.with_name(f".{path.name}.append")
    lock: Any = FileLock(lock_file, mode=0o600)
    return JournalStorage(JournalFileBackend(os.fspath(path), lock_obj=lock))


def _check(path: Path) -> None:
    """Refuse what is no journal, before optuna acts on it."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                raise JsonError(f"it is larger than {_MOST_BYTES >> 20} MiB")
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
                try:
                    record = mapping(plain_json.parse(line))
                    integer(record, "op_code", most=_OPERATIONS)
                except JsonError as error:
                    raise JsonError(f"line {number}: {error}") from error
    except (OSError, JsonError, PenstockError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, reason: str) -> ConfigError:
    way = "Give the sweep another folder, or move the journal away to begin a new study"
    return ConfigError(Problem("hydra.sweep.dir", f"{path} is damaged: {reason[:300]}. {way}"))


class Pruning(Observer):
    """Reports the monitored value of every validated epoch, and ends a fit that falls behind.

    Args:
        study, number: of the trial.
        manifest: of the run, which records why it ended.
        max_epochs: of the fit, which ends of itself after those.
    """

    def __init__(
        self, study: Study, number: int, manifest: dict[str, Any], max_epochs: int
    ) -> None:
        self.study, self.number, self.max_epochs = study, number, max_epochs
        self.manifest, self.monitor = manifest, str(manifest["monitor"])
        if study.reported(number):  # before it was killed
            self._judge()

    def on_epoch_end(self, record: Record) -> None:
        name, epochs = f"val/{self.monitor}", int(record["epoch"]) + 1
        if name in record and epochs > self.study.reported(self.number):
            self.study.report(self.number, epochs, record[name])
            self._judge()

    def _judge(self) -> None:
        epochs = self.study.reported(self.number)
        if self.study.is_hopeless(self.number) and epochs < self.max_epochs:
            self.enough = PRUNING
            said = (
                f"ended after {epochs} epoch{'s' * (epochs != 1)}, as {self.monitor} is behind "
                "that of other trials"
            )
            self.manifest["pruned"] = said
            say(said)


class Unpruned(Observer):
    """Takes back that a run was ended as a hopeless trial, when it has reached another end."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit

    def on_done(self) -> None:
        if self.fit.result.reason != PRUNING:
            self.fit.folder.manifest.pop("pruned", None)


def observers(fit: Fit) -> list[Observer]:
    """The observers of a run; if it is an unfinished trial of the study beside it, of that too."""
    options, folder = fit.config.sweep.optuna, fit.folder.path
    unpruned, sweep = Unpruned(fit), folder.parent
    if options is None or not folder.name.isdecimal() or not (sweep / JOURNAL).exists():
        return [unpruned]
    study, number = Study(sweep, options), int(folder.name)
    if number not in [trial.number for trial in study.unfinished]:
        return [unpruned]
    epochs = fit.config.trainer.max_epochs
    return [unpruned, Pruning(study, number, fit.folder.manifest, epochs)]
