"""The parts of torch that Penstock uses and that are not public.

    ExceptionWrapper, wrap_exception, pin_memory    as torch's own workers and pinning use them
    worker_info                     sets the answer of `torch.utils.data.get_worker_info()`
    numpy_seed                      (seed, worker) -> what torch's workers seed numpy with
    shared_storage, share_by        CPU memory that other processes can map; who makes it
    map_descriptor, descriptor_of   the memory behind a descriptor, and the reverse
    DRAWING                         functions behind `torch.distributions` that draw
    scale                           multiplies tensors by a number in place, in one call
    register_pytree_node            lets `tree_map` look into a class

Tested with torch 2.15. With a torch that lacks one of them, importing this file says which.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

try:
    from torch._utils import ExceptionWrapper
    from torch.utils._pytree import register_pytree_node
    from torch.utils.data._utils import worker as _worker
    from torch.utils.data._utils.pin_memory import pin_memory

    WorkerInfo = _worker.WorkerInfo
    DRAWING: tuple[object, ...] = (torch._standard_gamma, torch._sample_dirichlet)
    numpy_seed: Any = _worker._generate_state
    scale: Any = torch._foreach_mul_
    # A descriptor may be closed once it is mapped.
    map_descriptor: Callable[[int, int], torch.UntypedStorage]
    map_descriptor = torch.UntypedStorage._new_shared_fd_cpu  # type: ignore[attr-defined]
    _new_shared: Any = torch.UntypedStorage._new_shared.__func__  # type: ignore[attr-defined]
    _descriptor: Any = torch.UntypedStorage._share_fd_cpu_
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"torch {torch.__version__} differs inside from 2.15, which Penstock was tested with: "
        f"{error}. Install that version, or a newer Penstock"
    ) from error

__all__ = [
    "DRAWING",
    "ExceptionWrapper",
    "WorkerInfo",
    "descriptor_of",
    "map_descriptor",
    "numpy_seed",
    "pin_memory",
    "register_pytree_node",
    "scale",
    "share_by",
    "shared_storage",
    "worker_info",
    "wrap_exception",
]


def wrap_exception(error: BaseException, where: str) -> ExceptionWrapper:
    """An error as it travels to the process that raises it again: its type and its text.

    A type that cannot be sent, or made of a text, becomes RuntimeError: torch's wrapper would raise
    an error about the type, and lose the text. So does SystemExit, which would end that process.
    """
    wrapper: Any = ExceptionWrapper((type(error), error, error.__traceback__), where=where)
    try:
        pickle.dumps(wrapper.exc_type)
        if getattr(wrapper.exc_type, "message", None):  # to which the wrapper gives the text
            wrapper.exc_type(message="")
    except Exception:
        wrapper.exc_type = RuntimeError
    if not isinstance(error, Exception):
        wrapper.exc_type = RuntimeError
    return wrapper


@contextmanager
def worker_info(info: Any) -> Iterator[None]:
    """Let `get_worker_info()` answer `info` in this process; None means no worker."""
    kept = _worker._worker_info
    _worker._worker_info = info
    try:
        yield
    finally:
        _worker._worker_info = kept


def shared_storage(size: int) -> object:
    """CPU memory of `size` bytes, uninitialised, that other processes can map."""
    return torch.UntypedStorage._new_shared(size, device="cpu")


def share_by(make: Callable[[int], Any]) -> None:
    """Let `make(size)` give all of torch's own shared CPU memory in this process.

    Where torch's sharing strategy is not "file_descriptor", torch's own way stays.
    """

    def made(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        strategy = torch.multiprocessing.get_sharing_strategy()
        if size and strategy == "file_descriptor" and torch.device(device).type == "cpu":
            return make(size)
        return _new_shared(cls, size, device=device)

    torch.UntypedStorage._new_shared = classmethod(made)  # type: ignore[assignment]


def descriptor_of(storage: torch.UntypedStorage) -> int:
    """The descriptor of shared CPU memory; the storage keeps it open."""
    descriptor: int = _descriptor(storage)[0]
    return descriptor
