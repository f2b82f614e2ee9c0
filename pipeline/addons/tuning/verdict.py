"""The bottleneck of a training run, judged from a few measurements, and what to change.

Training, if the run hardly waits, or the cores, if its steps take longer than alone; start-up, if
that is long, or most waiting is at the start of epochs; otherwise what the work on a batch,
measured without workers, mostly consists of. All times are seconds per batch unless said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from penstock.loading.stage_timer import WAITS, slower_side

Bound = Literal[
    "training", "decoding", "reading", "collate", "transfer", "start-up", "hand-over", "cores"
]

SLOWED = 1.25  # times as long as alone from which on a step counts as slowed
MARGIN = 0.85  # usable share of a worker's time


@dataclass(frozen=True)
class Measured:
    """The measurements that a verdict is based on."""

    samples: float  # in a batch
    ceiling: float  # training on a cached batch
    pace: float  # a step as configured, once batches come
    waited: float  # share of that in which the training loop waited
    waited_at_starts: float  # the part of `waited` for the first batches of epochs
    first: float  # seconds until the first batch came
    run_steps: int  # steps for which workers, once started, will work
    computing: Mapping[str, float]  # work on a batch without workers: on a core, by stage
    blocked: float  # the same: waiting, but not for a core
    transfer: float  # to the device
    busy: float  # share of the time in which a worker had work, as configured
    unevenness: float  # the slowest tenth of the batches, in medians
    backend: str
    workers: int
    prefetch: int
    cores: int  # that this process may use
    threads: bool  # whether threads can load the data
    starved: float = 0.0  # of a step: time that the training loop could use, but had no core

    @property
    def work(self) -> float:
        return sum(self.computing.values()) + self.blocked

    @property
    def could_be_threads(self) -> bool:
        return self.threads and self.backend == "process"


@dataclass(frozen=True)
class Verdict:
    """The bottleneck of a run, why, and what to change, in words and as overrides to paste."""

    bound: Bound
    reason: str
    advice: str
    overrides: tuple[str, ...] = ()


def judge(measured: Measured) -> Verdict:
    """The bottleneck, and what to change."""
    total = measured.first + measured.run_steps * measured.pace
    if measured.first > 0.2 * total and measured.first > measured.waited * (total - measured.first):
        return _starting(measured, total)
    if measured.waited >= WAITS and measured.waited_at_starts > 0.5 * measured.waited:
        return _starting_epochs(measured)
    waits = measured.waited >= WAITS
    if waits and measured.transfer > 0.5 * measured.waited * measured.pace:
        return Verdict(
            "transfer",
            f"copying a batch to the device takes {_ms(measured.transfer)} of each "
            f"{_ms(measured.pace)}",
            "pin the memory of batches, and send bytes instead of floats",
            ("loader.pin_memory=true", "transform.batch_on=device"),
        )
    side = slower_side(
        measured.waited, measured.work, measured.ceiling, measured.workers, measured.busy
    )
    if side == "training":
        return _training(measured)
    computing = sum(measured.computing.values())
    if measured.blocked > computing:
        return _reading(measured)
    if measured.computing.get("collate", 0.0) > 0.5 * computing:
        reason = f"putting samples together takes {_ms(measured.computing['collate'])} a batch"
        if measured.could_be_threads:
            return Verdict(
                "collate", reason, "threads hand batches over without a copy", ("loader=threads",)
            )
        return Verdict(
            "collate",
            reason,
            "make samples smaller: bytes, converted to floats as whole batches on the device",
            ("transform.batch_on=device",),
        )
    if side == "neither":
        return _handing_over(measured)
    return _decoding(measured, computing)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _training(measured: Measured) -> Verdict:
    if measured.pace * (1 - measured.waited) > SLOWED * measured.ceiling or (
        measured.waited < WAITS and measured.pace > SLOWED * measured.ceiling
    ):
        return _sharing(measured)
    reason = (
        f"training takes {_ms(measured.ceiling)} a batch, and the training loop waits for data "
        f"{measured.waited:.0%} of the time"
    )
    if measured.waited >= WAITS and not measured.workers:
        workers = min(_wanted(measured, measured.work), measured.cores)
        return Verdict(
            "training",
            f"{reason}, as it makes the batches itself",
            "let workers make them meanwhile",
            (f"loader.num_workers={workers}",),
        )
    if measured.waited >= WAITS:
        return Verdict(
            "training",
            f"{reason}, now and then: batches come at uneven times",
            "keep more of them ready",
            (f"loader.prefetch_factor={2 * measured.prefetch}",),
        )
    if measured.workers and measured.work < 0.05 * measured.ceiling:
        return Verdict(
            "training",
            reason,
            f"making a batch takes {_ms(measured.work)}; that can be done without workers",
            ("loader.num_workers=0",),
        )
    return Verdict("training", reason, "leave the loader as it is; make the training step faster")


def _sharing(measured: Measured) -> Verdict:
    """Steps take longer than alone, but don't wait for data."""
    step = measured.pace * (1 - measured.waited)
    slower, lost = step - measured.ceiling, min(measured.starved, step)
    reason = (
        f"a training step takes {_ms(measured.ceiling)} alone and {_ms(step)} here, and the "
        f"training loop waits for data only {measured.waited:.0%} of the time"
    )
    if lost > 0.3 * slower:
        reason += f"; for {_ms(lost)} of the step it had no core"
    enough = _wanted(measured, sum(measured.computing.values()))
    taken = 1 + measured.workers * measured.busy
    if measured.workers > enough:
        return Verdict(
            "cores",
            reason,
            "workers take its cores, and fewer can keep up",
            (f"loader.num_workers={enough}",),
        )
    if measured.workers and taken > measured.cores:
        return Verdict(
            "cores",
            reason,
            f"training and {measured.workers} workers share "
            f"{measured.cores} cores: make the transforms cheaper, or keep what they "
            "begin with decoded",
            ("dataset.packed=auto",),
        )
    if lost > 0.3 * slower:
        return Verdict(
            "cores",
            reason,
            "other programs take the cores: end them, or ask for more cores, and profile again",
        )
    return Verdict(
        "cores",
        reason,
        "loading and training are in each other's way (memory, the "
        "interpreter's lock, threads of torch), or other programs are: profile again on "
        "a quiet machine, with fewer workers or another loader.backend",
    )


def _starting(measured: Measured, total: float) -> Verdict:
    reason = (
        f"the first batch came after {measured.first:.2f} s, which is {measured.first / total:.0%} "
        "of the time that workers are there for"
    )
    if measured.could_be_threads:
        return Verdict("start-up", reason, "threads start at once", ("loader=threads",))
    if measured.workers:
        few = "fewer workers start sooner, and the training loop itself at once"
        return Verdict("start-up", reason, few, ("loader.num_workers=0",))
    return Verdict("start-up", reason, "opening the data takes that long; the rest is short")


def _starting_epochs(measured: Measured) -> Verdict:
    reason = (
        f"of the {measured.waited:.0%} of the time that the training loop waits, "
        f"{measured.waited_at_starts:.0%} are at the beginning of epochs, where no batch is ready"
    )
    if measured.could_be_threads:
        way = "threads start sooner; or let epochs be longer, with more samples or a sampler's"
        return Verdict("start-up", reason, f"{way} num_samples", ("loader=threads",))
    return Verdict("start-up", reason, "let epochs be longer")


def _wanted(measured: Measured, work: float) -> int:
    """Workers that would make a batch in the time of a training step."""
    return max(1, math.ceil(work / (MARGIN * measured.ceiling)))


def _reading(measured: Measured) -> Verdict:
    workers = min(_wanted(measured, measured.work), 64)
    workers = max(workers, measured.workers + 1 if measured.busy > 0.6 else 1)
    threads = measured.threads and measured.blocked > 3 * sum(measured.computing.values())
    way = ("loader=threads",) if threads and measured.backend != "thread" else ()
    return Verdict(
        "reading",
        f"a batch takes {_ms(measured.work)} to make, of which {_ms(measured.blocked)} are spent "
        "waiting for the data to arrive, with the core free",
        "ask for more at a time: more workers than cores are fine, since they wait",
        (*way, f"loader.num_workers={workers}"),
    )


def _decoding(measured: Measured, computing: float) -> Verdict:
    stage = max(measured.computing, key=lambda name: measured.computing[name])
    reason = (
        f"a batch takes {_ms(computing)} of a core to make ({_ms(measured.computing[stage])} of it "
        f"in {stage}), and training {_ms(measured.ceiling)}"
    )
    workers = min(_wanted(measured, computing), measured.cores)
    if measured.workers < workers:
        return Verdict(
            "decoding",
            reason,
            f"let more of the {measured.cores} cores work",
            (f"loader.num_workers={workers}",),
        )
    if stage == "read":
        return Verdict(
            "decoding",
            reason,
            "the cores are busy: decode once and keep the result, or decode only what is used",
            ("dataset.packed=auto",),
        )
    return Verdict(
        "decoding",
        reason,
        "the cores are busy: make the transforms cheaper (smaller "
        "pictures sooner, whole batches at once), or keep what they begin with decoded",
        ("dataset.packed=auto",),
    )


def _handing_over(measured: Measured) -> Verdict:
    reason = (
        f"workers are busy {measured.busy:.0%} of the time, and still the training loop waits "
        f"{measured.waited:.0%} of it"
    )
    if measured.unevenness > 2.5:
        return Verdict(
            "hand-over",
            f"{reason}: some batches take {measured.unevenness:.1f} times as long as most",
            "keep more batches ready",
            (f"loader.prefetch_factor={max(8, 2 * measured.prefetch)}",),
        )
    if measured.could_be_threads:
        return Verdict(
            "hand-over",
            f"{reason}: batches are large to send",
            "threads hand them over without a copy",
            ("loader=threads",),
        )
    return Verdict(
        "hand-over",
        reason,
        "keep more batches ready",
        (f"loader.prefetch_factor={max(4, 2 * measured.prefetch)}",),
    )
