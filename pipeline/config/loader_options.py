"""The section `loader` of a configuration to what a loader is made with.

What is left to choose is chosen here: `backend: auto` by what the transforms can do in threads,
`num_workers: auto` as a search from few workers up, `num_workers: tuned` by what `task=tune` found.
What was chosen for the training split is said in the log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Literal

from pipeline.config import allow_list, tuned
from pipeline.config.schema import Config, LoaderSection
from pipeline.distributed import world
from pipeline.loading.autotune import Auto
from pipeline.loading.memory import available
from pipeline.loading.workers.backends import LoaderOptions
from pipeline.transforms.image import Compose
from pipeline.transforms.image_decoding import decode_step, describe, thread_safe

Backend = Literal["main", "process", "thread"]

_GIB = 2**30
_log = logging.getLogger(__name__)


def make(
    given: LoaderSection, transform: Callable[[], Compose], decodes: bool, *,
    backend: Backend | None = None, climbs: bool = False, ranks: int = 1, says: bool = False,
) -> LoaderOptions:  # fmt: skip
    """The options of a loader.

    Args:
        given: without `num_workers: tuned`; see `with_tuned`.
        transform: gives that of the loader's samples; not asked where it does not matter.
        decodes: whether pictures reach the transforms undecoded.
        backend: overrides that of `given`.
        climbs: whether `num_workers: auto` may change while the loader runs; else, and for what
            has no order of its own, it is one for each core.
        ranks: on this machine, which share its memory.
        says: tell in the log what was chosen.
    """
    backend = backend or _backend(given, transform, decodes, says)
    auto = _bounds(given, ranks) if climbs and _may_climb(given, backend) else None
    count = _count(given) if auto is None else max(1, world.usable_cpus() // 4)
    name = given.worker_init_fn
    return LoaderOptions(
        backend=backend,
        num_workers=count,
        prefetch_factor=given.prefetch_factor,
        persistent_workers=backend == "process" and count > 0
        and given.persistent_workers is not False,
        pin_memory=world.has_accelerator() if given.pin_memory is None else given.pin_memory,
        pin_memory_device=given.pin_memory_device,
        timeout=given.timeout,
        max_deaths=given.max_deaths,
        worker_init_fn=allow_list.resolve(name, "loader.worker_init_fn") if name else None,
        multiprocessing_context=given.multiprocessing_context,
        in_order=given.in_order,
        generator=given.generator,
        auto=auto,
    )  # fmt: skip


def _count(given: LoaderSection) -> int:
    count = given.num_workers
    return count if isinstance(count, int) else world.usable_cpus()


def _may_climb(given: LoaderSection, backend: Backend) -> bool:
    return given.num_workers == "auto" and backend != "main" and given.in_order


def _bounds(given: LoaderSection, ranks: int) -> Auto:
    return Auto(max(2 * world.usable_cpus(), 16), budget(given.max_memory, ranks))


def budget(wanted: float | None, ranks: int = 1) -> int | None:
    """Bytes that a process may take with its workers; None where nobody knows.

    Args:
        wanted: GiB; None takes half of what there is to have.
    """
    if wanted is not None:
        return int(wanted * _GIB)
    return available() // (2 * ranks) or None


def _backend(
    given: LoaderSection, transform: Callable[[], Compose], decodes: bool, says: bool
) -> Backend:
    """`loader.backend`, with the best that can be done here in the place of "auto"."""
    if given.backend != "auto":
        return given.backend
    made = transform()
    step = decode_step(made)
    of_processes = (given.worker_init_fn, given.multiprocessing_context, given.timeout)
    threads = decodes and thread_safe(made) and not any(of_processes)
    if says and given.num_workers != 0:
        what = f", {describe(step)}" if step is not None else ""
        count = "as many" if given.num_workers == "auto" else str(given.num_workers)
        help = " as help" if given.num_workers == "auto" else ""
        _log.info("loader: %s %s%s%s", count, "threads" if threads else "processes", help, what)
    return "thread" if threads else "process"


def found_for(config: Config) -> dict[str, str]:
    """What the best loader of a dataset depends on, by key."""
    shown = config.compared()
    parts = {"batch.size": config.batch.size, "model": shown["model"], "transform":
             shown["transform"], "trainer.precision": config.trainer.precision,
             "trainer.device": world.resolve_device(config.trainer.device)}  # fmt: skip
    return {key: json.dumps(value, sort_keys=True, default=str) for key, value in parts.items()}


def data_of(config: Config, fingerprint: Mapping[str, str]) -> str:
    """What the samples of the training split are read from.

    Args:
        fingerprint: of the split, from `Parts.fingerprint`.
    """
    packed = "" if config.dataset.get("packed") is None else " packed"
    return fingerprint["dataset"] + packed


def with_tuned(config: Config, fingerprint: Mapping[str, str]) -> LoaderSection:
    """The section with what was tuned in the place of `num_workers: tuned`.

    What a person gives besides stays: `loader=tuned loader.prefetch_factor=8`.

    Args:
        fingerprint: of the training split, from `Parts.fingerprint`.

    Raises:
        ConfigError: nothing was tuned.
    """
    given = config.loader
    if given.num_workers != "tuned":
        return given
    path = tuned.place(config.cache_dir, data_of(config, fingerprint))
    found = tuned.load(path)
    changed = found.changed(found_for(config))
    note = f"; for another {', '.join(changed)}: task=tune may find better" if changed else ""
    _log.info("loader: %d workers (%s), tuned on %s%s",
              found.num_workers, found.backend, found.when[:10], note)  # fmt: skip
    values = {
        "backend": found.backend if given.backend == "auto" else given.backend,
        "num_workers": found.num_workers,
        "prefetch_factor": given.prefetch_factor or found.prefetch_factor,
        "pin_memory": found.pin_memory if given.pin_memory is None else given.pin_memory,
    }
    return given.model_copy(update=values)
