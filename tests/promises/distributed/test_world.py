"""What a launcher's environment and this machine make of a process."""

import pytest
import torch

from penstock.distributed import world
from penstock.distributed.world import World
from penstock.errors import ConfigError

LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


@pytest.fixture
def environment(monkeypatch):
    """Sets the variables of a launcher, and no others."""

    def are(values):
        for name in LAUNCHER:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    are({})
    return are


def test_a_process_without_a_launcher(environment):
    assert world.launched_rank() == (0, 0)
    assert not world.is_launched()


@pytest.mark.parametrize(
    ("gpus", "values", "expected"),
    [
        (4, {}, World(5, 8, 1, "cuda:1", 4)),
        (0, {}, World(5, 8, 5, "cpu", 8)),
        (16, {}, World(5, 8, 5, "cuda:5", 8)),
        (0, {"WORLD_SIZE": "2", "RANK": "1"}, World(1, 2, 0, "cpu", 1)),
    ],
)
def test_ranks_of_a_group_that_a_framework_has_set_up(
    gpus, values, expected, environment, monkeypatch
):
    environment(values)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
    monkeypatch.setattr(world, "has_accelerator", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert world.from_environment("auto") == expected


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
