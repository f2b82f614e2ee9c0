"""`task=tune`: the fastest loader for this dataset on this machine, within a time budget.

Measures settings with real training steps (pipeline/addons/tuning/search.py), and prints the best
as a line to type. With several ranks, cores and memory are divided by those on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing
from typing import Any

from penstock.addons.tuning.measuring import Course, fixed
from penstock.addons.tuning.search import Backend, Search, Setting, Slice, Space, Trial
from penstock.config.own_command import command_line
from penstock.config.schema import Config
from penstock.distributed import world
from penstock.errors import ConfigError
from penstock.loading.batch import Batch
from penstock.loading.loader import Loader
from penstock.loading.memory import available, tree_pss
from penstock.loading.workers.options import LoaderOptions
from penstock.tasks.tables import new_table, put_table
from penstock.terminal import ProgressDisplay, put, say

_MIB = 2**20
_STEPS = 40  # of the measurement of the training step


def run(config: Config) -> None:
    """Search, and print the trials and the best."""
    course = Course(config)
    seconds = config.tune.seconds
    began = time.perf_counter()
    ceiling = course.step_seconds(_STEPS, 0.05 * seconds)
    trials = search(course, ceiling, began + seconds)
    took = time.perf_counter() - began
    best = trials.choice()
    if not best.rate:
        raise ConfigError(
            f"no setting of the loader works: {best.refused or 'none was measured'}; "
            "give it more tune.seconds"
        )
    print_trials(trials, best, ceiling)
    put(f"took         {took:.1f} of {seconds:g} s")
    setting = best.setting
    words = [f"loader.backend={setting.backend}", f"loader.num_workers={setting.workers}"]
    words += [f"loader.prefetch_factor={setting.prefetch or 'null'}"]
    put(f"to use it    {command_line(*words, f'loader.pin_memory={setting.pin}'.lower())}")


def search(course: Course, ceiling: float, end: float) -> Search:
    """Search until `end`, in seconds of `time.perf_counter`."""
    config, distributed, ranks = course.config, course.config.distributed, 1
    if distributed.strategy != "none":
        ranks = world.default_processes() if distributed.nproc == "auto" else distributed.nproc
    most = config.tune.workers or max(2 * world.usable_cpus() // ranks, 16)
    space = Space(
        backends(course),
        most,
        course.train_step.device.type == "cuda",
        available() // (2 * ranks) or None,
        tree_pss(),
    )
    left = end - time.perf_counter()
    each = max(left / 60, min(12 * ceiling, left / 20))
    with ProgressDisplay("tuning the loader", left, "s") as shown:
        trials = Search(space, Meter(course, end, shown), left, each)
        trials.run()
    return trials


def backends(course: Course) -> list[Backend]:
    """Backends to try besides main; says why threads cannot be used."""
    section = course.config.loader
    if section.worker_init_fn or section.multiprocessing_context:
        return ["process"]
    refusal = course.threads_refused()
    if refusal is None:
        return ["thread", "process"]
    say(f"no threads: {refusal.removeprefix('loader.backend: ')}")
    return ["process"]


class Meter:
    """Measures settings with real training steps, until `end` of `time.perf_counter`.

    It measures whole rounds of the workers, as the batches of each round arrive at once.
    """

    def __init__(self, course: Course, end: float, shown: ProgressDisplay) -> None:
        self._course = course
        self._end = end
        self._shown, self._began = shown, time.perf_counter()

    def __call__(self, setting: Setting, seconds: float) -> Slice:
        """A measurement of about so many seconds."""
        options = options_of(self._course, setting)
        say(f"trying {describe(setting)}")
        try:
            loader = self._course.loader(options)
            with closing(self._course.batches(loader)) as batches:
                return self._measured(loader, batches, max(setting.workers, 1), seconds)
        except ConfigError as error:  # e.g. it cannot be sent to worker processes
            return Slice(0, 0.0, refused=str(error))

    def _measured(
        self, loader: Loader, batches: Generator[Batch], workers: int, seconds: float
    ) -> Slice:
        arrivals: list[float] = []
        waited = 0.0
        asked = time.perf_counter()
        for batch in batches:
            now = time.perf_counter()
            waited += now - asked if arrivals else 0.0
            arrivals.append(now)
            count, spent = len(arrivals) - 1, now - arrivals[0]
            whole = count % workers == 0 and count >= 2 * workers
            if (whole and spent >= seconds) or spent >= 4 * seconds or now >= self._end:
                break
            self._course.train(batch)
            self._shown.to(now - self._began)
            asked = time.perf_counter()
        count = len(arrivals) - 1
        count -= count % workers if count >= workers else 0
        spent = arrivals[count] - arrivals[0]
        share = waited / max(arrivals[-1] - arrivals[0], 1e-9)
        return Slice(count, spent, min(share, 1.0), tree_pss())


def options_of(course: Course, setting: Setting) -> LoaderOptions:
    """The configured options with a setting."""
    changes: dict[str, Any] = {
        "backend": setting.backend,
        "num_workers": setting.workers,
        "pin_memory": setting.pin,
        "prefetch_factor": setting.prefetch or None,
        "persistent_workers": False,
    }
    if setting.backend != "process":
        changes |= {"worker_init_fn": None, "multiprocessing_context": None}
    return fixed(course.options, **changes)


def describe(setting: Setting) -> str:
    """A setting in words."""
    if not setting.workers:
        return "no workers"
    many = "" if setting.workers == 1 else "es" if setting.backend == "process" else "s"
    pinned = ", pinned" if setting.pin else ""
    return f"{setting.workers} {setting.backend}{many}, {setting.prefetch} ahead each{pinned}"


def print_trials(trials: Search, best: Trial, ceiling: float) -> None:
    """Print the trials, the fastest first."""
    table = new_table()
    for name in (
        "backend",
        "workers",
        "prefetch",
        "pinned",
        "batches/s",
        "waiting",
        "memory MiB",
        "measured",
        "",
    ):
        table.add_column(name, justify="left" if name in ("backend", "") else "right")
    for trial in trials.ranked():
        setting = trial.setting
        note = "chosen" if trial is best else trial.refused
        table.add_row(
            setting.backend,
            str(setting.workers),
            str(setting.prefetch or ""),
            "yes" if setting.pin else "",
            f"{trial.rate:,.1f}",
            f"{trial.waited:.0%}",
            f"{trial.memory / _MIB:,.0f}",
            f"{len(trial.slices)} x",
            note,
            style="bold" if trial is best else None,
        )
    put_table(table)
    put(
        f"best         {describe(best.setting)}: {best.rate:,.1f} batches/s, "
        f"{best.rate * ceiling:.0%} of the {1 / ceiling:,.1f} without loading"
    )
