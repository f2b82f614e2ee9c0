"""The section `loader` to `LoaderOptions`: the one place where "auto" and null become values.

`backend: auto` goes by whether the transforms can run in threads, `num_workers: auto` becomes a
search that begins with few workers. `num_workers: tuned` is settled before (`config/tuned.py`).
"""

from __future__ import annotations

import logging
from dataclasses import fields

from penstock.config import allow_list
from penstock.config.schema import LoaderSection
from penstock.config.sections import BackendSection
from penstock.distributed import world
from penstock.loading.autotune import Auto
from penstock.loading.memory import available, of_a_batch
from penstock.loading.workers.options import LoaderOptions
from penstock.transforms.image import Compose
from penstock.transforms.image_decoding import decode_step, describe, thread_safe

_GIB = 2**30
_log = logging.getLogger(__name__)


def resolve(given: LoaderSection, backend: str, may_grow: bool, ranks: int = 1) -> LoaderOptions:
    """The options of a loader.

    Args:
        backend: see `backend`.
        may_grow: whether `num_workers: auto` may change while the loader runs; if not, it is one
            worker per core.
        ranks: on this machine, which share its memory.
    """
    cores, auto = world.usable_cpus(), None
    count = given.num_workers if isinstance(given.num_workers, int) else cores
    own = given.option(backend)
    if isinstance(own, BackendSection):
        count = own.workers(count)
    grows = may_grow and given.in_order and backend in ("process", "thread")
    if given.num_workers == "auto" and grows:
        auto = Auto(max(2 * cores, 16), budget(given.max_memory, ranks))
        count = max(1, cores // 4)
    kept = backend not in ("main", "thread") and count > 0
    persists = kept and given.persistent_workers is not False
    name = given.worker_init_fn
    resolved = {
        "backend": backend,
        "num_workers": count,
        "auto": auto,
        "persistent_workers": persists,
        "slow_memory": int(given.slow_memory * _GIB),
        "pin_memory": world.has_accelerator() if given.pin_memory is None else given.pin_memory,
        "worker_init_fn": allow_list.resolve(name, "loader.worker_init_fn") if name else None,
        "own": own.of_loader() if isinstance(own, BackendSection) else None,
    }
    same = given.model_dump(include={field.name for field in fields(LoaderOptions)})
    return LoaderOptions(**{**same, **resolved})


def batch_bytes(given: LoaderSection, ranks: int) -> int:
    """`limits.batch_bytes` where it is null.

    Args:
        ranks: of this machine.
    """
    # `auto` may have more workers than cores later; then `loader.max_memory` bounds them.
    count = given.num_workers if isinstance(given.num_workers, int) else world.usable_cpus()
    own = given.option(given.backend)
    if isinstance(own, BackendSection):
        count = own.workers(count)
    workers = 0 if given.backend == "main" else count
    return of_a_batch(workers, given.prefetch_factor or 2, ranks * world.jobs_at_once())


def budget(wanted: float | None, ranks: int = 1) -> int | None:
    """Bytes that a process may take with its workers; None if the machine does not tell.

    Args:
        wanted: GiB; None takes half of what is available.
    """
    if wanted is not None:
        return int(wanted * _GIB)
    return available() // (2 * ranks * world.jobs_at_once()) or None


def backend(given: LoaderSection, transform: Compose, decodes: bool, log: bool = False) -> str:
    """`loader.backend`; "auto" is threads where they may decode, else processes.

    Args:
        transform: of the samples.
        decodes: whether images reach the transforms undecoded.
        log: what was chosen.
    """
    if given.backend != "auto":
        return given.backend
    step = decode_step(transform)
    of_processes = (given.worker_init_fn, given.multiprocessing_context, given.timeout)
    threads = decodes and thread_safe(transform) and not any(of_processes)
    if log and given.num_workers != 0:
        grows = given.num_workers == "auto"
        _log.info(
            "loader: %s %s%s%s",
            "as many" if grows else given.num_workers,
            "threads" if threads else "processes",
            " as help" if grows else "",
            f", {describe(step)}" if step is not None else "",
        )
    return "thread" if threads else "process"
