"""Whether profile, tune and auto are right, in the three built cases.

    PYTHONPATH=. python benchmarks/tuning.py [--seconds 30] [--rounds 5] [--case latency]

For each case (benchmarks/built_cases.py), with real training steps:

    profile   what it says the default loader is bound by
    tune      how long it takes of its budget; what it chooses against the best of a grid of
              all settings, the two measured once more in turns
    auto      batches/s after 200 batches, against the tuned loader, in turns
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from itertools import product

import penstock
from benchmarks import built_cases
from penstock.addons.tuning import profile, tune, verdict
from penstock.addons.tuning.measuring import Course, fixed, steps_of
from penstock.addons.tuning.search import Setting
from penstock.loading.autotune import Auto

GRID_WORKERS = (1, 2, 3, 4, 6, 8, 12, 16)
AFTER = 200  # batches that auto has to find its way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="budget of a search")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice", type=float, default=0.5, help="seconds of a measurement")
    parser.add_argument("--case", action="append", choices=list(built_cases.CASES))
    args = parser.parse_args()
    os.environ["PENSTOCK_TRUST"] = "benchmarks"
    with tempfile.TemporaryDirectory() as cache:
        for case in args.case or built_cases.CASES:
            given = built_cases.overrides(case, "benchmarks.built_cases")
            config = penstock.compose(*given, f"cache_dir={cache}", "task=tune")
            measure(case, Course(config), args)


def measure(case: str, course: Course, args: argparse.Namespace) -> None:
    print(f"\n{case}")
    print(f"  profile   bound by {profiled(course)}")
    ceiling = course.step_seconds(40)
    began = time.perf_counter()
    found = tune.search(course, ceiling, began + args.seconds)
    took = time.perf_counter() - began
    chosen = found.choice().setting
    best = grid(course, args)
    ours, theirs = duel(course, chosen, best, args)
    print(
        f"  tune      {took:.1f} of {args.seconds:g} s; {tune.describe(chosen)}: {ours:.1f} "
        f"batches/s; best of the grid, {tune.describe(best)}: {theirs:.1f}; "
        f"ratio {ours / theirs:.3f}; without loading {1 / ceiling:.1f}"
    )
    automatic, tuned = climbs(course, chosen, args)
    print(
        f"  auto      {automatic:.1f} batches/s after {AFTER} batches, tuned {tuned:.1f}; "
        f"ratio {automatic / tuned:.3f}",
        flush=True,
    )


def profiled(course: Course) -> str:
    ceiling = course.step_seconds(40)
    options = course.options
    alone = profile.record(course, fixed(options, **profile.ALONE), 40)
    configured = profile.record(course, None, 40)
    measured = profile.measure(course, ceiling, alone, configured, options)
    found = verdict.judge(measured)
    return f"{found.bound} ({' '.join(found.overrides) or 'nothing to change'})"


def grid(course: Course, args: argparse.Namespace) -> Setting:
    """The fastest of all settings: each in turns, then the fastest five once more."""
    settings = [Setting(0, 0, "main")]
    for backend, workers, prefetch in product(("thread", "process"), GRID_WORKERS, (2, 4)):
        settings.append(Setting(workers, prefetch, backend))
    rates: dict[Setting, list[float]] = {setting: [] for setting in settings}
    epoch_metrics = tune.Meter(course, float("inf"))
    for rounds, among in ((2, settings), (args.rounds, None)):
        chosen = among or sorted(settings, key=lambda one: -statistics.median(rates[one]))[:5]
        for _ in range(rounds):
            for setting in chosen:
                found = epoch_metrics(setting, args.slice)
                rates[setting].append(found.batches / found.seconds)
    return max(chosen, key=lambda one: statistics.median(rates[one]))


def duel(
    course: Course, ours: Setting, theirs: Setting, args: argparse.Namespace
) -> tuple[float, float]:
    epoch_metrics = tune.Meter(course, float("inf"))
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(args.rounds):
        for setting, kept in zip((ours, theirs), rates, strict=True):
            found = epoch_metrics(setting, 2 * args.slice)
            kept.append(found.batches / found.seconds)
    return statistics.median(rates[0]), statistics.median(rates[1])


def climbs(course: Course, setting: Setting, args: argparse.Namespace) -> tuple[float, float]:
    """Batches/s of auto, in the backend that was chosen, and of the chosen setting."""
    setting = Setting(1, 2, "process") if setting.backend == "main" else setting
    options = tune.options_of(course, setting)
    bounds = Auto(max(GRID_WORKERS))
    automatic = fixed(options, num_workers=1, prefetch_factor=None)
    automatic = type(options)(**{**vars(automatic), "auto": bounds})
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(args.rounds):
        for one, kept in zip((automatic, options), rates, strict=True):
            steps = steps_of(course, course.batches(course.loader(one)), AFTER + 150)[AFTER:]
            kept.append((len(steps) - 1) / (steps[-1].came - steps[0].came))
    return statistics.median(rates[0]), statistics.median(rates[1])


if __name__ == "__main__":
    main()
