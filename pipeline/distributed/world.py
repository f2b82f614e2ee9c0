"""This process among the others: rank, world size, device.

The only file that reads the launcher's environment variables (torchrun's, or those of Slurm's srun)
and asks torch for accelerators. torch is imported only then: that takes 2 s, and `--help` does not
need it.

Each task of a step of srun is a rank, described in the variables of torchrun. A batch script has
no variable of a step (`SLURM_STEP_*`): a program that it starts without srun is one process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError, Problem


@dataclass(frozen=True)
class World:
    """One process of a run.

    Attributes:
        rank: number of this process among all, 0 <= rank < size.
        size: number of processes that share a global batch.
        local_rank: number of this process on its machine.
        local_size: number of processes on this machine.
        device: where the model and the delivered batches live, e.g. "cpu" or "cuda:0".
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: str = "cpu"
    local_size: int = 1


def launcher(environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """The launcher's description of this process, in torchrun's variables (RANK, WORLD_SIZE ...).

    torchrun's own come before srun's, since torchrun may run under srun.
    """
    size = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if environment.get("WORLD_SIZE") or size == "1":
        return environment
    # Of `gpu[03-05,7],big1` the first machine is gpu03; task 0 runs on it.
    machines = re.sub(r"\[(\w+)[^\]]*\]", r"\1", environment.get("SLURM_STEP_NODELIST", ""))
    here = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    # The same for all tasks of a step, another for the next step of the job, and below those that
    # Linux hands out to clients.
    job, step = (_number(environment, f"SLURM_{name}_ID", 0) for name in ("JOB", "STEP"))
    port = 15_000 + (31 * job + step) % 10_000
    return {
        "WORLD_SIZE": size,
        "RANK": environment.get("SLURM_PROCID", ""),
        "LOCAL_RANK": environment.get("SLURM_LOCALID", ""),
        "LOCAL_WORLD_SIZE": here[0] if here else "",
        "MASTER_ADDR": environment.get("MASTER_ADDR") or machines.split(",")[0] or "127.0.0.1",
        "MASTER_PORT": environment.get("MASTER_PORT") or str(port),
    }


def attempt() -> str:
    """The number of times that all ranks were started again; "0" on several machines.

    torch's agent serves one store for all of its starts, so what ranks write there needs a name
    that those of the start before had not: a rank would read the address of one that is dead.
    Agents of several machines count by themselves (docs/clusters.md: a store for each start).
    """
    return (
        os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if os.environ.get("GROUP_WORLD_SIZE") == "1"
        else "0"
    )


def is_launched() -> bool:
    """Whether a launcher such as torchrun or srun started this process."""
    return bool(launcher().get("WORLD_SIZE"))


def launched_rank() -> tuple[int, int]:
    """Rank among all processes, and on this machine; 0 without a launcher."""
    environment = launcher()
    return _number(environment, "RANK", 0), _number(environment, "LOCAL_RANK", 0)


def from_environment(device: str = "auto") -> World:
    """The world as torch's process group, torchrun or srun describe it; else one process.

    Frameworks that start ranks themselves set up a group, and not all of torchrun's variables.
    """
    environment, distributed = launcher(), sys.modules.get("torch.distributed")
    rank, size = _number(environment, "RANK", 0), _number(environment, "WORLD_SIZE", 1)
    local_rank, local_size = 0, 1
    if size == 1 and distributed and distributed.is_available() and distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
        local_size = min(size, default_processes()) if has_accelerator() else size
        local_rank = rank % local_size
    local_rank = _number(environment, "LOCAL_RANK", local_rank)
    local_size = _number(environment, "LOCAL_WORLD_SIZE", local_size)
    return World(rank, size, local_rank, resolve_device(device, local_rank), local_size)


def resolve_device(device: str, local_rank: int = 0) -> str:
    """`auto` is this rank's accelerator where there is one, the CPU otherwise."""
    if device == "cpu":
        return device
    if has_accelerator():
        from torch import cuda

        # Slurm may show each task the one GPU that is its own (--gpus-per-task=1).
        return "cuda:0" if cuda.device_count() == 1 else f"cuda:{local_rank}"
    if device == "cuda":
        raise ConfigError(
            Problem(
                "trainer.device",
                "is 'cuda', but torch finds no CUDA device here; "
                "use trainer.device=auto or trainer.device=cpu",
            )
        )
    return "cpu"


def default_processes() -> int:
    """Ranks that fill this machine, as with torchrun: one a GPU, or one a core without any."""
    from torch import cuda

    return cuda.device_count() or usable_cpus()


def usable_cpus() -> int:
    """Cores that this process may use: of its affinity, and of its container's quota."""
    on_linux = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if on_linux else os.cpu_count() or 1
    try:  # a cgroup's quota and period, in microseconds
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return count


def has_accelerator() -> bool:
    """Whether torch finds a GPU here; without one, pinned memory is of no use."""
    from torch import cuda

    return cuda.is_available()


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    return int(environment.get(name) or default)
