"""Who makes the batches of a loader, and how far ahead: the section `loader` to `LoaderOptions`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from penstock.distributed import world
from penstock.errors import ConfigError, Problem

_MOST_WORKERS = 16  # of `auto`
# What only worker processes have, and what all workers have.
_OF_PROCESSES = ("timeout", "worker_init_fn", "multiprocessing_context", "persistent_workers")
_OF_WORKERS = ("prefetch_factor", *_OF_PROCESSES)


@dataclass(frozen=True)
class LoaderOptions:
    """Who works, and how far ahead.

    All but `backend` and `max_deaths` have torch's names and meanings, except that workers which
    die or hang are replaced.

    Attributes:
        backend: "main", "process", "thread", or one of an add-on; with no workers it is "main".
        num_workers: processes, threads or actors, per rank.
        prefetch_factor: batches each worker is ahead.
        timeout: seconds without a sign of life from a worker (a sample begun, a stage) after which
            it hangs; 0 waits for ever, for debuggers.
        max_deaths: of worker processes at one address, after which the run stops.
        batch_timeout: seconds without a batch, while one is waited for, after which the run ends,
            like torch's `timeout`; 0 waits for ever.
        generator: seed of the generator that worker seeds are drawn from; None derives it from the
            run's. No batch depends on it.
        slow_memory: bytes of batches that may wait, beyond the window, behind a slow one.
        own: what else the backend takes, where an add-on brings it.
    """

    backend: str = "main"
    num_workers: int = 0
    prefetch_factor: int = 2
    persistent_workers: bool = False
    pin_memory: bool = False
    timeout: float = 120.0
    batch_timeout: float = 0.0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: str | None = None
    in_order: bool = True
    generator: int | None = None
    max_deaths: int = 3
    slow_memory: int = 256 << 20
    own: object = None


def check(section: Any) -> None:
    """Raise ConfigError for options of a section `loader` that torch's DataLoader refuses too."""
    none = section.backend == "main" or section.num_workers == 0
    refused = _OF_WORKERS if none else _OF_PROCESSES if section.backend == "thread" else ()
    what = "workers" if none else "worker processes"
    problems = [
        Problem(
            f"loader.{name}",
            f"{value!r} needs {what}, and loader.backend={section.backend} with "
            f"loader.num_workers={section.num_workers} has none; leave it out, or set "
            "loader.backend=process and loader.num_workers=1 or more",
        )
        for name in refused
        if (value := getattr(section, name))
    ]
    if problems:
        raise ConfigError(problems)


def options_of(
    section: Any, threads: bool, worker_init_fn: Callable[[int], None] | None, own: Any
) -> LoaderOptions:
    """The options of a section `loader`, with values for "auto" and null.

    Args:
        threads: "auto" is threads, unless an option needs processes.
        worker_init_fn: what the name in the section stands for.
        own: of an add-on's backend.

    Raises:
        ConfigError: as `check`.
    """
    check(section)
    backend, count = section.backend, section.num_workers
    if backend == "auto":
        processes = worker_init_fn or section.multiprocessing_context or section.timeout
        backend = "thread" if threads and not processes else "process"
    if count == "auto":
        count = min(world.usable_cpus(), _MOST_WORKERS)
    kept, pins = backend not in ("main", "thread") and count > 0, section.pin_memory
    values = section.model_dump(include={field.name for field in fields(LoaderOptions)}) | {
        "backend": backend,
        "num_workers": count,
        "prefetch_factor": section.prefetch_factor or LoaderOptions.prefetch_factor,
        "timeout": LoaderOptions.timeout if section.timeout is None else section.timeout,
        "persistent_workers": kept and section.persistent_workers is not False,
        "slow_memory": int(section.slow_memory * 2**30),
        "pin_memory": world.has_accelerator() if pins is None else pins,
        "worker_init_fn": worker_init_fn,
        "own": own,
    }
    return LoaderOptions(**values)
