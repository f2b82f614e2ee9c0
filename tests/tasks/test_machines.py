"""Machines of a start of a run, beside those of the starts before it."""

import json
from types import SimpleNamespace

import pytest

from penstock import installed
from penstock.runs.run_folder import RunFolder
from penstock.tasks import machines
from penstock.tasks.machines import Machines, Member


def members(*hosts, launcher="a", restarted=(), copies=()):
    own = dict(copies)
    return [
        Member(host, launcher, rank in restarted, own.get(rank, {}))
        for rank, host in enumerate(hosts)
    ]


@pytest.fixture
def folder(tmp_path):
    """A run's folder with these entries of starts, the first one first."""

    def write(*sessions):
        path = RunFolder.claim(tmp_path / "run", {}).path
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["sessions"] = list(sessions)
        (path / "manifest.json").write_text(json.dumps(manifest))
        return path

    return write


def start(*ranks, launchers=("a",), **more):
    counts = {host: ranks.count(host) for host in ranks}
    return {"ranks": counts, "launchers": list(launchers), **more}


@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        (start("m", "m", "n"), members("m", "m", "n"), ""),
        (start("m", "n"), members("m"), "n left; 1 of 2 ranks remain"),
        (start("m", "m"), members("m"), "m left; 1 of 2 ranks remain"),
        (start("m"), members("m", "n"), "n joined; 2 ranks after 1"),
        (start("m", "n"), members("m", "o"), "n left; o joined; 2 ranks after 2"),
        (start("m", "n", "o"), members("m"), "n, o left; 1 of 3 ranks remain"),
        (start("m", "n"), members("m", launcher="b"), ""),  # it was started anew
        (start("m", "n"), members("m", launcher=None), ""),
        (start("m", launchers=("b", "a")), members("n"), "m left; n joined; 1 ranks after 1"),
        ({"launchers": ["a"], "ranks": ["m"]}, members("n"), ""),
        ({"launchers": "a", "ranks": {"m": 1}}, members("n"), ""),
        ({"launchers": ["a"], "ranks": {"m": "1", "n": 1}}, members("n"), ""),
        (
            {"launchers": ["a"], "ranks": {"m" * 201: 1}},
            members("n"),
            f"{'m' * 200} left; n joined; 1 ranks after 1",
        ),
    ],
)
def test_machines_that_have_left_or_joined(folder, before, now, changes):
    path = folder(start("of", "long", "ago"), before)
    assert Machines(now, path).changes() == changes


def test_a_start_without_a_folder_or_a_launcher(tmp_path):
    for path in (None, tmp_path):
        first = Machines(members("m"), path)
        assert (first.changes(), first.same_launch, first.started_again) == ("", False, False)
    (tmp_path / "manifest.json").write_text("{")
    assert not Machines(members("m"), tmp_path).same_launch
    assert Machines(members("m", launcher=None), None).facts == {}
    facts = Machines([*members("m", "m"), *members("n", launcher="b")], None).facts
    assert facts == {"ranks": {"m": 2, "n": 1}, "launchers": ["a", "b"]}


@pytest.mark.parametrize(
    ("launcher", "restarted", "again"),
    [("a", (), True), ("b", (), False), ("b", (1,), True), ("a", (0,), True)],
)
def test_ranks_that_were_started_again(folder, launcher, restarted, again):
    now = members("m", "n", launcher=launcher, restarted=restarted)
    assert Machines(now, folder(start("m", "n"))).started_again == again


@pytest.mark.parametrize(
    ("copies", "newest"),
    [
        ({0: {"two": 8}, 1: {"two": 9}}, (9, 1, "two")),
        ({0: {"two": 9}, 1: {"two": 9}}, (9, 0, "two")),
        ({1: {"two": 9, "one": 99}}, (9, 1, "two")),
        ({0: {"one": 5}}, (5, 0, "one")),  # the second start was resumed from a copy
        ({0: {"none": 5}}, None),
        ({}, None),
    ],
)
def test_the_newest_copy_of_the_last_start(folder, copies, newest, monkeypatch):
    seam = SimpleNamespace(is_copy=lambda path: path.name == "copy")
    monkeypatch.setattr(installed, "copies", lambda: seam)
    path = folder(
        start("m", "n", id="none", resumed="copy"),
        start("m", "n", id="one", resumed="checkpoint"),
        start("m", "n", id="two", resumed="copy"),
    )
    assert Machines(members("m", "n", copies=copies), path).newest_copy() == newest
    assert Machines(members("m", "n", launcher="b", copies=copies), path).newest_copy() is None


@pytest.mark.parametrize("local_rank", [0, 1])
@pytest.mark.parametrize("launcher", ["a", None])
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_rank_tells_of_itself(launcher, local_rank, restarts, monkeypatch):
    monkeypatch.setattr(machines.platform, "node", lambda: "m")
    monkeypatch.setattr(machines.world, "launcher_start", lambda: launcher)
    monkeypatch.setattr(machines.world, "restarts", lambda: restarts)
    held = SimpleNamespace(found=lambda: {"run": [7, "b"]})
    monkeypatch.setattr(machines.installed, "copies", lambda: held)
    group = SimpleNamespace(world=SimpleNamespace(local_rank=local_rank), gather=lambda own: [own])
    copies = held.found() if launcher and local_rank == 0 else {}
    assert machines.gather(group) == [Member("m", launcher, restarts == 1, copies)]
    monkeypatch.setattr(machines.installed, "copies", lambda: None)
    assert machines.gather(group)[0].copies == {}
