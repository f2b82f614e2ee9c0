"""Ranks that talk: real processes over gloo."""

import multiprocessing
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from penstock.distributed.group import Group, join
from penstock.distributed.presence import LateError
from penstock.distributed.world import World, from_environment, is_launched
from penstock.errors import ConfigError, PenstockError
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
        weights = torch.tensor([float(rank)])
        group.copy_from_first(weights)
        answers.put(
            (
                rank,
                {
                    "alone": (group.alone, group.is_first),
                    "copied": weights.tolist(),
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
        assert found[rank]["alone"] == (False, rank == 0)
        assert found[rank]["copied"] == [0.0]
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
        group.copy_from_first(torch.ones(1))
        group.meet()
        group.hint("")
        group.tell("SIGTERM")
        with group.ends_with_others(), pytest.raises(ValueError, match="own"), group.explained():
            raise ValueError("own")
    assert Group().is_first
    assert not Group(World(1, 2)).is_first
    assert not is_launched({})


@pytest.mark.parametrize(
    ("together", "launched", "alone"), [(True, "1", False), (True, "", True), (False, "1", True)]
)
def test_one_rank_makes_a_group_only_under_a_launcher(
    together, launched, alone, monkeypatch, tmp_path
):
    monkeypatch.setenv("WORLD_SIZE", launched)
    monkeypatch.setenv("PENSTOCK_MEETING", str(tmp_path))
    with join(World(), timeout=60, together=together) as group:
        assert group.alone == alone
        assert group.gather(3) == [3]
        part = torch.tensor([1, 2])
        assert group.from_first("x") == "x"
        group.copy_from_first(part)
        assert part.tolist() == [1, 2]
        group.meet()
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("device", "backend", "used", "seconds"),
    [
        ("cpu", None, "gloo", 40),
        ("cuda:1", None, "nccl", 60),  # NCCL's watchdog comes after the agreements on gloo
        ("cuda:1", "gloo", "gloo", 60),
    ],
)
def test_the_device_decides_how_numbers_travel(
    device, backend, used, seconds, monkeypatch, tmp_path
):
    monkeypatch.setenv("PENSTOCK_MEETING", str(tmp_path))
    devices, asked = [], {}

    def refuse(backend, **options):
        asked.update(options, backend=backend)
        raise ValueError("not today")

    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", refuse)
    with (
        pytest.raises(ConfigError, match="rank 1 of 2 cannot join the others: not today"),
        join(World(1, 2, device=device), backend, 40.0),
    ):
        pass
    assert devices == ([] if device == "cpu" else [device])
    assert (asked["backend"], asked["rank"], asked["world_size"]) == (used, 1, 2)
    assert asked["timeout"].total_seconds() == seconds


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


class Heard(Group):
    """The first of three ranks, which hears of these errors of the others."""

    def __init__(self, *others):
        super().__init__(World(0, 3))
        self.others, self.said = others, None

    def gather(self, value):
        self.said = value
        return [value, *self.others]


def test_the_first_error_of_any_rank_is_raised():
    with Heard(None, None).all_or_none():
        pass
    with (
        pytest.raises(PenstockError, match=r"^rank 2: ValueError: x$"),
        Heard(None, "ValueError: x").all_or_none(),
    ):
        pass
    group = Heard(None, "ValueError: x")
    with pytest.raises(KeyError), group.all_or_none():
        raise KeyError("y" * 2000)
    assert group.said == f"KeyError: '{'y' * 989}"


def test_the_presence_hears_and_explains():
    said, late = [], LateError("rank 1 is late")
    presence = SimpleNamespace(
        hint="",
        tell=said.append,
        explained=lambda error: late if "timed out" in str(error) else None,
        ends_with_others=lambda: nullcontext("with others"),
    )
    group = Group(World(0, 2), presence=presence)
    group.hint("resume=x")
    group.tell("SIGTERM")
    assert (presence.hint, said) == ("resume=x", ["SIGTERM"])
    with group.ends_with_others() as ends:
        assert ends == "with others"
    with pytest.raises(LateError, match="rank 1"), group.explained():
        raise RuntimeError("timed out")
    with pytest.raises(RuntimeError, match="another"), group.explained():
        raise RuntimeError("another")
