"""Where this process stands among the others: rank, world size, device.

The only file that reads the launcher's environment variables and asks torch for accelerators.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pipeline.errors import ConfigError, Problem


@dataclass(frozen=True)
class World:
    """One process of a run.

    Attributes:
        rank: number of this process among all, 0 <= rank < size.
        size: number of processes that share a global batch.
        local_rank: number of this process on its machine.
        device: where the model and the delivered batches live, e.g. "cpu" or "cuda:0".
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"rank {self.rank} is not in a world of {self.size} processes")


def launched_size(environment: Mapping[str, str] = os.environ) -> int:
    """Number of processes a launcher such as torchrun says it has started; 1 without one."""
    return _number(environment, "WORLD_SIZE", 1)


def from_environment(device: str = "auto", environment: Mapping[str, str] = os.environ) -> World:
    """The world as torchrun describes it (RANK, WORLD_SIZE, LOCAL_RANK), alone without it."""
    local_rank = _number(environment, "LOCAL_RANK", 0)
    return World(
        rank=_number(environment, "RANK", 0),
        size=launched_size(environment),
        local_rank=local_rank,
        device=resolve_device(device, local_rank),
    )


def resolve_device(device: str, local_rank: int = 0) -> str:
    """`auto` is this rank's accelerator where there is one, the CPU otherwise."""
    if device == "cpu":
        return device
    if torch.cuda.is_available():
        return f"cuda:{local_rank}"
    if device == "cuda":
        raise ConfigError(
            Problem("trainer.device", "'cuda' was asked for, but torch finds no CUDA device here; "
                    "use trainer.device=auto or trainer.device=cpu")
        )  # fmt: skip
    return "cpu"


def has_accelerator() -> bool:
    """Whether pinned memory would be of any use here."""
    return torch.cuda.is_available()


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isdigit():
        raise ConfigError(f"the environment variable {name} is {text!r}, not a whole number")
    return int(text)
