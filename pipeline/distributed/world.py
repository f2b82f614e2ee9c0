"""This process among the others: rank, world size, device.

The only file that reads the launcher's environment variables (torchrun's, or those of Slurm's srun)
and asks torch for accelerators. torch is imported only then: that takes 2 s, and `--help` does not
need it.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.distributed import slurm
from penstock.errors import ConfigError, Problem
from penstock.terminal import say

MEETING = "PENSTOCK_MEETING"  # names the folder in which the ranks of one machine meet


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

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"rank {self.rank} is not in a world of {self.size} processes")


def launcher(environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """The launcher's description of this process, in torchrun's variables (RANK, WORLD_SIZE ...).

    torchrun's own come before srun's, since torchrun may run under srun.
    """
    return environment if environment.get("WORLD_SIZE") else slurm.ranks(environment)


def launcher_name(environment: Mapping[str, str] = os.environ) -> str:
    """Who started this process, for messages."""
    return "WORLD_SIZE" if environment.get("WORLD_SIZE") else "Slurm's tasks"


def outside_of_srun(environment: Mapping[str, str] = os.environ) -> str:
    """Machines or tasks of a Slurm job that this process, started without srun, does not use."""
    return "" if environment.get("WORLD_SIZE") else slurm.outside_of_srun(environment)


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher such as torchrun or srun started this process."""
    return bool(launcher(environment).get("WORLD_SIZE"))


def launched_rank(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank among all processes, and on this machine; 0 without a launcher."""
    environment = launcher(environment)
    return _number(environment, "RANK", 0), _number(environment, "LOCAL_RANK", 0)


def restarts(environment: Mapping[str, str] = os.environ) -> int:
    """How often torch's launcher has restarted all ranks."""
    return _number(environment, "TORCHELASTIC_RESTART_COUNT", 0)


def restarts_left(environment: Mapping[str, str] = os.environ) -> int:
    """How often it will yet do so."""
    return _number(environment, "TORCHELASTIC_MAX_RESTARTS", 0) - restarts(environment)


def starts_again(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torch's launcher starts the ranks again when some are lost (--max-restarts)."""
    return _number(environment, "TORCHELASTIC_MAX_RESTARTS", 0) > 0


def launcher_process(environment: Mapping[str, str] = os.environ) -> int | None:
    """The process of torch's launcher on this machine; None where it is unknown.

    The launcher makes each rank the leader of a session of its own, so a shell script between the
    two changes nothing.
    """
    if not environment.get("TORCHELASTIC_RUN_ID"):
        return None
    try:
        return int(Path(f"/proc/{os.getsid(0)}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def launcher_start() -> str | None:
    """This machine's launcher of ranks, named by process and start; None if there is none."""
    process = launcher_process()
    if process is None:
        return None
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return f"{platform.node()}-{process}-{fields[19]}"  # ticks since the machine's own start
    except (OSError, IndexError):
        return None


def launcher_serves(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the launcher, which outlives the ranks, has the store in which they meet."""
    return environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def meeting_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder in which the ranks of one machine meet; None if the launcher is not ours."""
    return Path(environment[MEETING]) if environment.get(MEETING) else None


def store_address(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """Address and port at which rank 0 is to serve the store itself; None if the launcher does."""
    if launcher_serves(environment):
        return None
    environment = launcher(environment)
    address, port = environment.get("MASTER_ADDR"), _number(environment, "MASTER_PORT", 0)
    return (address, port) if address and port else None


def launched_size(environment: Mapping[str, str] = os.environ) -> int:
    """Number of processes that the launcher has started; 1 without one."""
    return _number(launcher(environment), "WORLD_SIZE", 1)


def from_environment(device: str = "auto", environment: Mapping[str, str] = os.environ) -> World:
    """The world as torch's process group, torchrun or srun describe it; else one process.

    Frameworks that start ranks themselves set up a group, and not all of torchrun's variables.
    """
    if idle := outside_of_srun(environment):
        say(f"Slurm: the job has {idle}, and this process, which srun did not start, uses one")
    environment = launcher(environment)
    rank, size = _number(environment, "RANK", 0), launched_size(environment)
    local_rank, local_size = 0, 1
    if size == 1 and (group := _of_the_group()) is not None:
        rank, size = group
        local_rank, local_size = rank, size
        if has_accelerator():
            from torch import cuda

            local_size = min(size, cuda.device_count())
            local_rank = rank % local_size
    local_rank = _number(environment, "LOCAL_RANK", local_rank)
    return World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        device=resolve_device(device, local_rank),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", local_size),
    )


def _of_the_group() -> tuple[int, int] | None:
    """Rank and size of torch's process group; None without one, and torch is not imported."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank(), distributed.get_world_size()


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
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
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
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isdigit():
        raise ConfigError(f"the environment variable {name} is {text!r}, not a whole number")
    return int(text)
