"""How much memory is left, and what limits it; Linux tells, elsewhere 0."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.loading.encoded import EncodedImage

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def available() -> int:
    """Bytes left before this machine or container is full; 0: unknown."""
    free = _field(_PROC / "meminfo", "MemAvailable")
    try:
        most = int((_CGROUP / "memory.max").read_text())
        taken = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return free
    # Cached files count as taken, but give way.
    left = max(most - taken + _field(_CGROUP / "memory.stat", "inactive_file", 1), 0)
    return min(free, left)


def limit() -> tuple[int, str]:
    """The least of the limits on what a process here may take: bytes, and what sets it."""
    limits = [(_field(_PROC / "meminfo", "MemTotal"), "the memory of this machine")]
    for folder in _cgroups():
        for name in ("memory.max", "memory.limit_in_bytes"):  # version 2, version 1
            with suppress(OSError, ValueError):  # no such file, or "max"
                limits.append((int((folder / name).read_text()), f"{name} of its cgroup"))
    if resource is not None:
        space = resource.getrlimit(resource.RLIMIT_AS)[0]
        if space != resource.RLIM_INFINITY:
            limits.append((space, "RLIMIT_AS (ulimit -v)"))
    return min(limits)


def kills() -> int:
    """Processes of this container that the kernel has ended because memory ran out."""
    names = ("memory.events", "memory.oom_control")
    return max(
        (_field(folder / name, "oom_kill", 1) for folder in _cgroups() for name in names), default=0
    )


def _cgroups() -> Iterator[Path]:
    """The memory cgroups that this process is in, and those around them."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds in ("", "memory"):
            own = (_CGROUP / kinds / path.lstrip("/")).resolve()
            roots = (folder for folder in (own, *own.parents) if folder.is_relative_to(_CGROUP))
            yield from (folder for folder in roots if folder.is_dir())


def _field(path: Path, name: str, unit: int = 1024) -> int:
    """The number after `name` in a file of the kernel's, in bytes; 0 where there is none."""
    with suppress(OSError, IndexError, ValueError):
        for line in path.read_text().splitlines():
            words = line.replace(":", " ").split()
            if words[0] == name:
                return int(words[1]) * unit
    return 0


_TENSORS = (torch.Tensor, np.ndarray)


def nbytes(value: Any) -> int:
    """Bytes of a value with all that is in it; 0.2 us a tensor, and as much for each other object.

    Of objects of other classes only tensors, arrays, texts, numbers and containers are known.
    """
    total = 0
    waiting = [value]  # no recursion: JSON may be nested as deeply as the interpreter allows
    while waiting:
        item = waiting.pop()
        kind = type(item)
        if kind is torch.Tensor or kind is np.ndarray or isinstance(item, _TENSORS):
            total += item.nbytes
        elif isinstance(item, (list, tuple, set)):
            total += sys.getsizeof(item)
            waiting += item
        elif isinstance(item, Mapping):
            total += sys.getsizeof(item) if kind is dict else 0
            waiting += item.values()
        elif isinstance(item, bytes):
            total += len(item)
        elif isinstance(item, (str, int, float)):
            total += sys.getsizeof(item)
        elif isinstance(item, EncodedImage):
            total += len(item.content)
            waiting += [value for value in vars(item).values() if isinstance(value, torch.Tensor)]
        elif hasattr(item, "getbands") and hasattr(item, "size"):  # a Pillow image
            total += item.size[0] * item.size[1] * len(item.getbands())
    return total
