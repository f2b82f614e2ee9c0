"""`task=profile`: the bottleneck of this run, measured on real training steps.

`steps` steps on a cached batch (the ceiling), then with num_workers=0, then with the configured
loader. Prints a table and a verdict; writes trace.json. Then saves the state of the training a few
times, and prints how often a run should. Tracing costs about 2 us a sample and 50 us a batch.

A checkpoint is saved often enough for failures, which come at random (exponentially), and rarely
enough for what it costs.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.addons.tuning import verdict
from penstock.addons.tuning.measuring import Course, fixed, steps_of
from penstock.addons.tuning.timeline import Timeline, write_trace
from penstock.addons.tuning.verdict import Measured, Verdict
from penstock.config.own_command import command_line
from penstock.config.schema import Config
from penstock.distributed.world import usable_cpus
from penstock.loading.workers.options import LoaderOptions
from penstock.order.streams import StreamPlan
from penstock.runs.checkpoint import CheckpointError, Checkpoints
from penstock.runs.only_shown import only_shown
from penstock.runs.run_folder import RunFolder
from penstock.tasks.tables import new_table, put_table
from penstock.terminal import put, say

DEFAULT_STEPS = 40
SAVES = 3
STAGES = ("read", "transform", "collate", "batch", "transfer")


def run(config: Config) -> None:
    """Profile training with the configured loader."""
    course = Course(config)
    steps = config.steps or DEFAULT_STEPS
    ceiling = course.step_seconds(steps)
    options = course.loader().options
    alone = record(course, fixed(options, **ALONE), steps)
    timelines = [alone]
    if options.backend != "main" and options.num_workers:
        timelines.append(record(course, None, steps))
    measured = measure(course, ceiling, alone, timelines[-1], options)
    judged = verdict.judge(measured)
    print_table(timelines, ceiling, measured.samples)
    print_verdict(judged, measured)
    folder = RunFolder.claim(Path(config.run_dir), config.written())
    with only_shown("the trace"):
        trace = write_trace(timelines, folder.path / "trace.json")
        put(f"trace        {trace}   (opens in https://ui.perfetto.dev)")
    print_stores(course, measured)
    minutes = recommend_interval(course, folder.path, timelines[-1].pace)
    folder.finish(
        "done", bound=judged.bound, overrides=list(judged.overrides), checkpoint_minutes=minutes
    )


# Those of the configured options that need workers.
ALONE = {
    "backend": "main",
    "num_workers": 0,
    "persistent_workers": False,
    "prefetch_factor": None,
    "timeout": 0,
    "worker_init_fn": None,
    "multiprocessing_context": None,
}


def record(course: Course, options: LoaderOptions | None, steps: int) -> Timeline:
    """Train with a loader, as configured if `options` is None."""
    loader = course.loader(options, traced=True)
    used = loader.options
    kind = {"thread": "threads", "process": "processes", "ray": "Ray actors", "main": ""}[
        used.backend
    ]
    several = used.backend != "main" and used.num_workers > 0
    title = f"{used.num_workers} {kind}" if several else "num_workers=0"
    title = f"auto, from {title} on" if used.auto else title
    say(f"profiling {steps} steps: {title}")
    timings = steps_of(course, course.batches(loader), steps)
    return Timeline(title, used.num_workers if several else 0, timings)


def measure(
    course: Course, ceiling: float, alone: Timeline, configured: Timeline, options: LoaderOptions
) -> Measured:
    """The measurements for a verdict."""
    plan, config = course.parts.data.train.plan, course.config
    epoch = plan.steps(0) if not isinstance(plan, StreamPlan) else plan.limit(0)
    kept = options.persistent_workers or options.backend != "process"
    epochs = config.trainer.max_epochs if kept else 1
    samples = sum(step.samples for step in alone.steps) / len(alone.steps)
    return Measured(
        samples=samples,
        ceiling=ceiling,
        pace=configured.pace,
        waited=configured.waited,
        waited_at_starts=configured.waited_at_starts,
        first=configured.first,
        run_steps=max((epoch or 1000) * epochs, len(configured.steps)),
        computing=alone.computing(),
        blocked=alone.blocked(),
        transfer=configured.per_step().get("transfer", 0.0),
        busy=configured.busy(),
        unevenness=configured.unevenness(),
        backend=options.backend,
        workers=configured.workers,
        prefetch=options.prefetch_factor or 2,
        cores=usable_cpus(),
        threads=course.threads_refused() is None,
        starved=configured.starved,
    )


def print_table(timelines: Sequence[Timeline], ceiling: float, samples: float) -> None:
    """Print milliseconds per sample and stage, and the speed."""

    def each(seconds: float) -> str:
        return f"{1000 * seconds / samples:.3f}"

    table = new_table()
    table.add_column("ms per sample")
    for timeline in timelines:
        table.add_column(timeline.title, justify="right")
    table.add_column("cached batch", justify="right")
    stages = [timeline.per_step() for timeline in timelines]
    for stage in [*STAGES, *(set().union(*stages) - set(STAGES))]:
        if any(stage in times for times in stages):
            table.add_row(stage, *(each(times.get(stage, 0.0)) for times in stages), "")
    cells = [each(timeline.training) for timeline in timelines]
    table.add_row("training", *cells, each(ceiling), end_section=True)
    table.add_row("time waited", *(f"{timeline.waited:.0%}" for timeline in timelines), "0%")
    table.add_row(
        "samples/s",
        *(f"{timeline.samples_per_second:,.0f}" for timeline in timelines),
        f"{samples / ceiling:,.0f}",
    )
    table.add_row("first batch after", *(f"{timeline.first:.2f} s" for timeline in timelines), "")
    put_table(table)


def print_verdict(judged: Verdict, measured: Measured) -> None:
    """Print the bottleneck, the ceiling, and what to change."""
    now = measured.samples / measured.pace
    ceiling = measured.samples / measured.ceiling
    put(f"bound by     {judged.bound}: {judged.reason}")
    put(
        f"ceiling      {ceiling:,.0f} samples/s without loading, {ceiling / now:.2f} times as "
        "many as now"
    )
    put(f"to change    {judged.advice}")
    if judged.overrides:
        put(f"to paste     {' '.join(judged.overrides)}")
        put(f"             {command_line(*judged.overrides)}")


def print_stores(course: Course, measured: Measured) -> None:
    """Print what the store gives that the samples come from, if they come from one."""
    loader = course.loader(LoaderOptions())
    plan, dataset = loader.plan, loader.fetch.dataset
    loader.close()
    remote = getattr(dataset, "remote_files", None)
    streams = isinstance(plan, StreamPlan)
    if remote is None or not hasattr(dataset, "files_of_shard" if streams else "files_of"):
        return

    def rows() -> Iterator[Sequence[str]]:
        if isinstance(plan, StreamPlan):
            shards = dataset.shards()
            for number in plan.sampler.shards(0, len(shards)).tolist():
                yield dataset.files_of_shard(shards[number])
            return
        for step in range(plan.steps(0)):
            yield from dataset.files_of(plan.request(0, step).indices)

    computing = sum(measured.computing.values())
    least = max(measured.ceiling, computing / measured.cores)  # seconds of a batch
    wanted = None if streams else measured.samples / least
    for label, text in remote.report(rows, wanted):
        put(f"{label:<13}{text}")


def recommend_interval(course: Course, folder: Path, pace: float) -> float | None:
    """Save in `folder`, and print how often a run should; in minutes, None if it saves nothing.

    A save costs the time for which it stops the training: all of it, or with
    `trainer.checkpoint.background` the copy of the state. Then the next save waits for the writing
    of the last, so that an interval is never shorter than that.

    Args:
        pace: seconds of a batch.
    """
    config, saving = course.config.profile, course.config.trainer.checkpoint
    if saving is None:
        return None
    blocked, written, size = [], [], 0
    try:
        with TemporaryDirectory(prefix=".profile-", dir=folder) as there:
            checkpoints = Checkpoints(Path(there), background=saving.background)
            for step in range(SAVES):
                began = time.perf_counter()
                path = checkpoints.save(course.train_step.state_dict(), step)
                blocked.append(time.perf_counter() - began)
                checkpoints.flush()
                written.append(time.perf_counter() - began)
            size = path.stat().st_size
    except CheckpointError as error:
        say(f"no interval of checkpoints is recommended: {error}")
        return None
    cost, least = statistics.median(blocked), statistics.median(written)
    between = 3600 * config.node_hours_between_failures / config.nodes
    seconds = max(daly(cost, between), least, pace)
    share = useful_share(seconds, cost, 0.0, between)
    minutes = float(f"{seconds / 60:.3g}")
    put(
        f"checkpoint   {size / 2**20:,.1f} MiB; a save stops training for {1000 * cost:,.0f} ms "
        f"and is on the disk after {1000 * least:,.0f} ms"
    )
    put(
        f"save every   trainer.checkpoint.every_minutes={minutes:g}, {seconds / pace:,.0f} batches "
        f"(Daly; Young: {young(cost, between) / 60:.3g} minutes)"
    )
    put(
        f"             at a failure in {between / 3600:,.4g} hours (profile.nodes={config.nodes}); "
        f"saves and what failures undo then take {100 * (1 - share):.2g}% of the time"
    )
    return minutes


def young(cost: float, between: float) -> float:
    """Training between two saves, to first order: sqrt(2 C M).

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications
    of the ACM 17 (9), 1974.

    Args:
        cost: C, for which a save stops the training.
        between: M, the mean time between failures of any of the machines.
    """
    return math.sqrt(2 * cost * between)


def daly(cost: float, between: float) -> float:
    """The same to higher order; M where a save costs twice that or more.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    Future Generation Computer Systems 22 (3), 2006, equation 37.
    """
    if cost >= 2 * between:
        return between
    part = cost / (2 * between)
    return young(cost, between) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def useful_share(interval: float, cost: float, restart: float, between: float) -> float:
    """Expected share of the time in which training comes forward, in (0, 1).

    The rest goes into saves, restarts and training that is done again. Daly's complete model, of
    the same paper (equation 20): failures may come in saves and in restarts, too.

    Args:
        interval: training between two saves.
        restart: from a failure until training continues.
    """
    exponent = (interval + cost) / between
    if exponent + restart / between > 700:  # no float holds more, and nothing would be left
        return 0.0
    return interval / (between * math.exp(restart / between) * math.expm1(exponent))
