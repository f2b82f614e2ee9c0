"""Where ranks meet: notes in a folder, a store of the launcher, or one that rank 0 serves."""

import os
import socket
from datetime import timedelta

import pytest
import torch

from penstock.distributed import meeting
from penstock.distributed.world import World
from tests.ports import free_port

LIMIT = timedelta(seconds=60)


@pytest.fixture
def torchrun(monkeypatch):
    """The environment of a rank that another launcher than ours has started."""
    for name in ("PENSTOCK_MEETING", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    return monkeypatch


@pytest.mark.parametrize(
    ("interfaces", "used"),
    [(("eth0", "lo"), "lo"), (("en0", "lo0"), "lo0"), (("eth0", "eth1"), "lo")],
)
def test_ranks_of_one_machine_talk_over_its_loopback(interfaces, used, monkeypatch, tmp_path):
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(interfaces)))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    before = dict(os.environ)
    with meeting.announced(tmp_path) as name:
        assert name == "penstock"
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            assert os.environ[variable] == used
    assert dict(os.environ) == before


def test_the_launcher_meets_nobody_but_itself():
    asked = meeting.RendezvousParameters("penstock", "", "run", 1, 1)
    info = meeting._alone(asked).next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert isinstance(info.store, meeting.HashStore)
    assert info.bootstrap_store_info.master_addr == "127.0.0.1"


def test_notes_are_replaced_and_counted(monkeypatch, tmp_path):
    monkeypatch.delenv("PENSTOCK_MEETING", raising=False)
    assert meeting.notes() is None
    monkeypatch.setenv("PENSTOCK_MEETING", str(tmp_path))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    ours, theirs = meeting.notes(), meeting.notes()
    ours.set("at", "first")
    ours.set("at", "here")
    assert theirs.get("at") == b"here"
    assert [ours.add("late", 1), theirs.add("late", 2), ours.add("late", 0)] == [1, 3, 3]
    assert ours.check(["at", "late"])
    assert not ours.check(["at", "never"])
    assert sorted(path.name for path in (tmp_path / "notes-2").iterdir()) == ["at", "late"]
    for path in (tmp_path / "notes-2").iterdir():
        path.unlink()
    (tmp_path / "notes-2").rmdir()
    for use in (lambda: ours.set("at", ""), lambda: ours.get("at"), lambda: ours.add("late", 1)):
        with pytest.raises(RuntimeError, match=r"notes-2 is gone: "):
            use()


def test_each_start_under_our_launcher_has_a_file_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_MEETING", str(tmp_path))
    for start in "01":
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", start)
        meeting.store(World(1, 2), LIMIT).set("rank", "1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["start-0", "start-1"]


def test_rank_0_serves_the_store_at_an_address(torchrun):
    server, client = (meeting.store(World(rank, 2), LIMIT) for rank in (0, 1))
    server.set("a", "here")
    assert client.get("a") == b"here"


def test_a_store_that_outlives_the_ranks_has_names_for_each_start(torchrun):
    port = int(os.environ["MASTER_PORT"])
    launchers = torch.distributed.TCPStore("127.0.0.1", port, None, True, LIMIT, False)
    torchrun.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    torchrun.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    meeting.store(World(0, 2), LIMIT).set("a", "here")
    assert launchers.get("start-3/a") == b"here"


@pytest.mark.parametrize(
    ("host", "family"),
    [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("localhost", None), ("7.7.7", None)],
)
def test_a_store_listens_at_a_plain_address_only(host, family):
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("no IPv6")
    listening = meeting._listening(host, 0, 2)
    if family is None:
        assert listening is None
        return
    with socket.socket(fileno=listening) as server:
        assert server.family == family
        assert server.getsockname()[0] == host
