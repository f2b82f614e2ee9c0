"""The section `loader` to `LoaderOptions`: the one place where "auto" and null become values.

`backend: auto` goes by whether the data's work can run in threads; `num_workers: auto` is one
worker for each usable core, 16 at most.
"""

from __future__ import annotations

import logging
from dataclasses import fields

from penstock import seams
from penstock.config import allow_list
from penstock.config.schema import LoaderSection
from penstock.distributed import world
from penstock.loading.workers.options import LoaderOptions
from penstock.transforms.image import Compose

_GIB = 2**30
_MOST_WORKERS = 16  # of `auto`
_log = logging.getLogger(__name__)


def worker_count(section: LoaderSection, backend: str) -> int:
    """`loader.num_workers` with a value for "auto"; of Ray, `loader.ray.num_actors`."""
    if backend == "ray" and section.num_workers != 0 and section.ray.num_actors != "auto":
        return section.ray.num_actors
    if isinstance(section.num_workers, int):
        return section.num_workers
    return min(world.usable_cpus(), _MOST_WORKERS)


def resolve(section: LoaderSection, backend: str) -> LoaderOptions:
    """The options of a loader; `backend` as the function of that name tells it."""
    count = worker_count(section, backend)
    kept = backend not in ("main", "thread") and count > 0
    persists = kept and section.persistent_workers is not False
    name = section.worker_init_fn
    resolved = {
        "backend": backend,
        "num_workers": count,
        "persistent_workers": persists,
        "slow_memory": int(section.slow_memory * _GIB),
        "pin_memory": world.has_accelerator() if section.pin_memory is None else section.pin_memory,
        "worker_init_fn": allow_list.resolve(name, "loader.worker_init_fn") if name else None,
        "own": seams.ray_options(section.ray) if backend == "ray" else None,
    }
    same = section.model_dump(include={field.name for field in fields(LoaderOptions)})
    return LoaderOptions(**{**same, **resolved})


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
        kind = "threads" if threads else "processes"
        _log.info("loader: %d %s%s", worker_count(section, section.backend), kind, step)
    return "thread" if threads else "process"
