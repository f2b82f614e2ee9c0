"""What bounds a training run, told from a few measurements, and what to change.

1. Training bounds a run that hardly waits, whatever loading costs; unless its steps take longer
   than they do alone. Then the cores bound it, which workers or other programs take from it.
2. Start-up bounds a run whose workers take long to begin beside all that they do, or whose epochs
   are so short that most waiting is for their first batches.
3. Else the work on a batch tells, measured without workers: if it mostly waits for something but a
   core, the store is slow to answer, and more requests at a time help; if it computes, cores or
   cheaper work help; and if workers idle while the loop waits, what lies between them is at fault.

All times are seconds per batch unless said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Bound = Literal["training", "decoding", "reading", "collate", "transfer", "start-up", "hand-over",
                "cores"]  # fmt: skip

WAITS = 0.1  # share of the time waited from which on a run is not bound by its training
SLOWED = 1.25  # times as long as alone: from here on a step is held up, by whatever
MARGIN = 0.85  # how much of a worker's time can be counted on


@dataclass(frozen=True)
class Measured:
    """What a verdict goes by.

    Attributes:
        samples: in a batch.
        ceiling: training on a batch that is there already.
        pace: a step as configured, once batches come.
        waited: share of that in which the training loop waited.
        waited_at_starts: the part of `waited` that was for the first batches of epochs.
        first: seconds until the first batch came.
        run_steps: steps for which workers, once started, will work.
        computing: work on a batch without workers: on a core, by stage.
        blocked: the same: waiting for something but a core.
        transfer: to the device.
        busy: share of the time in which a worker had work, as configured.
        unevenness: the slowest tenth of the batches, in medians.
        backend, workers, prefetch: as configured.
        cores: that this process may use.
        threads: whether the data can be loaded by threads.
        starved: of a step as configured, what the training loop could have computed in, and had no
            core; 0 where nobody counts it.
    """

    samples: float
    ceiling: float
    pace: float
    waited: float
    waited_at_starts: float
    first: float
    run_steps: int
    computing: Mapping[str, float]
    blocked: float
    transfer: float
    busy: float
    unevenness: float
    backend: str
    workers: int
    prefetch: int
    cores: int
    threads: bool
    starved: float = 0.0

    @property
    def work(self) -> float:
        return sum(self.computing.values()) + self.blocked


@dataclass(frozen=True)
class Verdict:
    """What bounds the run.

    Attributes:
        reason: in words.
        advice: what to change, in words.
        overrides: to paste; empty if there is nothing to change in the loader.
    """

    bound: Bound
    reason: str
    advice: str
    overrides: tuple[str, ...] = ()


def judge(measured: Measured) -> Verdict:
    """What bounds the run, and what to change."""
    total = measured.first + measured.run_steps * measured.pace
    if measured.first > 0.2 * total and measured.first > measured.waited * (total - measured.first):
        return _starting(measured, total)
    if measured.waited >= WAITS and measured.waited_at_starts > 0.5 * measured.waited:
        return _starting_epochs(measured)
    if measured.waited < WAITS or _only_stalls(measured):
        return _training(measured)
    if measured.transfer > 0.5 * measured.waited * measured.pace:
        return Verdict(
            "transfer",
            f"copying a batch to the device takes {_ms(measured.transfer)} of each "
            f"{_ms(measured.pace)}",
            "pin the memory that is copied from, and send bytes in place of floats",
            ("loader.pin_memory=true", "transform.batch_on=device"),
        )
    computing = sum(measured.computing.values())
    if measured.blocked > computing:
        return _reading(measured)
    if measured.computing.get("collate", 0.0) > 0.5 * computing:
        return _collating(measured)
    if _could_keep_up(measured) and measured.busy < 0.6:
        return _handing_over(measured)
    return _decoding(measured, computing)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _only_stalls(measured: Measured) -> bool:
    """Whether the waiting is little, and has nothing to do with how much work batches are."""
    idle = measured.workers > 0 and measured.work / measured.workers < 0.5 * measured.ceiling
    return measured.waited < 2.5 * WAITS and idle and measured.busy < 0.5


def _training(measured: Measured) -> Verdict:
    if measured.pace * (1 - measured.waited) > SLOWED * measured.ceiling or (
        measured.waited < WAITS and measured.pace > SLOWED * measured.ceiling
    ):
        return _sharing(measured)
    reason = (
        f"training takes {_ms(measured.ceiling)} a batch, and the training loop waits for data "
        f"{measured.waited:.0%} of the time"
    )
    if measured.waited >= WAITS:
        return Verdict("training", f"{reason}, now and then: batches come at uneven times",
                       "keep more of them ready",
                       (f"loader.prefetch_factor={2 * measured.prefetch}",))  # fmt: skip
    if measured.workers and measured.work < 0.05 * measured.ceiling:
        return Verdict(
            "training", reason,
            f"making a batch takes {_ms(measured.work)}; that can be done without workers",
            ("loader.num_workers=0",),
        )  # fmt: skip
    return Verdict("training", reason, "leave the loader as it is; make the training step faster")


def _sharing(measured: Measured) -> Verdict:
    """Steps take longer than alone, and not because they wait for data."""
    step = measured.pace * (1 - measured.waited)
    slower, lost = step - measured.ceiling, min(measured.starved, step)
    reason = (
        f"a training step takes {_ms(measured.ceiling)} alone and {_ms(step)} here, and the "
        f"training loop waits for data only {measured.waited:.0%} of the time"
    )
    if lost > 0.3 * slower:
        reason += f"; {_ms(lost)} of the step it could compute and had no core"
    enough = _wanted(measured, sum(measured.computing.values()))
    taken = 1 + measured.workers * measured.busy
    if measured.workers > enough:
        return Verdict("cores", reason, "workers take its cores, and fewer can keep up",
                       (f"loader.num_workers={enough}",))  # fmt: skip
    if measured.workers and taken > measured.cores:
        return Verdict("cores", reason, f"training and {measured.workers} workers share "
                       f"{measured.cores} cores: make the transforms cheaper, or keep what they "
                       "begin with decoded", ("dataset.packed=auto",))  # fmt: skip
    if lost > 0.3 * slower:
        return Verdict("cores", reason, "other programs take the cores: end them, or ask for more "
                       "cores, and profile again")  # fmt: skip
    return Verdict("cores", reason, "loading and training are in each other's way (memory, the "
                   "interpreter's lock, threads of torch), or other programs are: profile again on "
                   "a quiet machine, with fewer workers or another loader.backend")  # fmt: skip


def _starting(measured: Measured, total: float) -> Verdict:
    reason = (
        f"the first batch came after {measured.first:.2f} s, which is {measured.first / total:.0%} "
        "of the time that workers are there for"
    )
    if measured.threads and measured.backend == "process":
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
    if measured.threads and measured.backend == "process":
        way = "threads start sooner; or let epochs be longer, with more samples or a sampler's"
        return Verdict("start-up", reason, f"{way} num_samples", ("loader=threads",))
    return Verdict("start-up", reason, "let epochs be longer")


def _wanted(measured: Measured, work: float) -> int:
    """Workers that would make a batch in the time of a training step."""
    return max(1, math.ceil(work / (MARGIN * measured.ceiling)))


def _could_keep_up(measured: Measured) -> bool:
    return measured.workers > 0 and measured.work / measured.workers < measured.ceiling


def _reading(measured: Measured) -> Verdict:
    wanted = min(_wanted(measured, measured.work), 64)
    wanted = max(wanted, measured.workers + 1 if measured.busy > 0.6 else 1)
    threads = measured.threads and measured.blocked > 3 * sum(measured.computing.values())
    way = ("loader=threads",) if threads and measured.backend != "thread" else ()
    return Verdict(
        "reading",
        f"a batch takes {_ms(measured.work)} to make, of which {_ms(measured.blocked)} are spent "
        "waiting for the data to arrive, with the core free",
        "ask for more at a time: more workers than cores are fine, since they wait",
        (*way, f"loader.num_workers={wanted}"),
    )


def _decoding(measured: Measured, computing: float) -> Verdict:
    stage = max(measured.computing, key=lambda name: measured.computing[name])
    reason = (
        f"a batch takes {_ms(computing)} of a core to make ({_ms(measured.computing[stage])} of it "
        f"in {stage}), and training {_ms(measured.ceiling)}"
    )
    wanted = min(_wanted(measured, computing), measured.cores)
    if measured.workers < wanted:
        return Verdict("decoding", reason, f"let more of the {measured.cores} cores work",
                       (f"loader.num_workers={wanted}",))  # fmt: skip
    if stage == "read":
        return Verdict("decoding", reason, "the cores are busy: decode once and keep the result, "
                       "or decode only what is used", ("dataset.packed=auto",))  # fmt: skip
    return Verdict("decoding", reason, "the cores are busy: make the transforms cheaper (smaller "
                   "pictures sooner, whole batches at once), or keep what they begin with decoded",
                   ("dataset.packed=auto",))  # fmt: skip


def _collating(measured: Measured) -> Verdict:
    reason = f"putting samples together takes {_ms(measured.computing['collate'])} a batch"
    if measured.threads and measured.backend == "process":
        return Verdict("collate", reason, "threads hand batches over without a copy",
                       ("loader=threads",))  # fmt: skip
    return Verdict("collate", reason, "let samples be smaller: bytes, which become floats as a "
                   "whole batch, where they are used", ("transform.batch_on=device",))  # fmt: skip


def _handing_over(measured: Measured) -> Verdict:
    reason = (
        f"workers are busy {measured.busy:.0%} of the time, and still the training loop waits "
        f"{measured.waited:.0%} of it"
    )
    if measured.unevenness > 2.5:
        return Verdict("hand-over", f"{reason}: some batches take {measured.unevenness:.1f} times "
                       "as long as most", "keep more batches ready",
                       (f"loader.prefetch_factor={max(8, 2 * measured.prefetch)}",))  # fmt: skip
    if measured.threads and measured.backend == "process":
        return Verdict("hand-over", f"{reason}: batches are large to send", "threads hand them "
                       "over without a copy", ("loader=threads",))  # fmt: skip
    return Verdict("hand-over", reason, "keep more batches ready",
                   (f"loader.prefetch_factor={max(4, 2 * measured.prefetch)}",))  # fmt: skip
