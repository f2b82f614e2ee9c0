"""Who makes the batches of a loader, and how far ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

DEFAULT_TIMEOUT = 300.0
SLOW_MEMORY = 256 << 20


@dataclass(frozen=True)
class LoaderOptions:
    """Who works, and how far ahead.

    All but `backend` and `max_deaths` have torch's names and meanings, except that workers which
    die or hang are replaced.

    Attributes:
        backend: "main", "process", "thread", or one of an add-on; with no workers it is "main".
        num_workers: processes, threads or actors, per rank.
        prefetch_factor: batches each worker is ahead; None is torch's 2.
        timeout: seconds without a sign of life from a worker (a sample begun, a stage) after which
            it hangs; None is DEFAULT_TIMEOUT, 0 waits for ever, for debuggers.
        max_deaths: of worker processes at one address, after which the run stops.
        batch_timeout: seconds without a batch, while one is waited for, after which the run ends,
            like torch's `timeout`; 0 waits for ever.
        generator: seed of the generator that worker seeds are drawn from; None derives it from the
            run's. No batch depends on it unless `keyed` is False.
        keyed: seed the generators for each sample. If False, draws are torch's: in this process
            from the generators as they are, in worker processes from `generator` plus the worker's
            number on.
        slow_memory: bytes of batches that may wait, beyond the window, behind a slow one.
        own: what else the backend takes, where an add-on brings it.
    """

    backend: str = "main"
    num_workers: int = 0
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory: bool = False
    timeout: float | None = None
    batch_timeout: float = 0.0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: str | None = None
    in_order: bool = True
    generator: int | None = None
    keyed: bool = True
    max_deaths: int = 3
    slow_memory: int = SLOW_MEMORY
    own: object = None

    @property
    def limit(self) -> float:
        """`timeout` with its default."""
        return DEFAULT_TIMEOUT if self.timeout is None else self.timeout

    @property
    def ahead(self) -> int:
        """Batches that each worker is ahead."""
        return self.prefetch_factor or 2
