"""The parts of torch that Penstock uses and that are not public.

    ExceptionWrapper, pin_memory    as torch's own workers and pinning use them
    worker_info                     sets the answer of `torch.utils.data.get_worker_info()`
    numpy_seed                      (seed, worker) -> what torch's workers seed numpy with
    shared_storage, share_by        CPU memory that other processes can map; who makes it
    scale                           multiplies tensors by a number in place, in one call
    run_backward                    the backward pass itself, without what torch checks before
    tree_map_only, tree_leaves      go through the tensors in anything nested

Tested with torch 2.15. With a torch that lacks one of them, importing this file says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

try:
    from torch._utils import ExceptionWrapper as ExceptionWrapper
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_map_only as tree_map_only
    from torch.utils.data._utils import worker as _worker
    from torch.utils.data._utils.pin_memory import pin_memory as pin_memory

    WorkerInfo = _worker.WorkerInfo
    numpy_seed: Any = _worker._generate_state
    scale: Any = torch._foreach_mul_
    run_backward: Any = torch.autograd.graph._engine_run_backward
    _new_shared: Any = torch.UntypedStorage._new_shared
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"torch {torch.__version__} differs inside from 2.15, which Penstock was tested with: "
        f"{error}. Install that version, or a newer Penstock"
    ) from error


@contextmanager
def worker_info(info: Any) -> Iterator[None]:
    """Let `get_worker_info()` answer `info` in this process; None means no worker."""
    kept, _worker._worker_info = _worker._worker_info, info
    try:
        yield
    finally:
        _worker._worker_info = kept


def shared_storage(size: int) -> Any:
    """CPU memory of `size` bytes, uninitialised, that `share_by` or torch itself makes."""
    return torch.UntypedStorage._new_shared(size)


def share_by(make: Callable[[int], Any]) -> None:
    """Let `make(size)` give all of torch's own shared CPU memory in this process.

    Where torch's sharing strategy is not "file_descriptor", torch's own way stays.
    """

    def made(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        if (
            size
            and torch.multiprocessing.get_sharing_strategy() == "file_descriptor"
            and torch.device(device).type == "cpu"
        ):
            return make(size)
        return _new_shared(size, device=device)

    torch.UntypedStorage._new_shared = classmethod(made)  # type: ignore[assignment]
