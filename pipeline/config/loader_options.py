"""The section `loader` to `LoaderOptions`: the one place where "auto" and null become values.

`backend: auto` goes by whether the data's work can run in threads, `num_workers: auto` becomes a
search that begins with few workers. `num_workers: tuned` is settled before (`config/tuned.py`).
"""

from __future__ import annotations

import logging
from dataclasses import fields

from penstock.config import allow_list
from penstock.config.schema import LoaderSection
from penstock.config.sections import BackendSection
from penstock.distributed import world
from penstock.loading.memory import available, of_a_batch
from penstock.loading.workers.options import LoaderOptions
from penstock.transforms.image import Compose

_GIB = 2**30
_log = logging.getLogger(__name__)


def resolve(section: LoaderSection, backend: str, may_grow: bool, ranks: int = 1) -> LoaderOptions:
    """The options of a loader.

    Args:
        backend: see `backend`.
        may_grow: whether `num_workers: auto` may change while the loader runs; if not, it is one
            worker per core.
        ranks: on this machine, which share its memory.
    """
    cores, auto = world.usable_cpus(), None
    count = section.num_workers if isinstance(section.num_workers, int) else cores
    own = section.option(backend)
    if isinstance(own, BackendSection):
        count = own.workers(count)
    grows = may_grow and section.in_order and backend in ("process", "thread")
    if section.num_workers == "auto" and grows:
        from penstock.loading.autotune import Auto

        auto = Auto(max(2 * cores, 16), budget(section.max_memory, ranks))
        count = max(1, cores // 4)
    kept = backend not in ("main", "thread") and count > 0
    persists = kept and section.persistent_workers is not False
    name = section.worker_init_fn
    resolved = {
        "backend": backend,
        "num_workers": count,
        "auto": auto,
        "persistent_workers": persists,
        "slow_memory": int(section.slow_memory * _GIB),
        "pin_memory": world.has_accelerator() if section.pin_memory is None else section.pin_memory,
        "worker_init_fn": allow_list.resolve(name, "loader.worker_init_fn") if name else None,
        "own": own.of_loader() if isinstance(own, BackendSection) else None,
    }
    same = section.model_dump(include={field.name for field in fields(LoaderOptions)})
    return LoaderOptions(**{**same, **resolved})


def batch_bytes(section: LoaderSection, ranks: int) -> int:
    """`limits.batch_bytes` where it is null.

    Args:
        ranks: of this machine.
    """
    # `auto` may have more workers than cores later; then `loader.max_memory` bounds them.
    count = section.num_workers if isinstance(section.num_workers, int) else world.usable_cpus()
    own = section.option(section.backend)
    if isinstance(own, BackendSection):
        count = own.workers(count)
    workers = 0 if section.backend == "main" else count
    return of_a_batch(workers, section.prefetch_factor or 2, ranks * world.jobs_at_once())


def budget(asked: float | None, ranks: int = 1) -> int | None:
    """Bytes that a process may take with its workers; None if the machine does not tell.

    Args:
        asked: GiB; None takes half of what is available.
    """
    if asked is not None:
        return int(asked * _GIB)
    return available() // (2 * ranks * world.jobs_at_once()) or None


def backend(
    section: LoaderSection, transform: Compose, decodes: bool, gathers: bool, log: bool = False
) -> str:
    """`loader.backend`; "auto" is threads where they may decode or gather, else processes.

    Args:
        transform: of the samples.
        decodes: whether images reach the transforms undecoded.
        gathers: whether the dataset makes whole batches, and nothing follows; sending a batch from
            another process costs more than that.
        log: what was chosen.
    """
    if section.backend != "auto":
        return section.backend
    of_processes = (section.worker_init_fn, section.multiprocessing_context, section.timeout)
    step, threads = "", gathers and not any(of_processes)
    if decodes:
        from penstock.transforms.image_decoding import decode_step, describe, thread_safe

        decode = decode_step(transform)
        step = "" if decode is None else f", {describe(decode)}"
        threads = thread_safe(transform) and not any(of_processes)
    if log and section.num_workers != 0:
        grows = section.num_workers == "auto"
        _log.info(
            "loader: %s %s%s%s",
            "as many" if grows else section.num_workers,
            "threads" if threads else "processes",
            " as help" if grows else "",
            step,
        )
    return "thread" if threads else "process"
