"""The tasks, the observers of a fit, and what else the core calls of add-ons by name.

Where one module of the core calls an add-on, its import stands in the branch that needs it, so a
run that does not ask for an add-on does not load it. import-linter lists these modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit
    from penstock.training.loop import Observer


@dataclass(frozen=True)
class Task:
    """The task `task=NAME`; `conf/task/NAME.yaml` has its keys.

    Attributes:
        run: "module:function" that takes the `Config`, imported when the task runs.
        sentence: what it is about to do; {0} is the model and {1} the dataset.
        reads: it only reads folders of runs, and needs no torch.
        measures: it makes metrics, or builds all that a fit does.
        ranks: several ranks share it; one process does the others.
        writes: it writes into the run's folder.
    """

    run: str
    sentence: str
    reads: bool = False
    measures: bool = True
    ranks: bool = False
    writes: bool = False


TASKS: Mapping[str, Task] = {
    "fit": Task("penstock.tasks.fit:run", "training {0} on {1}", ranks=True, writes=True),
    # The run's folder may give the data, which is read later.
    "validate": Task("penstock.tasks.validate:run", "measuring {0} on {1}", ranks=True),
    "digest": Task(
        "penstock.tasks.digest:run", "hashing the batches of {1}", measures=False, ranks=True
    ),
    "replay": Task(
        "penstock.tasks.replay:run", "making a batch of {1} again", measures=False, writes=True
    ),
    "check": Task("penstock.tasks.check:run", "reading every sample of {1}", writes=True),
    "where": Task("penstock.addons.backwards.where:run", "which batches have which samples"),
    "diff": Task("penstock.addons.comparing:run", "comparing two runs", reads=True),
    "pack": Task("penstock.addons.packs.packing:run", "packing {1}"),
    "test": Task("penstock.addons.predicting:test", "testing {0} on {1}", ranks=True),
    "predict": Task("penstock.addons.predicting:predict", "predicting with {0}", ranks=True),
    "export": Task("penstock.addons.predicting:export", "exporting {0}"),
    "report": Task("penstock.addons.reports.report:run", "making a report", reads=True),
    "runs": Task("penstock.addons.reports.runs:run", "listing runs", reads=True),
    "profile": Task("penstock.addons.profiling:profile", "timing {0} on {1}", writes=True),
    "lr_find": Task("penstock.addons.profiling:find_rate", "looking for a learning rate for {0}"),
}


def function(name: str) -> Any:
    """The function of a name such as "module:function", imported now."""
    return resolve_name(name)


# Makers of a fit's observers, and which fits want them.
_OBSERVERS: Mapping[str, Callable[[Any], object]] = {
    "penstock.training.finetuning:watching": lambda fit: (
        any([*fit.config.trainer.warm_start.values(), *fit.config.trainer.freeze.values()])
        or fit.config.trainer.groups
        or "warm_start" in vars(fit.model)
    ),
    "penstock.addons.mixtures.mixture:observers": lambda fit: (
        getattr(fit.data.train.dataset, "mixing", None) is not None
    ),
    "penstock.addons.predicting:leave": lambda fit: True,
    "penstock.addons.reports.observing:observers": lambda fit: (
        fit.config.trainer.pictures or fit.config.trainer.report
    ),
    "penstock.addons.sweeps.optuna_sweeper:observers": lambda fit: fit.config.sweep.optuna,
    "penstock.addons.trackers.tracker:observers": lambda fit: any(fit.config.tracker.values()),
}


def observers(fit: Fit) -> list[Observer]:
    """The observers of a fit on the first rank, when its folder is open."""
    return [
        observer
        for name, is_wanted in _OBSERVERS.items()
        if is_wanted(fit)
        for observer in function(name)(fit) or ()
    ]
