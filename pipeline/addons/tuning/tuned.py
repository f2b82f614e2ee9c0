"""The loader that `task=tune` found for a dataset on this machine, for `loader=tuned`.

One small JSON file in the cache folder for each dataset (by its fingerprint) and kind of machine
(processor, cores, GPUs). It also says for which batch size, model and transforms it was found.
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, get_args

import torch
from pydantic import Field, field_validator

from penstock.config.schema import Config, LoaderSection
from penstock.config.sections import Section
from penstock.distributed.world import cores, resolve_device
from penstock.errors import ConfigError, Problem
from penstock.files import plain_json
from penstock.files.disk import write_atomically
from penstock.files.own_files import check_own, own_folder
from penstock.files.plain_json import JsonError
from penstock.order.randomness import hash64

_LARGEST = 1 << 20  # bytes
_log = logging.getLogger(__name__)


class Tuned(Section):
    """Settings of a loader, and when and for what they were found.

    Attributes:
        batches_per_second: their throughput.
        when: date and time, ISO 8601.
        found_for: what the choice depends on, by key of the configuration; see `found_for`.
    """

    backend: str
    num_workers: Annotated[int, Field(ge=0, le=1024)]
    prefetch_factor: Annotated[int, Field(ge=1, le=10_000)] | None
    pin_memory: bool
    batches_per_second: float
    when: str
    found_for: dict[str, str]

    @field_validator("backend")
    @classmethod
    def _is_known(cls, name: str) -> str:
        known = get_args(LoaderSection.model_fields["backend"].annotation)
        if name not in known:
            raise ValueError(f"{name!r} is no backend; there are {', '.join(known)}")
        return name


def machine() -> str:
    """This kind of machine: containers on it have names of their own, but the same cores."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        named = (line.partition(":")[2] for line in lines if line.startswith("model name"))
        processor = next(named).strip()
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    return "; ".join([processor, f"{cores()} cores", *gpus])


def place(config: Config, fingerprint: Mapping[str, str]) -> Path:
    """The file for a configuration's training data on this machine.

    Args:
        fingerprint: of the training split, from `Split.fingerprint`.
    """
    packed = "" if config.dataset.get("packed") is None else " packed"
    name = f"{hash64('tuned', machine(), fingerprint['dataset'] + packed):016x}"
    return Path(config.cache_dir).expanduser() / "tuned" / f"{name}.json"


def found_for(config: Config) -> dict[str, str]:
    """Everything that the best loader of a dataset depends on, by key."""
    shown = config.compared()
    parts = {
        "batch.size": config.batch.size,
        "model": shown["model"],
        "transform": shown["transform"],
        "trainer.precision": config.trainer.precision,
        "trainer.device": resolve_device(config.trainer.device),
    }
    return {key: json.dumps(value, sort_keys=True, default=str) for key, value in parts.items()}


def save(path: Path, tuned: Tuned) -> None:
    """Keep what was found; the folder is this user's alone."""
    own_folder(path.parent)
    write_atomically(path, (tuned.model_dump_json(indent=2) + "\n").encode())


def load(path: Path) -> Tuned:
    """The loader that was found.

    Raises:
        ConfigError: nothing was, or the file is damaged.
        NotOwnError: the file is another user's, or leads elsewhere.
    """
    try:
        if path.parent.exists():
            own_folder(path.parent)
            check_own(path)
        return plain_json.checked(Tuned, plain_json.read(path, _LARGEST))
    except FileNotFoundError:
        raise ConfigError(
            Problem(
                "loader.num_workers",
                "tuned, but nothing was tuned yet for this dataset on "
                "this machine; run the same command with task=tune, or choose another loader "
                "(loader=default)",
            )
        ) from None
    except (OSError, JsonError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ConfigError(
            Problem(
                "loader.num_workers",
                f"{path} cannot be read ({reason}); run the same command with task=tune again",
            )
        ) from error


def apply(config: Config, fingerprint: Mapping[str, str]) -> LoaderSection:
    """The section `loader` with the settings found instead of `num_workers: tuned`.

    Other keys that are given stay: `loader=tuned loader.prefetch_factor=8`.

    Args:
        fingerprint: of the training split, from `Split.fingerprint`.

    Raises:
        ConfigError: nothing was tuned.
    """
    section, kept = config.loader, load(place(config, fingerprint))
    now = found_for(config)
    changed = [key for key, value in now.items() if kept.found_for.get(key) != value]
    note = f"; for another {', '.join(changed)}: task=tune may find better" if changed else ""
    _log.info(
        "loader: %d workers (%s), tuned on %s%s",
        kept.num_workers,
        kept.backend,
        kept.when[:10],
        note,
    )
    return section.model_copy(
        update={
            "backend": kept.backend if section.backend == "auto" else section.backend,
            "num_workers": kept.num_workers,
            "prefetch_factor": section.prefetch_factor or kept.prefetch_factor,
            "pin_memory": kept.pin_memory if section.pin_memory is None else section.pin_memory,
        }
    )
