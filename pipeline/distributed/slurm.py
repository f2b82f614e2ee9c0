"""Ranks that `srun` started, described in the variables of torchrun: each task of a step is one.

    SLURM_STEP_NUM_TASKS       WORLD_SIZE            how many tasks the step has
    SLURM_PROCID               RANK
    SLURM_LOCALID              LOCAL_RANK
    SLURM_STEP_TASKS_PER_NODE  LOCAL_WORLD_SIZE      "2(x3),1" is 2, 2, 2, 1
    SLURM_STEP_NODELIST        MASTER_ADDR           the first machine, where task 0 runs
    SLURM_JOB_ID, _STEP_ID     MASTER_PORT           one for each step

A batch script has most of these too, but none of a step (`SLURM_STEP_*`): a program that it starts
without srun is one process. MASTER_ADDR and MASTER_PORT stay if they are set.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

_PORTS = range(15_000, 25_000)  # below those that Linux hands out to clients
_OF_A_STEP = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST")


def ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that torchrun would have set; empty unless this is one task of several."""
    size = _tasks(environment)
    if size in ("", "1"):
        return {}
    return {
        "WORLD_SIZE": size,
        "RANK": environment.get("SLURM_PROCID", ""),
        "LOCAL_RANK": environment.get("SLURM_LOCALID", ""),
        "LOCAL_WORLD_SIZE": _tasks_here(environment, size),
        "MASTER_ADDR": environment.get("MASTER_ADDR") or _first_machine(environment),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(_port(environment)),
    }


def outside_of_srun(environment: Mapping[str, str]) -> str:
    """Machines or tasks of the job that a process of its batch script does not use; else ""."""
    if _is_task(environment) or not environment.get("SLURM_JOB_ID"):
        return ""
    tasks, machines = (environment.get(f"SLURM_{name}", "1") for name in ("NTASKS", "NNODES"))
    if machines not in ("", "1"):
        return f"{machines} machines"
    return f"{tasks} tasks" if tasks not in ("", "1") else ""


def is_of_submitit(environment: Mapping[str, str]) -> bool:
    """Whether submitit runs this process as a job of Slurm, and waits for SIGUSR1 to requeue it."""
    waits = callable(signal.getsignal(signal.SIGUSR1))
    return environment.get("SUBMITIT_EXECUTOR") == "slurm" and waits


def _is_task(environment: Mapping[str, str]) -> bool:
    return any(environment.get(name) for name in _OF_A_STEP)


def _tasks(environment: Mapping[str, str]) -> str:
    if environment.get("SLURM_STEP_NUM_TASKS"):
        return environment["SLURM_STEP_NUM_TASKS"]
    # Without a job there is no batch script either: someone else's srun, or a test of one.
    if _is_task(environment) or not environment.get("SLURM_JOB_ID"):
        return environment.get("SLURM_NTASKS", "") if environment.get("SLURM_PROCID") else ""
    return ""


def _tasks_here(environment: Mapping[str, str], size: str) -> str:
    counts = [
        count
        for count, times in re.findall(
            r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")
        )
        for _ in range(int(times or 1))
    ]
    machine = environment.get("SLURM_NODEID", "0")
    if machine.isdigit() and int(machine) < len(counts):
        return counts[int(machine)]
    return size if _one_machine(environment) else ""


def _machines(environment: Mapping[str, str]) -> str:
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    return next((environment[name] for name in names if environment.get(name)), "")


def _one_machine(environment: Mapping[str, str]) -> bool:
    if environment.get("SLURM_STEP_NUM_NODES"):
        return environment["SLURM_STEP_NUM_NODES"] == "1"
    return not set(",[") & set(_machines(environment))


def _first_machine(environment: Mapping[str, str]) -> str:
    """Of `gpu[03-05,7],big1` the machine gpu03; the loopback where there is only one.

    SLURM_LAUNCH_NODE_IPADDR comes last: it may be the node that somebody logged in to.
    """
    if _one_machine(environment):
        return "127.0.0.1"
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", _machines(environment))
    name = re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0]) if first else ""
    return name or environment.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")


def _port(environment: Mapping[str, str]) -> int:
    """The same for all tasks of a step, and another for the next step of the job."""
    job, step = (environment.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    number = 31 * int(job) + int(step) if job.isdigit() and step.isdigit() else 0
    return _PORTS[number % len(_PORTS)]
