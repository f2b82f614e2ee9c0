"""Every place where the core calls an add-on: the table of tasks, and a function for each call.

The core imports no add-on elsewhere (a contract of import-linter holds that). The imports stand in
the branches that need them, so a run that does not ask for an add-on does not load it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from penstock.addons.lanes.lanes import Lanes
    from penstock.addons.ray.cluster import RayOptions
    from penstock.addons.stores.read_ahead import ReadAhead
    from penstock.build.data import DataParts, Split
    from penstock.build.training import TrainingParts
    from penstock.config.schema import Config, RaySection
    from penstock.datasets.files import Files, Remote
    from penstock.distributed.world import World
    from penstock.errors import Problem
    from penstock.loading.batch import Batch
    from penstock.loading.fetch import Fetch
    from penstock.loading.workers.backends import Backend
    from penstock.loading.workers.options import LoaderOptions
    from penstock.order.plan import Costs
    from penstock.tasks.fit import Fit
    from penstock.training.observer import Observer


@dataclass(frozen=True)
class Task:
    """The task `task=NAME`; `conf/task/NAME.yaml` has its keys.

    Attributes:
        run: "module:function" that takes the `Config`, imported when the task runs.
        sentence: what it is about to do, with names in braces that `config/announcement.py` lists.
        reads: it only reads folders of runs, and needs no torch.
        ranks: several ranks share it; one process does the others.
        writes: it writes into the run's folder.
    """

    run: str
    sentence: str
    reads: bool = False
    ranks: bool = False
    writes: bool = False


TASKS: Mapping[str, Task] = {
    "fit": Task("penstock.tasks.fit:run", "training {both} {length}", ranks=True, writes=True),
    # The run's folder may give the data, which is read later.
    "validate": Task("penstock.tasks.validate:run", "measuring {measured}", ranks=True),
    "digest": Task("penstock.tasks.digest:run", "hashing the batches of {data}", ranks=True),
    "replay": Task(
        "penstock.tasks.replay:run", "making batch {address} of {data} again", writes=True
    ),
    "check": Task("penstock.tasks.check:run", "reading every sample of {data}", writes=True),
    "where": Task("penstock.addons.backwards.where:run", "which batches have which samples"),
    "diff": Task("penstock.addons.comparing.diff:run", "comparing {two}", reads=True),
    "pack": Task("penstock.addons.packs.recipe:run", "packing {data}"),
    "test": Task("penstock.addons.predicting.test:run", "testing {measured}", ranks=True),
    "predict": Task(
        "penstock.addons.predicting.predict:run", "predicting with {measured}", ranks=True
    ),
    "export": Task("penstock.addons.predicting.export:run", "exporting {measured}"),
    "report": Task("penstock.addons.reports.report:run", "making the report of {runs}", reads=True),
    "runs": Task("penstock.addons.reports.runs:run", "listing the runs below {below}", reads=True),
    "profile": Task(
        "penstock.addons.tuning.profile:run", "timing the training of {both}", writes=True
    ),
    "lr_find": Task("penstock.addons.tuning.lr_find:run", "looking for a learning rate for {both}"),
}


# Makers of a `Backend` from a `Fetch` and its `LoaderOptions`, for values of `loader.backend`.
BACKENDS: Mapping[str, str] = {"ray": "penstock.addons.ray.cluster:open_backend"}


def only_reads(task: object) -> bool:
    """Whether a task of that name only reads folders of runs."""
    return isinstance(task, str) and task in TASKS and TASKS[task].reads


def runner(task: str) -> Callable[..., Any]:
    """The function that a task runs."""
    return _function(TASKS[task].run)


def open_backend(fetch: Fetch, options: LoaderOptions) -> Backend:
    """The workers of an add-on's backend."""
    backend: Backend = _function(BACKENDS[options.backend])(fetch, options)
    return backend


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def init(words: Sequence[str]) -> int:
    """`penstock init FOLDER`: a new project; the exit code."""
    from penstock.addons.starter.init import run

    return run(words)


def remote_files(files: Files) -> Remote:
    """Access to files at addresses. Imported with the first address."""
    from penstock.addons.stores.remote_files import RemoteFiles

    return RemoteFiles(files)


def read_ahead(*arguments: Any) -> ReadAhead | None:
    """What fetches the remote files of a loader (plan, dataset, rank, world, options) ahead."""
    from penstock.addons.stores.read_ahead import read_ahead

    return read_ahead(*arguments)


def ray_options(section: RaySection) -> RayOptions:
    """The options of `loader.backend=ray` beside the number of workers."""
    from penstock.addons.ray.cluster import RayOptions

    return RayOptions(**section.model_dump(exclude={"num_actors"}))


def open_pack(split: Split) -> Any:
    """The pack that a split reads instead of its dataset: `data.packed`."""
    from penstock.addons.packs.recipe import opened

    return opened(split)


def undivided(split: Split) -> Any:
    """The dataset with all its rows, of which `data.split` or `data.folds` gives some."""
    from penstock.addons.splits.division import opened

    return opened(split)


def chosen_rows(split: Split, dataset: Any) -> tuple[Any, dict[str, int]]:
    """The rows that filters leave, and how many they leave out, by why."""
    data = split.config.data
    if data.filter is data.val_filter is data.unique is data.without is None:
        return dataset, {}
    from penstock.addons.filters.kept import chosen_rows

    return chosen_rows(split, dataset)


def divided_rows(split: Split, dataset: Any) -> Any:
    """The rows of one split, of a dataset that is not divided otherwise."""
    from penstock.addons.splits.division import divided

    return divided(split, dataset)


def with_the_runs_classes(split: Split, dataset: Any) -> Any:
    """The dataset of a split, numbered as the run's classes are."""
    from penstock.addons.splits.classes import with_the_runs_classes

    return with_the_runs_classes(split, dataset)


def parts_of_run(config: Config, checkpoint: Path) -> TrainingParts:
    """The parts of a configuration, with the classes and statistics of the run of a checkpoint."""
    from penstock.addons.predicting.learned import parts_of_run

    return parts_of_run(config, checkpoint)


def classes_of_run(checkpoint: Path) -> list[str]:
    """Names of the classes of the run that a checkpoint is of; none where that is unknown."""
    from penstock.addons.predicting.learned import classes_of_run

    return classes_of_run(checkpoint)


def costs(split: Split) -> Costs:
    """The costs of rows, by which `batch.balance` deals them to ranks."""
    from penstock.addons.filters.costs import costs_of

    return costs_of(split)


def with_mixture(
    split: Split, node: Mapping[str, Any], supply: dict[str, Any]
) -> Mapping[str, Any]:
    """A sampler's node with the orders of a mixture's sources; `supply` gets the mixture's."""
    from penstock.addons.mixtures.in_runs import with_mixture

    return with_mixture(split, node, supply)


def mixture_recorded(split: Split) -> dict[str, str]:
    """Entries of a split's fingerprint: what a mixture's batches depend on."""
    from penstock.addons.mixtures.in_runs import recorded

    return recorded(split)


def with_vocabulary(split: Split, node: Mapping[str, Any]) -> Mapping[str, Any]:
    """A step's node with the vocabulary of the texts of a split."""
    from penstock.addons.tokens.byte_pairs import of_split

    return of_split(split, node)


def prepare_model(config: Config, model: nn.Module, begins: bool) -> None:
    """Prepare a new model for training, in place and on every rank; `begins`: a run begins."""
    trainer, frozen = config.trainer, config.trainer.freeze != type(config.trainer.freeze)()
    if trainer.warm_start.path is not None or frozen or trainer.recompute:
        from penstock.addons.finetuning.fitting import prepared

        prepared(config, model, begins)


def epoch_starts(config: Config) -> list[Callable[[nn.Module, int], bool]]:
    """What says before an epoch, on every rank, which weights learn in it, and if others did."""
    if not config.trainer.freeze.names:
        return []
    from penstock.addons.finetuning.fitting import begin_epoch

    return [partial(begin_epoch, config)]


def trained_weights(
    config: Config, key: str, part: nn.Module, model: nn.Module, weights: list[Any]
) -> list[Any]:
    """What the optimizer at `key` trains of a part of the model: weights, or torch's groups.

    Args:
        weights: those of the part that learn at first.
    """
    if not (config.trainer.freeze.names or config.trainer.groups):
        return weights
    from penstock.addons.finetuning.groups import arranged

    return arranged(config, key, part, model, weights)


def lanes(config: Config, world: World) -> Lanes | None:
    """The lanes in which each rank of a fit works on its batches, or None."""
    if config.distributed.lanes is None:
        return None
    from penstock.addons.lanes.lanes import of_run

    return of_run(config, world)


def observers(fit: Fit) -> list[Observer]:
    """The observers of a fit on the first rank, when its folder is open."""
    from penstock.addons.predicting import learned

    config = fit.config
    made: list[Observer] = []
    trainer = config.trainer
    if trainer.warm_start.path or trainer.freeze.names or trainer.groups:
        from penstock.addons.finetuning import groups

        made += groups.watching(fit)
    if config.distributed.lanes is not None:
        from penstock.addons.lanes.lanes import note_kind

        note_kind(fit)
    if getattr(fit.data.train.dataset, "mixing", None) is not None:
        from penstock.addons.mixtures import in_runs

        made += in_runs.observers(fit)
    learned.leave(fit)
    if trainer.pictures or trainer.report:
        from penstock.addons.reports import observing

        made += observing.observers(fit)
    if config.sweep.optuna is not None:
        from penstock.addons.sweeps import optuna_sweeper

        made += optuna_sweeper.observers(fit)
    if config.tracker:
        from penstock.addons.trackers import observing as tracking

        made += tracking.observers(fit)
    return made


def print_overlaps(data: DataParts) -> None:
    """What `task=check` says of all splits together."""
    from penstock.addons.overlaps import report

    report(data)


def draw_batch(split: Split, batch: Batch, folder: Path) -> Path | None:
    """Draw a batch into a folder; the picture's path, or None."""
    from penstock.addons.reports.samples import draw_batch

    return draw_batch(split, batch, folder)


def plugin_problems(node: Any, section: Mapping[str, Any], words: Sequence[str]) -> list[Problem]:
    """The problems of a launcher and a sweeper that are not hydra's basic ones."""
    from penstock.addons.sweeps.plugins import problems

    return problems(node, section, words)


def check_sweep(*arguments: Any) -> list[Problem]:
    """The problems of all jobs of a command line with `-m`."""
    from penstock.addons.sweeps.sweep import check_command

    return check_command(*arguments)


def job_name(words: Sequence[str]) -> str:
    """The folder's name of a job of a sweep, from its overrides."""
    from penstock.addons.sweeps.jobs import job_name

    return job_name(words)


def sweep_variables(options: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """The variable with the name of a sweep's folder, which follows from its command."""
    if not {"-m", "--multirun"} & set(options):
        return {}
    about = [word for word in [*options, *words] if not word.startswith("hydra")]
    return {
        "PENSTOCK_SWEEP": job_name([word for word in about if word not in ("-m", "--multirun")])
    }


def run_sweep(composer: Any, typed: Sequence[str]) -> AbstractContextManager[None]:
    """The context in which hydra runs the jobs of a sweep."""
    from penstock.addons.reports.report import of_sweep
    from penstock.addons.sweeps.sweep import running

    folder, config = composer.sweep
    return running(Path(folder), partial(of_sweep, config))


def run_job(*arguments: Any) -> float | None:
    """Run the job of a sweep that hydra has composed, in its process."""
    from penstock.addons.sweeps.jobs import run_job

    return run_job(*arguments)
