"""What `task=tune` has found for a dataset on this machine, and `loader=tuned` reads.

One small JSON file in the cache folder for each dataset (by its fingerprint) and kind of machine
(processor, cores, GPUs). It also says for which batch size, model and transforms it was found, so
that a run with others can be told.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch

from pipeline.distributed.world import usable_cpus
from pipeline.errors import ConfigError, Problem
from pipeline.files import plain_json
from pipeline.files.disk import write_atomically
from pipeline.files.own_files import check_own, own_folder
from pipeline.files.plain_json import JsonError, integer, mapping, shown
from pipeline.order.randomness import hash64

_LARGEST = 1 << 20  # bytes
_MOST_WORKERS = 1024
_MOST_AHEAD = 10_000


@dataclass(frozen=True)
class Tuned:
    """Settings of a loader, and when and for what they were found.

    Attributes:
        batches_per_second: what they came to.
        when: date and time, ISO 8601.
        found_for: what the choice depends on, by key of the configuration.
    """

    backend: Literal["main", "process", "thread"]
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    batches_per_second: float
    when: str
    found_for: dict[str, str]

    def changed(self, found_for: Mapping[str, str]) -> list[str]:
        """Keys by which a run differs from the one that this was found for."""
        return [key for key, value in found_for.items() if self.found_for.get(key) != value]


def machine() -> str:
    """This kind of machine: containers on it have names of their own, but the same cores."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return "; ".join([_processor(), f"{usable_cpus()} cores", *gpus])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        named = (line.partition(":")[2] for line in lines if line.startswith("model name"))
        return next(named).strip()
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def place(cache_dir: str, dataset: str) -> Path:
    """The file for a dataset, given its fingerprint, on this machine."""
    name = f"{hash64('tuned', machine(), dataset):016x}"
    return Path(cache_dir).expanduser() / "tuned" / f"{name}.json"


def save(path: Path, tuned: Tuned) -> None:
    """Keep what was found; the folder is this user's alone."""
    own_folder(path.parent)
    write_atomically(path, (json.dumps(asdict(tuned), indent=2) + "\n").encode())


def load(path: Path) -> Tuned:
    """What was found.

    Raises:
        ConfigError: nothing was, or the file is damaged.
        NotOwnError: the file is another user's, or leads elsewhere.
    """
    try:
        if path.parent.exists():
            own_folder(path.parent)
            check_own(path)
        return _checked(mapping(plain_json.read(path, _LARGEST)))
    except FileNotFoundError:
        raise ConfigError(
            Problem("loader.num_workers", "tuned, but nothing was tuned yet for this dataset on "
                    "this machine; run the same command with task=tune, or choose another loader "
                    "(loader=default)")
        ) from None  # fmt: skip
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            Problem("loader.num_workers", f"{path} cannot be read ({reason}); run the same command "
                    "with task=tune again")
        ) from error  # fmt: skip


def _checked(kept: dict[str, Any]) -> Tuned:
    """What was kept, as settings that a loader may have; raises JsonError."""
    names = {one.name for one in fields(Tuned)}
    if kept.keys() != names:
        raise JsonError(f"it does not hold {', '.join(sorted(names))}")
    if kept["backend"] not in ("main", "process", "thread"):
        raise JsonError(f"backend is {shown(kept['backend'])}")
    integer(kept, "num_workers", most=_MOST_WORKERS)
    if kept["prefetch_factor"] is not None:
        integer(kept, "prefetch_factor", least=1, most=_MOST_AHEAD)
    speed, texts = kept["batches_per_second"], [kept["when"], *mapping(kept["found_for"]).values()]
    if not isinstance(kept["pin_memory"], bool) or not isinstance(speed, int | float):
        raise JsonError("pin_memory or batches_per_second has another type")
    if not all(isinstance(text, str) for text in texts):
        raise JsonError("when and what found_for holds have to be texts")
    return Tuned(**kept)
