"""`task=fit`: train and report.

1. Build every part; only then claim the run's folder.
2. Put one batch of validation through the loss and the metrics, to find errors there now.
3. Train; write metrics, checkpoints and the order of samples.
4. Measure the best constant prediction, which the model has to beat.
5. With the best weights: a table to stdout, and pictures of the curves and of predictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from penstock.addons.mixtures.mixture_rows import mixture_rows
from penstock.addons.reports import predictions
from penstock.addons.reports import report as report_page
from penstock.addons.reports.pictures import learning_curves
from penstock.addons.reports.recording import (
    Confusions,
    Digests,
    Extremes,
    Identity,
    Ledger,
    Metrics,
    Quarantine,
)
from penstock.addons.reports.report_facts import write_data_facts, write_facts
from penstock.addons.sweeps import pruning
from penstock.addons.sweeps.job_result import PRUNING
from penstock.addons.trackers.guarded import Trackers
from penstock.addons.trackers.tracker import Measured, Points, TrackedRun
from penstock.build.training import TrainingParts
from penstock.config import environment
from penstock.config.data_rules import mode_of
from penstock.config.own_command import command_line, how_to_resume, how_to_skip, overrides
from penstock.config.schema import Config
from penstock.distributed.group import Group, join
from penstock.distributed.parallel import Parallel, prepare
from penstock.distributed.preemption import Preempted, Preemption, Stop
from penstock.distributed.world import World, starts_again, threads_of_job, usable_cpus
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.loading.loader import Loader
from penstock.order.plan import Plan
from penstock.order.skipped import Skipped
from penstock.order.streams import StreamPlan
from penstock.runs import resumption, run_state
from penstock.runs.identity.sources import code_of
from penstock.runs.left_out import NAME as QUARANTINE
from penstock.runs.only_shown import only_shown
from penstock.runs.resumption import fingerprint, spans
from penstock.runs.run_folder import RunFolder, Status
from penstock.tasks import outcome, progress, skipping
from penstock.tasks.opening import Opened, open_run
from penstock.tasks.validate import baselines, load_weights, monitored, try_one_batch, try_stream
from penstock.terminal import put, say
from penstock.training.epoch_metrics import NonFiniteLossError
from penstock.training.objective import Objective
from penstock.training.observer import Observer, OnlyShows, Record
from penstock.training.runner import Result, fit
from penstock.training.schedules import renewed
from penstock.training.train_step import TrainOptions

# Seconds in which another signal is an echo of the first: a terminal sends Ctrl-C to all processes,
# and the launcher forwards it to its ranks.
_REPEATS_AFTER = 2.0


def run(config: Config) -> float | None:
    """Train; returns the best value of the monitored metric, None if it never was finite."""
    if config.trainer.fast_dev_run:
        with TemporaryDirectory() as folder:
            return _fit(_tried(config, folder))
    return _fit(config)


def _tried(config: Config, folder: str) -> Config:
    """The configuration for `fast_dev_run`: one step and one batch of validation in `folder`."""
    trainer = config.trainer.model_copy(
        update={
            "max_epochs": 1,
            "max_steps": None,
            "checkpoint": None,
            "pictures": False,
            "report": False,
        }
    )
    scheduler = {**config.scheduler, "warmup": 0} if config.scheduler else None
    return config.model_copy(
        update={
            "trainer": trainer,
            "scheduler": scheduler,
            "run_dir": f"{folder}/run",
            "resume": None,
            "tracker": {},
        }
    )


def _fit(config: Config) -> float | None:
    parts = TrainingParts(config)
    if parts.world.size == 1:
        resumption.source(config)  # a wrong path is told of before data is read
    spare_cores(parts.world)
    wanted = config.distributed
    together = wanted.strategy != "none"
    with join(parts.world, wanted.backend, wanted.timeout, together) as group:
        return _run(config, parts, group)


def _run(config: Config, parts: TrainingParts, group: Group) -> float | None:
    data = parts.data
    with (
        data.train.loader(config.trainer.digest, sampled=group.is_first) as train,
        data.val.loader() if data.validates else nullcontext() as val,
    ):
        try_stream(data.train, train)
        if val is not None:
            try_stream(data.val, val)
        objective = parts.objective()
        options = make_options(config, objective)
        skipping.check(train.plan, options.max_epochs)
        wanted, mode = config.distributed, mode_of(config)
        parallel = Parallel(wanted.strategy, wanted.find_unused_parameters, wanted.sync_batchnorm)
        model = prepare(parts.model(), parallel, group)
        moves = scheduler_moves(options, train.plan) if config.scheduler else 0
        scheduled = partial(_scheduled, parts, model)
        optimizer, scheduler = scheduled(moves)
        told = {split.name: split.identity.data(mode) for split in data.splits}
        opened = open_run(
            config,
            group,
            fingerprint(config, train.fingerprint, moves),
            overrides(),
            data.train.identity.data,
            lambda state: run_state.check_fit(state, model, optimizer),
            scheduled,
            seed=config.seed,
            device=train.world.device,
            monitor=options.monitor if data.validates else None,
            mode=options.mode,
            look=None if data.train.identity.is_told else train.look,
            data={"fingerprint": mode, **told, **outcome.known_by(data), **outcome.left_out(data)},
            code=code_of(config),
        )
        if opened.folder and config.trainer.progress != "none":
            with only_shown("the summary"):
                say(outcome.summary(config, data, model, train, group, opened.folder.path))
        state, last = opened.state, spans(opened.fingerprint)[-1:]
        if last and last != [moves]:
            optimizer, scheduler = scheduled(*last)
        if opened.renewed is not None and state is not None and scheduler is not None:
            state = renewed(state, optimizer, scheduler)
        if opened.checkpoints:
            group.hint(how_to_resume(opened.checkpoints.folder.parent))
        with (
            watched(config, parts, group, opened, train) as (trackers, display, observers),
            group.explained(),
        ):
            confusions, extremes = Confusions(objective), Extremes(objective, group.world.size)
            if config.trainer.pictures:
                observers.append(OnlyShows("the confusion of classes", confusions))
            if config.trainer.report:
                observers.append(OnlyShows("the best and the worst samples", extremes))
            compared = config.trainer.baseline and val is not None
            with _placed("before the first step"):
                # An objective of a person's own need not take a constant for a model.
                own = not type(objective).__module__.startswith("penstock.")
                if val is not None and (compared or not own):
                    try_one_batch(data.val, objective, val, options.monitor)
            echo = 0.0 if group.alone else _REPEATS_AFTER
            with (
                Preemption(echo, say if group.is_first else None, tell=group.tell) as preemption,
                group.ends_with_others(),
                group.explained(),  # a rank that is late is not lost
            ):
                result = fit(
                    model,
                    objective,
                    optimizer,
                    train,
                    val,
                    options,
                    scheduler=scheduler,
                    checkpoints=opened.checkpoints,
                    observers=observers,
                    seed=config.seed,
                    group=group,
                    parallel=parallel,
                    preemption=preemption,
                    resume=state,
                    fingerprint=opened.fingerprint,
                    memory=opened.memory,
                )
            if opened.checkpoints:
                opened.checkpoints.flush()
            if opened.memory:
                opened.memory.remove()
            with _placed("after the last step"):
                levels = {}
                if compared and val is not None:
                    levels = baselines(data, objective, val, group, [display])
                if opened.folder:
                    report(
                        config,
                        parts,
                        model,
                        objective,
                        result,
                        levels,
                        opened,
                        trackers,
                        confusions,
                        extremes,
                    )
        group.meet()
    return result.best[f"val/{options.monitor}"] if result.best else None


def _scheduled(
    parts: TrainingParts, model: nn.Module, steps: int
) -> tuple[Optimizer, LRScheduler | None]:
    """A new optimizer, and its schedule for that many steps (or epochs)."""
    optimizer = parts.optimizer(model)
    return optimizer, parts.scheduler(optimizer, steps)


@contextmanager
def _placed(where: str) -> Iterator[None]:
    """Name the place where a run is stopped."""
    try:
        yield
    except Stop as stop:
        raise Preempted(f"{stop.name}: stopped {where}; nothing was lost") from None


def report(
    config: Config,
    parts: TrainingParts,
    model: nn.Module,
    objective: Objective,
    result: Result,
    levels: Mapping[str, Record],
    opened: Opened,
    trackers: Trackers,
    confusions: Confusions,
    extremes: Extremes,
) -> None:
    """Complete the manifest; print the results and draw pictures, with the best weights."""
    assert opened.folder is not None
    folder, last = opened.folder, result.history[-1]
    _complete(folder, objective, result, levels)
    with only_shown("the table of results"):
        outcome.print_report(result, levels, folder.manifest["monitor"])
    best = opened.checkpoints.best() if opened.checkpoints else None
    files: dict[str, Path | None] = {"run": folder.path, "checkpoint": best}
    pictures, with_report = config.trainer.pictures, config.trainer.report
    is_ready = False
    if pictures or with_report:
        with only_shown("what the best weights predict"):
            if best:
                model = parts.model().to(parts.world.device)  # a new one: the trained may be shards
                load_weights(model, best)
            is_ready = True
    if pictures:
        with only_shown("the picture of the learning curves"):
            files["curves"] = learning_curves(result.history, folder.path / "curves.png", levels)
        with only_shown("the picture of predictions"):
            if is_ready and parts.data.validates:
                drawn = folder.path / "predictions.png"
                files["predictions"] = predictions.draw(parts.data.val, model, objective, drawn)
        with only_shown("the picture of confused classes"):
            files["confusion"] = outcome.draw_confusion(objective, confusions, result, folder.path)
    for name, path in files.items():
        if path is not None:
            with only_shown(f"the path of {name}"):
                put(f"{name:<12} {path}")
            if path.suffix == ".png":
                trackers.picture(name, path, int(last["step"]))
    if with_report and is_ready:
        with only_shown("what the report shows of samples and data"):
            epoch = int(result.best["epoch"]) if result.best else None
            extreme = extremes.best(epoch)
            write_facts(folder.path, parts.data, objective, model, extreme, result.history)


def _complete(
    folder: RunFolder, objective: Objective, result: Result, levels: Mapping[str, Record]
) -> None:
    """Add the results to the manifest."""
    if result.reason != PRUNING:
        folder.manifest.pop("pruned", None)
    own = objective.baseline_name
    folder.manifest |= {
        "reason": result.reason,
        "best": result.best,
        "order": result.order,
        "last": result.history[-1],
        "baseline": levels.get(own, {}),
        "comparisons": {name: one for name, one in levels.items() if name != own},
        "worker_deaths": sum(one["worker_deaths"] for one in result.history),
    }


def spare_cores(world: World) -> None:
    """On a CPU, limit torch to half of the cores; the others make batches.

    Otherwise its threads, which spin while they wait for each other, compete with the workers: on 2
    cores with 2 workers, a step took 20 times as long whenever anything else ran. The number does
    not depend on the workers, because sums in another number of threads round differently.
    """
    if world.device == "cpu":
        given = threads_of_job()  # the same whenever and however the sweep is resumed
        most = torch.get_num_threads() if given is None else given
        share = (usable_cpus() // 2 if given is None else given) // world.local_size
        torch.set_num_threads(max(1, min(most, share)))


def make_options(config: Config, objective: Objective) -> TrainOptions:
    """The section `trainer` with null resolved: what is monitored, and when to save."""
    trainer, kept = config.trainer, config.trainer.checkpoint
    monitor, mode = monitored(config, objective)
    same = trainer.model_dump(include={field.name for field in fields(TrainOptions)})
    saved = (
        {}
        if kept is None
        else {
            "save_every": kept.every_epochs,
            "save_every_steps": kept.every_steps,
            "save_every_minutes": kept.every_minutes,
        }
    )
    schedule = (config.scheduler or {}).get("interval", "step")
    return TrainOptions(
        **{
            **same,
            **saved,
            "monitor": monitor,
            "mode": mode,
            "schedule": schedule,
        }
    )


def scheduler_moves(options: TrainOptions, plan: Plan | StreamPlan) -> int:
    """How often a fit will move its scheduler: optimizer steps, or epochs.

    Raises:
        ConfigError: the length of a stream is unknown.
    """
    limit = options.max_steps or math.inf
    steps = epochs = 0
    while epochs < options.max_epochs and steps < limit:
        size = plan.steps(epochs)
        if size is None:
            if options.schedule == "step" and options.max_steps:
                return options.max_steps
            raise ConfigError(
                Problem(
                    "scheduler",
                    "needs the length of the run, and the stream's "
                    "is unknown; set sampler.steps, trainer.max_steps or "
                    "scheduler=none",
                )
            )
        steps += math.ceil(size / options.accumulate)
        epochs += 1
    return int(min(steps, limit)) if options.schedule == "step" else epochs


@contextmanager
def watched(
    config: Config, parts: TrainingParts, group: Group, opened: Opened, train: Loader
) -> Iterator[tuple[Trackers, Observer, list[Observer]]]:
    """The trackers, the display among the observers, and all observers of a fit; on the first rank.

    At their end the manifest is complete.

    Raises:
        PenstockError: instead of NonFiniteLossError, with the command that shows the batch.
        Preempted: with the command that resumes.
    """
    folder = opened.folder
    if folder is None:
        yield Trackers({}), Observer(), []
        return
    trackers = parts.trackers(folder.path / "tracker", _tracked(config, opened))
    trainer = config.trainer
    bar = progress.make(trainer.progress, train, trainer.max_epochs, trainer.compile)
    display = OnlyShows("the progress", bar)
    data = parts.data
    datasets = {split.name: split.identity.unfiltered for split in data.splits}
    left_out = Quarantine(folder.path / QUARANTINE, datasets, data.train.budget)
    observers = mixture_rows(train.plan, folder.manifest)  # first, as it adds to records
    observers += [Metrics(folder, trackers), display, left_out, Identity(folder, train)]
    if trainer.ledger:
        observers.append(Ledger(folder.path / "ledger.jsonl", train.plan.skipped, opened.start))
    if trainer.digest:
        observers.append(Digests(folder.path / "digests.jsonl"))
    status: Status = "failed"
    reason = ""  # for the manifest
    refused = False
    try:
        trial = pruning.of_trial(config, folder.path, folder.manifest)
        observers += [trial] if trial is not None else []
        try:
            yield trackers, display, observers
        finally:
            with only_shown("the end of the progress"):
                bar.close()
        status = "done"
    except NonFiniteLossError as error:
        reason = str(error)
        again = command_line("task=replay", f"epoch={error.epoch}", f"step={error.step}")
        text = f"{error}. To see that batch:\n  {again}"
        if opened.checkpoints and opened.checkpoints.saved():  # all of before it
            after = [[error.epoch, error.step], [error.epoch, error.step + 1]]
            text += f"\n{how_to_skip(folder.path, train.plan.skipped | Skipped.of(after))}"
        raise PenstockError(text) from error
    except (Preempted, Stop) as error:
        status, reason = "preempted", str(error)
        if opened.checkpoints is None:
            raise Preempted(f"{error}; nothing was saved, as trainer.checkpoint is null") from error
        if _is_job():
            raise Preempted(str(error)) from error  # the sweep says how to resume
        then = ""
        if starts_again():
            then = "Ranks that remain are started again from there. "
        raise Preempted(f"{error}. {then}{how_to_resume(folder.path)}") from error
    except KeyboardInterrupt:
        status, reason = "interrupted", "Ctrl-C"
        say(f"stopped; the run is in {folder.path}")
        raise
    except Exception as error:
        name = "" if isinstance(error, PenstockError) else f"{type(error).__name__}: "
        reason = f"{name}{error}"
        # What the first batch shows of a configuration leaves no folder, as what preflight shows.
        refused = isinstance(error, ConfigError) and folder.is_unused and not _is_job()
        raise
    finally:
        if reason:
            folder.manifest["sessions"][-1]["reason"] = environment.unresolved(reason)[:1000]
        unchanged = status != "done" and folder.was_done and not opened.came_further()
        if unchanged:
            opened.put_back()
        shown = trainer.report and not refused
        if shown and status != "done":
            with only_shown("what the report shows of the data"):
                write_data_facts(folder.path, data)
        folder.finish(status, unchanged, release=False)
        try:
            if shown:
                report_page.leave(folder.path, status == "done", train.plan)
            names = ("config.yaml", "manifest.json", "report.html")
            with only_shown("what trackers get at the end"):
                trackers.close(status, [folder.path / name for name in names])
            if refused:
                folder.remove()
        finally:
            folder.release()


def _tracked(config: Config, opened: Opened) -> TrackedRun:
    """What trackers are told of the run; a damaged metrics.jsonl costs a warning."""
    assert opened.folder is not None
    sweep, path, state = None, opened.folder.path, opened.state
    before: Sequence[tuple[Points, int]] = ()
    if _is_job():
        sweep = Path(HydraConfig.get().sweep.dir)
    if state is not None and config.tracker:
        with only_shown("for trackers, what was measured before"):
            before = Measured(path)
    resumed = None if state is None else int(state["updates"])
    return TrackedRun(
        path,
        config.written(),
        dict(opened.folder.manifest),
        sweep,
        resumed,
        before,
        bool(config.resume_despite),
    )


def _is_job() -> bool:
    """Whether this is a job of a sweep, which keeps a folder for each."""
    return bool(HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN)
