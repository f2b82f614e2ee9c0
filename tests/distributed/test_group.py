"""Ranks that talk: real processes over gloo."""

import multiprocessing

import pytest
import torch

from penstock.distributed.group import Group, join
from penstock.distributed.world import World, from_environment, is_launched
from penstock.errors import ConfigError
from tests.ports import free_port


def talk(rank, size, port, answers):
    import os

    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }
    with join(from_environment("cpu"), timeout=60) as group:
        heard = [group.agree(rank == 1 and call == 2, False) for call in range(5)]
        try:
            with group.all_or_none():
                if rank == 1:
                    raise ValueError("of this rank")
            raised = None
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
        answers.put(
            (
                rank,
                {
                    "sum": group.sum(torch.tensor([rank + 1.0])).item(),
                    "gather": group.gather({"rank": rank}),
                    "first": group.from_first(("from", rank)),
                    "heard": heard,
                    "raised": raised,
                },
            )
        )
        group.meet()


def test_ranks_hear_each_other():
    context = multiprocessing.get_context("fork")
    answers, port = context.Queue(), free_port()
    ranks = [context.Process(target=talk, args=(rank, 3, port, answers)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    found = dict(answers.get(timeout=60) for _ in ranks)
    for rank in ranks:
        rank.join(60)
    for rank in range(3):
        assert found[rank]["sum"] == 6.0
        assert found[rank]["gather"] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        assert found[rank]["first"] == ("from", 0)
        raised = "ValueError: of this rank" if rank == 1 else "PenstockError: rank 1: ValueError: "
        assert found[rank]["raised"].startswith(raised)
        # Said and heard by all at the third call.
        assert [stop for stop, _ in found[rank]["heard"]] == [False, False, True, False, False]


def test_alone_nothing_is_waited_for():
    with join(World()) as group:
        assert group.alone
        assert group.gather(3) == [3]
        assert group.from_first("x") == "x"
        assert group.agree(True, False) == (True, False)
        assert group.sum(torch.ones(2)).tolist() == [1, 1]
    assert Group().is_first
    assert not is_launched({})


def test_a_launcher_that_says_too_little_is_explained(monkeypatch):
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
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError) as raised, join(World(rank, 4, local_rank)):
        pass
    assert raised.value.told != says_so
