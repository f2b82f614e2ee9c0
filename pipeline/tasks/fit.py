"""`task=fit`: train, and say how well it went.

1. Build every part; only then claim the run's folder.
2. Measure the best constant prediction, which the model has to beat.
3. Train; metrics, checkpoints and the order of samples are written down on the way.
4. With the best weights: a table to stdout, and pictures of the curves and of predictions.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from torch import nn

from pipeline import trust
from pipeline.build import Parts
from pipeline.checkpoint import Checkpoints
from pipeline.config import TASK_KEYS, Config
from pipeline.errors import ConfigError, PenstockError, Problem
from pipeline.learner import Options
from pipeline.loader import Loader
from pipeline.objective import Objective
from pipeline.pictures import learning_curves
from pipeline.plan import Plan
from pipeline.run_folder import RunFolder, Status, usable_cpus
from pipeline.runner import NonFiniteLossError, Observer, Record, Result, fit
from pipeline.streams import StreamPlan
from pipeline.tasks import predictions, progress
from pipeline.tasks.recording import Digests, Metrics, Order
from pipeline.tasks.validate import baseline, load_weights, monitored, print_table
from pipeline.tracker import Tracker


def run(config: Config) -> float | None:
    """Train; returns the best value of the monitored metric, None if it never was finite."""
    parts = Parts(config)
    spare_cores(parts.world.device)
    with (
        parts.loader("train", hashed=config.trainer.digest) as train,
        parts.loader("val") as val,
    ):
        objective, model = parts.objective(), parts.model()
        options = make_options(config, objective)
        optimizer = parts.optimizer(model)
        moves = scheduler_moves(options, train.plan) if config.scheduler else 0
        scheduler = parts.scheduler(optimizer, moves)
        folder = RunFolder.claim(
            Path(config.run_dir), config.plain(), seed=config.seed, overrides=_overrides(),
            fingerprint=train.fingerprint, device=train.world.device, monitor=options.monitor,
        )  # fmt: skip
        checkpoints = make_checkpoints(config, folder.path)
        with watched(config, parts, folder, train) as (tracker, observers):
            constant = baseline(parts, objective, val) if config.trainer.baseline else {}
            result = fit(
                model, objective, optimizer, train, val, options, scheduler=scheduler,
                checkpoints=checkpoints, observers=observers, seed=config.seed,
            )  # fmt: skip
            print_report(result, constant, options.monitor, objective.baseline_name)
            best = checkpoints.best() if checkpoints else None
            if best:
                load_weights(model, best)
            files = {"run": folder.path, "checkpoint": best}
            if config.trainer.pictures:
                files |= draw_pictures(parts, model, objective, result, constant, folder.path)
            show_files(files, tracker, int(result.history[-1]["step"]))
            folder.manifest |= {"reason": result.reason, "best": result.best,
                                "last": result.history[-1], "baseline": constant}  # fmt: skip
    return result.best[f"val/{options.monitor}"] if result.best else None


def spare_cores(device: str) -> None:
    """On a CPU, keep torch to half of the cores; the others make batches.

    With all of them, its threads and the loader's workers take turns, and threads that wait for
    each other spin: on 2 cores with 2 workers, a step took 20 times as long whenever anything
    else ran. The number does not go by the workers, because sums in another number of threads
    round differently: it would make the weights depend on who loads the data.
    """
    if device == "cpu":
        torch.set_num_threads(min(torch.get_num_threads(), max(1, usable_cpus() // 2)))


def make_options(config: Config, objective: Objective) -> Options:
    """What the configuration says about the loop, as plain values."""
    trainer = config.trainer
    monitor, mode = monitored(config, objective)
    return Options(
        max_epochs=trainer.max_epochs,
        max_steps=trainer.max_steps,
        accumulate=trainer.accumulate,
        clip_norm=trainer.clip_norm,
        precision=trainer.precision,
        compile=trainer.compile,
        channels_last=trainer.channels_last,
        log_every=trainer.log_every,
        val_every=trainer.val_every,
        schedule=(config.scheduler or {}).get("interval", "step"),
        monitor=monitor,
        mode=mode,
        patience=trainer.patience,
        save_every=trainer.checkpoint.every_epochs if trainer.checkpoint else 1,
    )


def make_checkpoints(config: Config, folder: Path) -> Checkpoints | None:
    """The run's checkpoints, unless it is to have none."""
    kept = config.trainer.checkpoint
    return Checkpoints(folder / "checkpoints", kept.keep_last) if kept else None


def scheduler_moves(options: Options, plan: Plan | StreamPlan) -> int:
    """How often a fit will move its scheduler: optimizer steps, or epochs.

    Raises:
        ConfigError: only reading would tell.
    """
    limit = options.max_steps or math.inf
    steps = epochs = 0
    while epochs < options.max_epochs and steps < limit:
        size = plan.steps(epochs)
        if size is None:
            if options.schedule == "step" and options.max_steps:
                return options.max_steps
            raise ConfigError(Problem("scheduler", "needs to know how long the run will be, and "
                                      "the stream does not say; set sampler.steps, "
                                      "trainer.max_steps or scheduler=none"))  # fmt: skip
        steps += math.ceil(size / options.accumulate)
        epochs += 1
    return int(min(steps, limit)) if options.schedule == "step" else epochs


@contextmanager
def watched(
    config: Config, parts: Parts, folder: RunFolder, train: Loader
) -> Iterator[tuple[Tracker, list[Observer]]]:
    """The tracker and the observers of a fit, and a manifest that says how it ended.

    Raises:
        PenstockError: in the place of NonFiniteLossError, with the command that shows the batch.
    """
    tracker: Tracker = parts.tracker(folder.path / "tracker")
    display = progress.make(config.trainer.progress, train, config.trainer.max_epochs)
    order = Order()
    observers: list[Observer] = [order, Metrics(folder, tracker), display]
    if config.trainer.digest:
        observers.append(Digests(folder.path / "digests.jsonl"))
    status: Status = "failed"
    try:
        with closing(tracker), closing(display):
            yield tracker, observers
        status = "done"
    except NonFiniteLossError as error:
        again = command_line("task=replay", f"epoch={error.epoch}", f"step={error.step}")
        raise PenstockError(f"{error}. To see that batch:\n  {again}") from error
    except KeyboardInterrupt:
        status = "interrupted"
        print(f"stopped; what there is of the run is in {folder.path}", file=sys.stderr)
        raise
    finally:
        folder.finish(status, order=order.digest())


def command_line(*overrides: str) -> str:
    """This job's command with its task's overrides replaced by `overrides`; to be pasted."""
    words = ["python", "run.py"]
    if os.environ.get(trust.VARIABLE):
        words += ["--trust", os.environ[trust.VARIABLE]]
    if HydraConfig.initialized():
        sources = HydraConfig.get().runtime.config_sources
        for source in sources:
            if source.provider == "command-line":
                words += ["--config-dir", source.path]
    own = [word for word in _overrides() if word.split("=")[0] not in ("task", *TASK_KEYS)]
    return shlex.join([*words, *own, *overrides])


def _overrides() -> list[str]:
    """The overrides of this job, also where a launcher started it."""
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def print_report(result: Result, constant: Record, monitor: str, baseline_name: str) -> None:
    """Print to stdout the metrics of the best and the last epoch beside the baseline's; speed."""
    last = result.history[-1]
    columns: dict[str, Record] = {}
    if result.best is not None and result.best is not last:
        columns[f"best, epoch {result.best['epoch']}"] = _measured(result.best)
    title = "best and last" if result.best is last else "last"
    columns[f"{title}, epoch {last['epoch']}"] = _measured(last)
    if constant:
        columns[baseline_name] = constant
    print_table(columns, monitor)
    own = next(iter(columns.values())).get(monitor, math.nan)
    if constant.get(monitor):
        print(f"{monitor} {own:.4f} | {baseline_name} {constant[monitor]:.4f} | "
              f"ratio {own / constant[monitor]:.2f}")  # fmt: skip
    seconds = sum(record["seconds"] for record in result.history)
    speed = _over_time(result, "samples_per_second")
    waiting = _over_time(result, "wait_share")
    print(f"epochs {len(result.history)}, steps {last['step']}, {seconds:.1f} s of training: "
          f"{speed:,.0f} samples/s, {waiting:.0%} of the time waiting for data; "
          f"ended by {result.reason}")  # fmt: skip


def _measured(record: Record) -> Record:
    """What validation gave; and the training loss for comparison."""
    values = {name[4:]: value for name, value in record.items() if name.startswith("val/")}
    return {**values, "training loss": record["train/loss"]}


def _over_time(result: Result, name: str) -> float:
    """The mean of a record's value, each epoch weighing as long as it took."""
    seconds = sum(record["seconds"] for record in result.history)
    return sum(record[name] * record["seconds"] for record in result.history) / seconds


def draw_pictures(
    parts: Parts, model: nn.Module, objective: Objective, result: Result, constant: Record,
    folder: Path,
) -> dict[str, Path | None]:  # fmt: skip
    """Draw the learning curves and, for images, predictions of validation samples."""
    return {
        "curves": learning_curves(
            result.history, folder / "curves.png", constant, objective.baseline_name
        ),
        "predictions": predictions.draw(parts, model, objective, folder / "predictions.png"),
    }


def show_files(files: Mapping[str, Path | None], tracker: Tracker, step: int) -> None:
    """Say on stdout where to look; pictures go to the tracker, too."""
    for name, path in files.items():
        if path is not None:
            print(f"{name:<12} {path}")
            if path.suffix == ".png":
                tracker.picture(name, path, step)
