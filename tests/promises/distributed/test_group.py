"""Ranks that talk: real processes over gloo."""

import multiprocessing

import pytest
import torch

from penstock.distributed.group import Group, join
from penstock.distributed.world import World, from_environment
from penstock.errors import ConfigError
from tests.support.ports import free_port


def talk(rank, size, port, answers):
    import os

    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }
    with join(from_environment("cpu"), timeout=600) as group:
        heard = [group.agree(rank == 1 and call == 2, False) for call in range(5)]
        answers.put(
            (
                rank,
                {
                    "alone": (group.alone, group.is_first),
                    "sum": group.sum(torch.tensor([rank + 1.0])).item(),
                    "gather": group.gather({"rank": rank}),
                    "heard": heard,
                },
            )
        )


def test_ranks_hear_each_other():
    context = multiprocessing.get_context("fork")
    answers, port = context.Queue(), free_port()
    ranks = [context.Process(target=talk, args=(rank, 3, port, answers)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    found = dict(answers.get(timeout=600) for _ in ranks)
    for rank in ranks:
        rank.join(600)
    for rank in range(3):
        assert found[rank]["sum"] == 6.0
        assert found[rank]["gather"] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        assert found[rank]["alone"] == (False, rank == 0)
        # Said and heard by all at the third call.
        assert [stop for stop, _ in found[rank]["heard"]] == [False, False, True, False, False]


def test_alone_nothing_is_waited_for():
    with join(World()) as group:
        assert group.alone
        assert group.gather(3) == [3]
        assert group.agree(True, False) == (True, False)
        assert group.sum(torch.ones(2)).tolist() == [1, 1]
        with pytest.raises(ValueError, match="own"), group.explained():
            raise ValueError("own")
    assert Group().is_first
    assert not Group(World(1, 2)).is_first


@pytest.mark.parametrize(
    ("together", "launched", "alone"), [(True, "1", False), (True, "", True), (False, "1", True)]
)
def test_one_rank_makes_a_group_only_under_a_launcher(together, launched, alone, monkeypatch):
    for name, value in {"WORLD_SIZE": launched, "RANK": "0", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    with join(World(), timeout=600, together=together) as group:
        assert group.alone == alone
        assert group.gather(3) == [3]
    assert not torch.distributed.is_initialized()


def test_a_launcher_that_says_too_little_is_explained(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError, match="rank 0 of 2 cannot join"), join(World(0, 2)):
        pass


@pytest.mark.parametrize(
    ("rank", "local_rank", "says_so"),
    [(0, 0, True), (1, 1, True), (2, 2, False), (2, 0, True), (3, 1, False)],
)
def test_one_rank_of_each_machine_says_that_nobody_can_be_reached(
    rank, local_rank, says_so, monkeypatch
):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError) as raised, join(World(rank, 4, local_rank)):
        pass
    assert raised.value.reported != says_so
