"""What Penstock uses of torch that is not public there; everything of the kind is in this file.

    ExceptionWrapper, pin_memory    as torch's own workers and pinning use them
    worker_info                     what `torch.utils.data.get_worker_info()` answers, for a while
    numpy_seed                      how torch seeds numpy in a worker
    shared_storage, share_by        CPU memory that other processes can map; who makes it
    map_descriptor, descriptor_of   the memory behind a descriptor, and the other way round
    DRAWING                         functions behind `torch.distributions` that draw
    scale                           many tensors times a number, in one call

Tested with torch 2.15. With a torch that lacks one of them, importing this file says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

try:
    from torch._utils import ExceptionWrapper
    from torch.utils.data._utils import worker as _worker
    from torch.utils.data._utils.pin_memory import pin_memory

    WorkerInfo = _worker.WorkerInfo
    DRAWING: tuple[Any, ...] = (torch._standard_gamma, torch._sample_dirichlet)
    _numpy_state = _worker._generate_state
    _new_shared: Any = torch.UntypedStorage._new_shared.__func__  # type: ignore[attr-defined]
    _map: Any = torch.UntypedStorage._new_shared_fd_cpu  # type: ignore[attr-defined]
    _descriptor: Any = torch.UntypedStorage._share_fd_cpu_
    _scale: Any = torch._foreach_mul_
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"torch {torch.__version__} is other inside than 2.15, with which Penstock was tested: "
        f"{error}. Install that version, or a newer Penstock"
    ) from error

__all__ = [
    "DRAWING", "ExceptionWrapper", "WorkerInfo", "descriptor_of", "map_descriptor", "numpy_seed",
    "pin_memory", "scale", "share_by", "shared_storage", "worker_info",
]  # fmt: skip


@contextmanager
def worker_info(info: Any) -> Iterator[None]:
    """Let `get_worker_info()` answer `info` in this process; None: that this is no worker."""
    kept = _worker._worker_info
    _worker._worker_info = info
    try:
        yield
    finally:
        _worker._worker_info = kept


def numpy_seed(seed: int, worker: int) -> Any:
    """What torch's workers seed numpy with."""
    return _numpy_state(seed, worker)


def shared_storage(size: int) -> Any:
    """CPU memory of `size` bytes, uninitialised, that other processes can map."""
    return torch.UntypedStorage._new_shared(size, device="cpu")


def share_by(make: Callable[[int], Any]) -> None:
    """Let `make(size)` give all of torch's own shared CPU memory in this process.

    Where torch's sharing strategy is not "file_descriptor", torch goes on by itself.
    """

    def made(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        strategy = torch.multiprocessing.get_sharing_strategy()
        if size and strategy == "file_descriptor" and torch.device(device).type == "cpu":
            return make(size)
        return _new_shared(cls, size, device=device)

    torch.UntypedStorage._new_shared = classmethod(made)  # type: ignore[assignment]


def map_descriptor(descriptor: int, size: int) -> torch.UntypedStorage:
    """The memory behind a descriptor, which may be closed afterwards."""
    storage: torch.UntypedStorage = _map(descriptor, size)
    return storage


def descriptor_of(storage: torch.UntypedStorage) -> int:
    """The descriptor of shared CPU memory; the storage keeps it open."""
    descriptor: int = _descriptor(storage)[0]
    return descriptor


def scale(tensors: Sequence[Tensor], factor: float | Tensor) -> None:
    """Multiply all tensors by `factor` in place."""
    _scale(tensors, factor)
