"""What a launcher's environment and this machine make of a process."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from penstock.distributed import slurm, standing, world
from penstock.distributed.world import World
from penstock.errors import ConfigError
from tests.distributed.test_preemption import exit_code


def test_a_process_without_a_launcher():
    assert world.launched_rank({}) == (0, 0)
    assert world.launched_size({}) == 1
    assert (world.restarts({}), world.restarts_left({}), world.starts_again({})) == (0, 0, False)
    assert world.launcher_process({}) is None
    assert world.meeting_folder({}) is None
    assert world.launcher_name({"WORLD_SIZE": "1"}) == "WORLD_SIZE"


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_is_one_of_its_world(rank, size):
    with pytest.raises(ConfigError, match=f"rank {rank} is not in a world of {size} processes"):
        World(rank, size)


def test_a_launcher_is_known_by_its_process_and_start(monkeypatch):
    def led():
        os.setsid()  # as torch's launcher has each rank do
        parent = os.getppid()
        start = f"{os.uname()[1]}-{parent}-{standing.began(parent)}"
        return int((world.launcher_process(), world.launcher_start()) != (parent, start))

    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert world.launcher_start() is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "penstock")
    assert exit_code(led) == 0
    monkeypatch.setattr(world.os, "getsid", lambda pid: 2**22 + 1)  # no process has that number
    assert world.launcher_process() is None


def test_a_store_of_the_launcher_is_not_served_by_rank_0():
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert world.store_address(place) == ("10.0.0.1", 29500)
    assert world.store_address({**place, "TORCHELASTIC_USE_AGENT_STORE": "True"}) is None


def test_a_variable_that_is_no_number_is_named():
    message = "the environment variable RANK is 'first', not a whole number"
    with pytest.raises(ConfigError, match=message):
        world.launched_rank({"WORLD_SIZE": "2", "RANK": "first"})


@pytest.mark.parametrize(
    ("gpus", "environment", "expected"),
    [
        (4, {}, World(5, 8, 1, "cuda:1", 4)),
        (0, {}, World(5, 8, 5, "cpu", 8)),
        (16, {}, World(5, 8, 5, "cuda:5", 8)),
        (0, {"WORLD_SIZE": "2", "RANK": "1"}, World(1, 2, 0, "cpu", 1)),
    ],
)
def test_ranks_of_a_group_that_a_framework_has_set_up(gpus, environment, expected, monkeypatch):
    monkeypatch.setattr(world, "_of_the_group", lambda: (5, 8))
    monkeypatch.setattr(world, "has_accelerator", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert world.from_environment("auto", environment) == expected


def test_a_group_is_only_asked_if_there_is_one(monkeypatch):
    for available, initialized, group in [
        (True, True, (3, 4)),
        (True, False, None),
        (False, True, None),
    ]:
        module = SimpleNamespace(
            is_available=lambda available=available: available,
            is_initialized=lambda initialized=initialized: initialized,
            get_rank=lambda: 3,
            get_world_size=lambda: 4,
        )
        monkeypatch.setitem(sys.modules, "torch.distributed", module)
        assert world._of_the_group() == group
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert world._of_the_group() is None


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [("cpu", 2, "cpu"), ("auto", 0, "cpu"), ("auto", 2, "cuda:0"), ("cuda", 1, "cuda:0")],
)
def test_a_device_is_taken(device, gpus, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert world.resolve_device(device) == expected


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(world, "has_accelerator", lambda: False)
    with pytest.raises(ConfigError, match=r"trainer\.device: is 'cuda', but torch finds no CUDA"):
        world.resolve_device("cuda")


@pytest.mark.parametrize(
    ("quota", "affinity", "cores"),
    [
        ("max 100000", 6, 6),
        ("400000 100000", 6, 4),
        ("250000 100000", 6, 2),
        ("1000000 100000", 6, 6),
        ("10000 100000", 6, 1),
        (None, 6, 6),
        (None, None, 8),
    ],
)
def test_cores_are_those_of_the_affinity_and_of_the_container(quota, affinity, cores, monkeypatch):
    def read():
        if quota is None:
            raise FileNotFoundError
        return quota

    monkeypatch.setattr(world, "Path", lambda path: SimpleNamespace(read_text=read))
    monkeypatch.setattr(world.os, "cpu_count", lambda: 8)
    if affinity is None:
        monkeypatch.delattr(world.os, "sched_getaffinity")
    else:
        monkeypatch.setattr(world.os, "sched_getaffinity", lambda pid: [set(range(6)), {0}][pid])
    assert world.usable_cpus() == cores


def test_a_machine_that_does_not_count_its_cores_has_one(monkeypatch):
    def unreadable(path):
        raise OSError

    monkeypatch.setattr(world, "Path", unreadable)
    monkeypatch.setattr(world.os, "cpu_count", lambda: None)
    monkeypatch.delattr(world.os, "sched_getaffinity")
    assert world.usable_cpus() == 1


TASK = {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({**TASK, "SLURM_JOB_ID": "1", "SLURM_STEPID": "0"}, "2"),  # of an older srun
        (TASK, "2"),
        ({"SLURM_NTASKS": "2"}, None),
        ({**TASK, "SLURM_JOB_ID": "1"}, None),  # a batch script
        ({**TASK, "SLURM_STEP_NUM_TASKS": "3"}, "3"),
    ],
)
def test_who_is_a_task_among_others(environment, size):
    assert slurm.ranks(environment).get("WORLD_SIZE") == size


@pytest.mark.parametrize(
    ("node", "tasks"), [("0", "2"), ("2", "2"), ("3", "1"), ("4", ""), ("x", "")]
)
def test_tasks_of_each_machine(node, tasks):
    environment = {
        "SLURM_STEP_NUM_TASKS": "7",
        "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
        "SLURM_STEP_NODELIST": "a[1-4]",
        "SLURM_NODEID": node,
    }
    assert slurm.ranks(environment)["LOCAL_WORLD_SIZE"] == tasks


@pytest.mark.parametrize(
    ("more", "address", "tasks"),
    [
        ({"SLURM_STEP_NODELIST": "gpu7"}, "127.0.0.1", "2"),
        ({"SLURM_NODELIST": "gpu7,gpu8"}, "gpu7", ""),
        ({"SLURM_JOB_NODELIST": "gpu[7-8]"}, "gpu7", ""),
        ({"SLURM_STEP_NODELIST": "gpu7", "SLURM_STEP_NUM_NODES": "2"}, "gpu7", ""),
        ({"SLURM_STEP_NODELIST": "a,b", "SLURM_STEP_NUM_NODES": "1"}, "127.0.0.1", "2"),
        ({"SLURM_STEP_NUM_NODES": "2"}, "127.0.0.1", ""),
    ],
)
def test_where_tasks_meet(more, address, tasks):
    described = slurm.ranks({"SLURM_STEP_NUM_TASKS": "2", **more})
    assert (described["MASTER_ADDR"], described["LOCAL_WORLD_SIZE"]) == (address, tasks)


@pytest.mark.parametrize(
    ("job", "step", "port"),
    [("4711", "2", "21043"), ("4711", "3", "21044"), ("1", "0", "15031"), ("1", "x", "15000")],
)
def test_the_port_of_a_step(job, step, port):
    environment = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": job, "SLURM_STEP_ID": step}
    assert slurm.ranks(environment)["MASTER_PORT"] == port


@pytest.mark.parametrize(
    ("executor", "handler", "of_submitit"),
    [("slurm", print, True), ("slurm", None, False), ("local", print, False)],
)
def test_submitit_waits_for_a_signal_to_requeue(executor, handler, of_submitit, monkeypatch):
    monkeypatch.setattr(slurm.signal, "getsignal", lambda number: handler)
    assert slurm.is_of_submitit({"SUBMITIT_EXECUTOR": executor}) == of_submitit
