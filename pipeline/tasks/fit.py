"""`task=fit`: train and report.

1. Build every part; only then claim the run's folder.
2. Put one batch of validation through the loss and the metrics, to find errors there now.
3. Train; write metrics, checkpoints and the order of samples.
4. Measure a constant prediction, which the model has to beat.
5. With the best weights: a table to stdout, and pictures of the curves and of predictions.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from penstock import program, seams
from penstock.build.training import TrainingParts
from penstock.config.hydra import is_job, of_run, overrides
from penstock.config.schema import Config
from penstock.distributed.group import Group, LateError, join
from penstock.distributed.parallel import Parallel, prepare
from penstock.distributed.stop import Preempted, Stop, requests
from penstock.distributed.world import World, usable_cpus
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.loading.loader import Loader
from penstock.order.address import Skipped
from penstock.order.plan import Plan, StreamPlan
from penstock.runs import checkpoint, resume
from penstock.runs.folder import LEDGER, METRICS, RunFolder, Status
from penstock.runs.identity import code_of
from penstock.runs.only_shown import only_shown, reason
from penstock.tasks import opening, summary
from penstock.tasks.observers import Display, OnlyShows, recording
from penstock.tasks.validate import baselines, load_weights, monitored, try_one_batch
from penstock.terminal import put, say
from penstock.training.adapter import Objective
from penstock.training.loop import Observer, Record, Result, fit
from penstock.training.meter import NonFiniteLossError
from penstock.training.step import TrainOptions, TrainStep


def run(config: Config) -> float | None:
    """Train; returns the best value of the monitored metric, None if it never was finite."""
    parts = TrainingParts(config)
    data, launch = parts.data, config.distributed
    old = Path(config.run_dir if config.resume in (None, "auto") else config.resume)
    if config.resume is not None and (old.is_file() or checkpoint.saved(old)):
        from penstock.addons.predicting import learned_of

        # A class may have lost its last file since: numbers of classes stay those of the first
        # start.
        data.recorded = learned_of(old).get("classes", [])
    if parts.world.size == 1:
        opening.source(config)  # reports a wrong path before data is read
    spare_cores(parts.world)
    with (
        join(parts.world, launch.backend, launch.timeout, launch.strategy != "none") as group,
        data.train.loader(config.trainer.digest) as train,
        data.val.loader() if config.data.validates else nullcontext() as val,
    ):
        # Everything is built before the folder is claimed: a mistake leaves nothing behind.
        fit = Fit(config, parts, group, train, val)
        with fit.watched(), group.explained():
            fit.train()
            fit.report()
    return fit.result.best[f"val/{fit.options.monitor}"] if fit.result.best else None


class Fit:
    """A fit on this rank: every part of it is built, and its run's folder is open.

    Attributes:
        parts, data: how its parts are made; its splits.
        model: in training; under FSDP a shard of it.
        opened: the run's folder, and the state that this session begins with.
        observers: on the first rank, from `watched` on; `display`, the progress, is one of them.
        result: what it has reached, after `train`.
        levels: what that compares with, by name; at the end.
    """

    def __init__(
        self, config: Config, parts: TrainingParts, group: Group, train: Loader, val: Loader | None
    ) -> None:
        self.config, self.parts, self.group = config, parts, group
        self.data, self.train_loader, self.val_loader = parts.data, train, val
        self.objective: Objective = parts.objective()
        self.options = make_options(config, self.objective)
        self.parallel = Parallel(
            config.distributed.strategy,
            config.distributed.find_unused_parameters,
            config.distributed.sync_batchnorm,
        )
        # A run that is resumed has weights, and needs no file that it began with.
        auto = config.resume == "auto" and not checkpoint.saved(Path(config.run_dir))
        self.model = prepare(parts.trained(config.resume is None or auto), self.parallel, group)
        moves = scheduler_moves(self.options, train.plan) if config.scheduler else 0
        own = resume.fingerprint(config, train.fingerprint, moves)
        self.opened = opened = opening.find(config, group, own)
        moves = opened.fingerprint.get(resume.SCHEDULES, [moves])[-1]
        # After FSDP has sharded the model: the optimizer must hold the shards.
        self.optimizer = parts.optimizer(self.model, moves)
        self.scheduler = parts.scheduler(self.optimizer, moves)
        # A longer run gets a new schedule, which begins where the old one has brought the rates.
        if opened.renewed is not None and opened.state is not None and self.scheduler is not None:
            rates = {"param_groups": self.optimizer.state_dict()["param_groups"]}
            opened.state["optimizer"] = {**opened.state["optimizer"], **rates}
            opened.state["scheduler"] = self.scheduler.state_dict()
        opening.claim(config, group, opened, self._facts())
        self.observers: list[Observer] = []
        self.display = Observer()
        self.result, self.levels = Result(), dict[str, Record]()
        if opened.folder and config.trainer.progress != "none":
            with only_shown("the summary"):
                say(summary.summary(self))

    def _facts(self) -> dict[str, Any]:
        """What the manifest of a new run has beside its configuration."""
        splits, mode = self.data.splits, self.config.data.fingerprint
        data = {split.name: split.fingerprint["dataset"] for split in splits}
        known = {split.name: split.known_by for split in splits}
        left_out = {split.name: split.left_out for split in splits if split.left_out}
        return {
            "seed": self.config.seed,
            "device": self.train_loader.world.device,
            "monitor": self.options.monitor if self.config.data.validates else None,
            "mode": self.options.mode,
            "data": {"fingerprint": mode, **data, "identity": known, "left_out": left_out},
            "code": code_of(),
        }

    def train(self) -> None:
        """All epochs from the address on that this session begins with."""
        group, opened, val = self.group, self.opened, self.val_loader
        if val is not None:
            # A metric that refuses the model's outputs would otherwise end the run after an epoch.
            try_one_batch(self.data.val, self.model, self.objective, val, self.options)
        with (
            # From here on a signal is noted, and the loop stops at the next step; before, it ended
            # at once.
            requests("note", say if group.is_first else lambda text: None),
            group.explained(),
        ):
            starts = []
            if any(self.config.trainer.freeze.values()):
                from penstock.training.finetuning import begin_epoch

                starts.append(partial(begin_epoch, self.config))
            train_step = TrainStep(
                self.model,
                self.objective,
                self.optimizer,
                self.scheduler,
                self.options,
                group,
                self.config.seed,
                self.parallel,
                starts,
            )
            self.result = fit(train_step, self.train_loader, val, opened, self.observers)
        if opened.checkpoints:
            # The last checkpoint is written by a thread, and results name it.
            opened.checkpoints.flush()

    @property
    def folder(self) -> RunFolder:
        """That of the run, which only the first rank has; only that one has observers."""
        assert self.opened.folder is not None
        return self.opened.folder

    @property
    def best(self) -> Path | None:
        """The checkpoint with the best weights; None if none was saved."""
        return self.opened.checkpoints.best() if self.opened.checkpoints else None

    def best_model(self) -> nn.Module:
        """A model with the best weights; the one in training if nothing was saved."""
        if (best := self.best) is None:
            return self.model
        model = self.parts.model().to(self.parts.world.device)  # the trained one may be a shard
        load_weights(model, best)
        return model

    def show(self, name: str, path: Path) -> None:
        """Print the path of a result, and tell the observers."""
        with only_shown(f"the path of {name}"):
            put(f"{name:<12} {path}")
        for observer in self.observers:
            observer.on_file(name, path)

    def report(self) -> None:
        """Measure what the result compares with; the first rank completes the manifest, prints the
        results, and lets the observers show theirs.
        """
        if self.config.trainer.baseline and self.val_loader is not None:
            parts = self.data, self.data.val, self.objective, self.val_loader, self.group
            self.levels = baselines(*parts, [self.display])
        if self.opened.folder is None:
            return
        own, result, manifest = self.objective.baseline_name, self.result, self.folder.manifest
        manifest |= {
            "reason": result.reason,
            "best": result.best,
            "order": result.order,
            "last": result.history[-1],
            "baseline": self.levels.get(own, {}),
            "baseline_name": own,
            "comparisons": {name: level for name, level in self.levels.items() if name != own},
            "worker_deaths": sum(record["worker_deaths"] for record in result.history),
        }
        with only_shown("the table of results"):
            summary.print_report(result, self.levels, manifest["monitor"], manifest["mode"])
        self.show("run", self.folder.path)
        if best := self.best:
            self.show("checkpoint", best)
        for observer in self.observers:
            observer.on_done()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Give the first rank its observers; at their end the manifest is complete.

        Raises:
            PenstockError: instead of NonFiniteLossError, with the command that shows the batch.
            Preempted: with the command that resumes.
        """
        if self.opened.folder is None:
            yield
            return
        folder, opened, trainer = self.folder, self.opened, self.config.trainer
        bar = Display(self.train_loader, trainer.max_epochs, trainer.progress)
        self.display = OnlyShows("the progress", bar)
        self.observers += [*recording(self), self.display]
        status: Status = "failed"
        why, refused = "", False
        try:
            self.observers += seams.observers(self)
            yield
            status = "done"
        except (Preempted, Stop, KeyboardInterrupt, LateError) as error:
            if isinstance(error, KeyboardInterrupt):
                status, why = "interrupted", "Ctrl-C"
                say(f"stopped; the run is in {folder.path}")
                raise
            status, why = "preempted", str(error)
            if isinstance(error, Stop):
                where = "after the last step" if self.result.history else "before the first step"
                why = f"{error.name}: stopped {where}; nothing was lost"
            lost = "Nothing was saved, as trainer.checkpoint is null"
            resumed = program.text(program.override("resume", folder.path))
            then = f"To resume:\n  {resumed}" if opened.checkpoints else lost
            raise Preempted(f"{why}. {then}") from error
        except Exception as error:
            why = reason(error)
            # What the first batch shows of a configuration leaves no folder, like preflight.
            files = {path.name for path in folder.path.iterdir()}
            is_unused = opened.old is None and not files & {METRICS, LEDGER, "checkpoints"}
            refused = isinstance(error, ConfigError) and is_unused and not is_job()
            if isinstance(error, NonFiniteLossError):
                raise PenstockError(self._how_to_see(error)) from error
            raise
        finally:
            with only_shown("the end of the progress"):
                bar.close()
            if why:
                folder.manifest["sessions"][-1]["reason"] = why
            try:
                folder.finish(status)
                # Observers draw reports from the finished manifest; the lock is held until the last
                # has closed.
                for observer in () if refused else self.observers:
                    observer.on_end(status)
                for observer in self.observers:
                    observer.on_close(status)
                if refused:
                    shutil.rmtree(folder.path)
            finally:
                folder.release()

    def _how_to_see(self, error: NonFiniteLossError) -> str:
        """A loss that is not finite, with commands to show its batch and to continue without it."""
        words = "task=replay", f"epoch={error.epoch}", f"step={error.step}"
        again = program.text(*of_run(overrides()), *words)
        here = Skipped.of([[error.epoch, error.step], [error.epoch, error.step + 1]])
        skip = program.text(
            program.override("resume", self.folder.path),
            f"trainer.skip={self.train_loader.plan.skipped | here}",
        )
        saved = self.best  # any of them is of before it
        return (
            f"{error}. To see that batch:\n  {again}"
            + f"\nTo continue without it:\n  {skip}" * bool(saved)
        )


def spare_cores(world: World) -> None:
    """On a CPU, limit torch to half of the cores; the others make batches.

    Otherwise its threads, which spin while they wait for each other, compete with the workers: on 2
    cores with 2 workers, a step took 20 times as long whenever anything else ran. The number does
    not depend on the workers, because sums in another number of threads round differently.
    """
    if world.device == "cpu":
        torch.set_num_threads(
            max(1, min(torch.get_num_threads(), usable_cpus() // 2 // world.local_size))
        )


def make_options(config: Config, objective: Objective) -> TrainOptions:
    """The section `trainer` with what is monitored."""
    monitor, mode = monitored(config, objective)
    values = config.trainer.model_dump(include={field.name for field in fields(TrainOptions)})
    values |= {"monitor": monitor, "mode": mode, "schedule": config.schedule.interval}
    return TrainOptions(**values)


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
                    "needs the length of the run, and the stream's is unknown; set sampler.steps, "
                    "trainer.max_steps or scheduler=none",
                )
            )
        steps += math.ceil(size / options.accumulate)
        epochs += 1
    return int(min(steps, limit)) if options.schedule == "step" else epochs
