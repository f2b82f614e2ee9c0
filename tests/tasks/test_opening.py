"""A run's folder and state as a fit opens them, piece by piece: rewinding, copies, and messages."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.errors import ConfigError, Problem
from penstock.order.address import Address
from penstock.runs import checkpoint, resumption
from penstock.runs.checkpoint import Newest
from penstock.runs.resumption import Source
from penstock.tasks import opening
from penstock.tasks.opening import Opened, Opening, _copy, _say


def state(updates=7, epoch=1, step=2, **more):
    return {"updates": updates, "loader": {"epoch": epoch, "step": step}, **more}


def saved(latest):
    return SimpleNamespace(latest=lambda: latest)


def test_where_a_session_begins():
    assert Opened().start == Address(0, 0)
    assert Opened(state=state()).start == Address(1, 2)


@pytest.mark.parametrize(
    ("latest", "began", "further"),
    [(None, None, False), (0, None, False), (1, None, True), (7, 7, False), (8, 7, True)],
)
def test_whether_a_session_came_further(latest, began, further):
    opened = Opened(
        checkpoints=None if latest is None else saved(latest),
        state=None if began is None else state(began),
    )
    assert opened.came_further() == further


def test_what_a_session_wrote_is_removed():
    calls = []
    folder = SimpleNamespace(rewind=lambda *places: calls.append(places))
    Opened(folder=folder).put_back()
    Opened(state=state()).put_back()
    assert calls == []
    Opened(folder=folder, state=state()).put_back()
    assert calls == [(1, 2, 7)]


@pytest.mark.parametrize(
    ("source", "copy", "latest", "taken"),
    [
        (None, (8, 1, "b"), 7, None),
        (Source(None, Path("c")), (8, 1, "b"), 7, None),
        (Source(Path("a"), Path("c")), (8, 1, "b"), 7, None),
        (Source(Path("a")), None, 7, None),
        (Source(Path("a")), (8, 1, "b"), 7, (1, "b")),
        (Source(Path("a")), (7, 1, "b"), 7, (1, "b")),
        (Source(Path("a")), (6, 1, "b"), 7, None),
    ],
)
def test_copies_that_are_as_new_as_any_checkpoint(source, copy, latest, taken, monkeypatch):
    folders = []
    monkeypatch.setattr(opening, "Checkpoints", lambda path: folders.append(path) or saved(latest))
    assert _copy(source, SimpleNamespace(newest_copy=lambda: copy)) == taken
    assert folders in ([], [Path("a/checkpoints")])


@pytest.mark.parametrize(
    ("newest", "changes", "copied", "lines"),
    [
        (None, "", False, []),
        (None, "n left", False, ["n left; starting run again, as there is no checkpoint"]),
        (Newest(Path("c/7"), state()), "", False, ["resuming run at epoch 1, step 2 (7)"]),
        (Newest(Path("c/7"), state()), "n left", False, ["n left; resuming run at epoch 1, "]),
        (
            Newest(Path("c/7"), state()),
            "",
            True,
            ["resuming run at epoch 1, step 2 (from the memory of rank 1 on n)"],
        ),
        (
            Newest(Path("c/7"), state(), [(Path("12"), "broken"), (Path("9"), "torn")]),
            "",
            False,
            [
                "cannot use 12: broken",
                "cannot use 9: torn",
                "resuming from an older one, after 7 steps; the 5 steps since then are repeated",
                "resuming run at epoch 1, step 2 (7)",
            ],
        ),
        (
            Newest(Path("c/7"), state(), [(Path("7"), "broken")]),
            "",
            False,
            ["cannot use 7", "resuming from an older one, after 7 steps; the steps since", "res"],
        ),
        (
            Newest(Path("c/7"), state(), [(Path("8"), "torn")]),
            "",
            False,
            [
                "cannot use 8",
                "resuming from an older one, after 7 steps; the step since then is repeated",
                "res",
            ],
        ),
        (
            Newest(Path("c/1"), state() | {"updates": 1}, [(Path("8"), "torn")]),
            "",
            False,
            ["cannot use 8", "resuming from an older one, after 1 step; the 7 steps since", "res"],
        ),
        (
            Newest(Path("c/7"), state(), [(Path("x"), "broken")]),
            "",
            False,
            ["cannot use x", "resuming from an older one, after 7 steps; the steps since", "res"],
        ),
    ],
)
def test_what_is_said_of_a_resumption(newest, changes, copied, lines, capsys, monkeypatch):
    steps = {"12": 12, "9": 9, "8": 8, "7": 7}
    monkeypatch.setattr(checkpoint, "steps_of", lambda path: steps.get(path.name))
    machines = SimpleNamespace(
        changes=lambda: changes,
        newest_copy=lambda: (7, 1, "b"),
        members=[SimpleNamespace(host="m"), SimpleNamespace(host="n")],
    )
    _say(SimpleNamespace(path="run"), newest, machines, copied)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(lines), said
    assert all(map(str.startswith, said, lines)), said
    if copied:
        machines.newest_copy = lambda: None
        _say(SimpleNamespace(path="run"), newest, machines, copied)
        assert capsys.readouterr().err == "resuming run at epoch 1, step 2 (7)\n"


def asked(**config):
    """A fit that asks for its folder and its state."""
    config = {"resume": None, "run_dir": "run", "scheduler": None, "resume_despite": []} | config
    identity = SimpleNamespace(is_told=True, data=None)
    return Opening(
        SimpleNamespace(cache_dir="cache", **config),
        SimpleNamespace(),
        SimpleNamespace(identity=identity),
        SimpleNamespace(fingerprint={"seed": "1"}, look=lambda: None),
        lambda state: None,
        lambda steps: None,
        0,
        {},
    )


def test_the_place_to_resume_from():
    again, first = SimpleNamespace(started_again=True), SimpleNamespace(started_again=False)
    assert asked()._source(again) == Source(Path("run"), required=False)
    assert asked()._source(first) is None
    with pytest.raises(ConfigError):
        asked(resume="nowhere")._source(again)


def test_the_newest_state_of_a_place(monkeypatch, tmp_path):
    monkeypatch.setattr(checkpoint, "load_checked", lambda path, check: state())
    monkeypatch.setattr(checkpoint, "find_newest", lambda folder, check: "the newest")
    monkeypatch.setattr(checkpoint, "has_checkpoint", lambda folder: folder.name == "full")
    manifests = {"stopped": {"status": "preempted"}, "other": {"status": "failed"}}

    def manifest(folder):
        if folder.name not in manifests:
            raise ConfigError("none is there")
        return manifests[folder.name]

    monkeypatch.setattr(opening, "read_manifest", manifest)
    fit = asked()
    assert fit._newest(Source(None, tmp_path / "c")) == Newest(tmp_path / "c", state(), [])
    assert fit._newest(Source(tmp_path / "full")) == "the newest"
    assert fit._newest(Source(tmp_path / "stopped")) is None
    assert fit._newest(Source(tmp_path / "other")) == "the newest"
    assert fit._newest(Source(tmp_path / "empty")) == "the newest"
    assert fit._newest(Source(tmp_path / "empty", required=False)) is None
    assert fit._newest(Source(tmp_path / "full", required=False)) == "the newest"


@pytest.mark.parametrize(
    ("scheduler", "moves"),
    [(None, 7), ({"_target_": "a"}, 7), ({"interval": "step"}, 7), ({"interval": "epoch"}, 2)],
)
def test_a_schedule_continues_by_steps_or_by_epochs(scheduler, moves, monkeypatch):
    taken = []
    monkeypatch.setattr(resumption, "with_schedules", lambda *words: taken.append(words))
    monkeypatch.setattr(resumption, "fingerprint", lambda config, own, moves: {"seed": "1"})
    history = {"result": {"history": [{}, {}]}}
    fit = asked(scheduler=scheduler)
    fit._continued(state(progress=history, fingerprint={"seed": "2"}))
    assert taken == [({"seed": "2"}, fit.fingerprint, moves, scheduler)]


@pytest.mark.parametrize(("saved_seed", "fits"), [("1", True), ("2", False)])
def test_tensors_are_compared_with_those_of_the_same_run_only(saved_seed, fits, monkeypatch):
    from penstock.runs import run_state

    monkeypatch.setattr(run_state, "check", lambda state: None)
    monkeypatch.setattr(resumption, "fingerprint", lambda config, own, moves: {"seed": "1"})
    compared = []
    fit = asked()
    object.__setattr__(fit, "fits", compared.append)
    known = state(fingerprint={"seed": saved_seed})
    fit._check(known)
    assert compared == ([known] if fits else [])


@pytest.mark.parametrize(
    ("differ", "despite", "keys"),
    [
        ([], [], None),
        (["seed"], [], ["seed"]),
        ([f"k{number}" for number in range(30)], [], 30),
        ([f"k{number}" for number in range(32)], [], 31),
    ],
)
def test_differences_from_a_checkpoint(differ, despite, keys, monkeypatch):
    own = {f"k{number}": "1" for number in range(32)} | {"seed": "1"}
    monkeypatch.setattr(resumption, "fingerprint", lambda config, of_loader, moves: dict(own))
    monkeypatch.setattr(opening, "mode_in", lambda fingerprint: "content")
    monkeypatch.setattr(opening.installed, "all_of", lambda name: [])
    monkeypatch.setattr(opening, "first_difference", lambda cache, then, now: None)
    now = own | {"dataset": "1"}
    monkeypatch.setattr(opening, "in_mode_of", lambda saved, own, data: now)
    before = state(fingerprint=now | dict.fromkeys(differ, "2"))
    if keys is None:
        asked(resume_despite=despite)._check_same(before)
        return
    with pytest.raises(ConfigError) as caught:
        asked(resume_despite=despite)._check_same(before)
    problems = caught.value.problems
    if isinstance(keys, list):
        assert [problem.key for problem in problems] == keys
    else:
        assert len(problems) == keys
        assert (problems[-1].message == "2 more keys differ") == (keys == 31)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize(
    ("newest", "scheduler", "renewed", "line"),
    [
        (None, None, None, None),
        (Newest(Path("c/7"), state(fingerprint={})), None, None, None),
        (Newest(Path("c/7"), state(fingerprint={})), {"_target_": "a.Step"}, None, None),
        (
            Newest(Path("c/7"), state(fingerprint={})),
            {"_target_": "a.Step"},
            9,
            "schedule: a new Step, over the 9 steps from here on; the run's was made for 5",
        ),
        (
            Newest(Path("c/7"), state(fingerprint={})),
            {"_target_": "a.Step", "interval": "epoch"},
            9,
            "schedule: a new Step, over the 9 epochs from here on; the run's was made for 5",
        ),
    ],
)
def test_a_folder_is_claimed_or_opened_again(
    old, newest, scheduler, renewed, line, monkeypatch, capsys
):
    calls, notes, tried = [], {}, []

    def opened(name):
        return lambda path, *words, **more: calls.append((name, path, more)) or folder

    folder = SimpleNamespace(
        path="run",
        note=lambda **more: notes.update(more),
        had_other_data=lambda data: None,
        rewind=lambda *place: calls.append(("rewind", *place)) or 3,
    )
    kind = SimpleNamespace(claim=opened("claim"), reopen=opened("reopen"))
    monkeypatch.setattr(opening, "RunFolder", kind)
    monkeypatch.setattr(opening, "has_manifest", lambda path: old)
    monkeypatch.setattr(opening, "overrides", lambda: ["trainer.max_epochs=9", "seed=1"])
    monkeypatch.setattr(opening, "_say", lambda *words: None)
    monkeypatch.setattr(opening, "changes", lambda before, now: [("model", "m", "a", "b")])
    monkeypatch.setattr(resumption, "fingerprint", lambda config, own, moves: {"seed": "1"})
    monkeypatch.setattr(resumption, "run_of", lambda path: None)
    monkeypatch.setattr(resumption, "spans", lambda fingerprint: [2, 3])
    monkeypatch.setattr(Opening, "_newest", lambda self, source: newest)
    monkeypatch.setattr(Opening, "_check_same", lambda self, state: None)
    monkeypatch.setattr(Opening, "_continued", lambda self, state: ({}, renewed))
    fit = asked(
        scheduler=scheduler,
        written=lambda: {},
        trainer=SimpleNamespace(skip=[[0, 1], [0, 2]] if old else None),
    )
    for name, value in (
        ("group", SimpleNamespace(world=SimpleNamespace(size=2))),
        ("facts", {"code": {}, "data": {}}),
        ("scheduled", tried.append),
    ):
        object.__setattr__(fit, name, value)
    machines = SimpleNamespace(facts={"host": "m"}, same_launch=False)
    assert fit._open(Source(Path("a")), machines, None) == (folder, newest)
    (name, path, more), *rewound = calls
    place = [1, 2] if newest else [0, 0]
    if old:
        assert (name, path) == ("reopen", Path("a"))
        assert (more["at"], more["longer"]) == (place, ["trainer.max_epochs=9"])
        assert more["resumed"] == (str(Path("c/7")) if newest else None)
        assert rewound == [("rewind", *place, 7 if newest else 0)]
        assert notes == {"repeated": 3, "skipped": (((0, 1), (0, 2)),)}
    else:
        assert (name, path, rewound) == ("claim", Path("run"), [])
        began = {"at": [1, 2], "resumed": str(Path("c/7"))} if newest else {}
        assert notes == {"host": "m", **began}
    said = capsys.readouterr().err.splitlines()
    assert said[1:] == ([line] if line else [])
    assert len(said) == bool(newest) + bool(line)
    assert tried == ([renewed] if renewed else [])


@pytest.mark.parametrize("source", [Source(Path("a")), None])
@pytest.mark.parametrize("usable", [True, False])
def test_a_copy_of_the_state_is_taken_if_it_can_be_used(source, usable, monkeypatch, capsys):
    compared, said = [], []
    old = Newest(Path("c/5"), state(5, fingerprint={}))

    def check(self, state):
        if not usable:
            raise ValueError("torn")

    folder = SimpleNamespace(
        path="run", note=lambda **more: None, had_other_data=lambda data: None, rewind=lambda *at: 0
    )
    kind = SimpleNamespace(claim=lambda *_, **more: folder, reopen=lambda *_, **more: folder)
    monkeypatch.setattr(opening, "RunFolder", kind)
    monkeypatch.setattr(opening, "has_manifest", lambda path: True)
    monkeypatch.setattr(opening, "_say", lambda *words: said.append(words))
    monkeypatch.setattr(opening, "changes", lambda *words: compared.append(words) or [])
    monkeypatch.setattr(opening, "last_code", lambda run: f"code of {run}")
    monkeypatch.setattr(resumption, "fingerprint", lambda config, own, moves: {"seed": "1"})
    monkeypatch.setattr(resumption, "run_of", lambda path: None if path == copy.path else "b")
    for name, function in (
        ("_check", check),
        ("_newest", lambda self, source: old),
        ("_check_same", lambda self, state: None),
        ("_continued", lambda self, state: ({}, None)),
    ):
        monkeypatch.setattr(Opening, name, function)
    fit = asked(written=lambda: {}, trainer=SimpleNamespace(skip=None))
    object.__setattr__(fit, "group", SimpleNamespace(world=SimpleNamespace(size=2)))
    object.__setattr__(fit, "facts", {"code": "now", "data": {}})
    machines = SimpleNamespace(facts={}, same_launch=False)
    copy = Newest(Path("memory"), state(fingerprint={}))
    taken = copy if usable else old if source else None
    assert fit._open(source, machines, copy) == (folder, taken)
    assert said == [(folder, taken, machines, usable)]
    code = ("code of a" if source else None) if usable else "code of b" if source else 0
    assert compared == ([(code, "now")] if code != 0 else [])
    refused = "" if usable else "the copy in memory cannot be used: torn\n"
    assert capsys.readouterr().err == refused


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    ("first", "copied", "taken"),
    [
        (True, None, "new"),
        (True, None, ""),
        (True, "memory", "new"),
        (False, None, ""),
        (False, None, "c/7"),
        (False, "memory", "memory"),
        (False, "memory", "c/7"),
    ],
)
def test_all_ranks_open_the_same_state(kept, first, copied, taken, monkeypatch):
    newest = Newest(Path("new"), state()) if first and taken else None
    copy = Newest(Path("memory"), state(8)) if copied else None
    shared, aside, asked_for, opened_with = [], [], [], []

    def open_folder(self, *words):
        opened_with.append(words)
        return folder, newest

    folder = SimpleNamespace(path="run", manifest={"sessions": [{"id": "a"}, {"id": "b"}]})
    copies = SimpleNamespace(
        share=lambda group, rank, start, check: shared.append((rank, start)) or copy,
        of_start=lambda config, session, group, resumed: (session, resumed),
    )
    saves = SimpleNamespace(set_aside_after=aside.append)
    monkeypatch.setattr(opening.installed, "copies", lambda: copies)
    monkeypatch.setattr(opening.machines, "gather", lambda group: "members")
    monkeypatch.setattr(opening, "Machines", lambda members, folder: (members, folder))
    monkeypatch.setattr(opening, "_copy", lambda source, machines: (1, "s") if copied else None)
    monkeypatch.setattr(opening, "Checkpoints", lambda *words: asked_for.append(words) or saves)
    monkeypatch.setattr(checkpoint, "load", lambda path: ("loaded", path))
    monkeypatch.setattr(resumption, "fingerprint", lambda config, own, moves: {"seed": "1"})
    monkeypatch.setattr(Opening, "_source", lambda self, machines: Source(Path("a")))
    monkeypatch.setattr(Opening, "_open", open_folder)
    monkeypatch.setattr(Opening, "_continued", lambda self, state: ({"seed": "2"}, 9))
    of_first = iter([(1, "s") if copied else None, ("run", taken, "b")])
    sent = []
    group = SimpleNamespace(
        is_first=first, alone=False, from_first=lambda own: sent.append(own) or next(of_first)
    )
    saving = SimpleNamespace(keep_last=3, background=False) if kept else None
    fit = asked(trainer=SimpleNamespace(checkpoint=saving))
    object.__setattr__(fit, "group", group)
    opened = fit.open()
    states = {"": None, "new": state(), "memory": state(8), "c/7": ("loaded", Path("c/7"))}
    assert opened.state == states[taken]
    assert shared == ([(1, "s")] if copied else [])
    assert opened.copies == ("b", bool(taken))
    assert (opened.fingerprint, opened.renewed) == (
        ({"seed": "2"}, 9) if taken else ({"seed": "1"}, None)
    )
    assert opened.folder is (folder if first else None)
    where = (1, "s") if first and copied else None
    assert sent == [where, ("run", taken, "b") if first else ("", "", "")]
    then = "members", Path("a")
    assert opened_with == ([(Source(Path("a")), then, copy)] if first else [])
    assert asked_for == ([(Path("run/checkpoints"), 3, False, group)] if kept else [])
    assert opened.checkpoints is (saves if kept else None)
    assert aside == ([7] if kept and newest else [])


@pytest.mark.parametrize(
    ("alone", "start", "copies"),
    [(True, None, False), (True, "s", True), (False, None, True), (False, "s", True)],
)
def test_copies_serve_ranks_that_are_started_again(alone, start, copies, monkeypatch):
    brought = []
    monkeypatch.setattr(opening.installed, "copies", lambda: brought.append(True))
    monkeypatch.setattr(opening, "launcher_start", lambda: start)
    monkeypatch.setattr(opening.machines, "gather", lambda group: "members")
    monkeypatch.setattr(resumption, "fingerprint", lambda config, own, moves: {"seed": "1"})
    of_first = iter([(1, "s"), ("run", "", "b")])
    group = SimpleNamespace(is_first=False, alone=alone, from_first=lambda own: next(of_first))
    fit = asked(trainer=SimpleNamespace(checkpoint=None))
    object.__setattr__(fit, "group", group)
    opened = fit.open()
    assert (opened.state, opened.copies) == (None, None)
    assert bool(brought) == copies


@pytest.mark.parametrize("despite", [[], ["dataset"]])
@pytest.mark.parametrize("told", [True, False])
def test_data_that_cannot_be_fingerprinted_is_looked_at(told, despite, monkeypatch, capsys):
    compared = []
    monkeypatch.setattr(resumption, "fingerprint", lambda config, own, moves: {"seed": "1"})
    monkeypatch.setattr(opening, "in_fingerprint", lambda seen: {"seen": seen})
    monkeypatch.setattr(opening, "in_mode_of", lambda saved, own, data: own | {"dataset": "1"})
    monkeypatch.setattr(opening, "mode_in", lambda fingerprint: "content")
    monkeypatch.setattr(opening, "compared_rows", lambda saved, own: "first rows are the same")
    monkeypatch.setattr(opening, "same_but_for_skips", lambda saved, own, at: saved)
    monkeypatch.setattr(opening.installed, "all_of", lambda name: [])
    monkeypatch.setattr(
        resumption, "differences", lambda saved, own, despite: compared.append(own) or []
    )
    fit = asked(resume_despite=despite)
    fit.split.identity.is_told = told
    fit.train.look = lambda: "rows"
    fit._check_same(state(fingerprint={"seed": "1"}))
    looked = {} if told else {"seen": "rows"}
    assert compared == [{"seed": "1", "dataset": "1"} | looked]
    said = capsys.readouterr().err
    line = "as far as is known, the data is that of the run: first rows are the same; "
    assert said.startswith(line) if not (told or despite) else said == ""


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        (("stat", "content", "stat"), True),
        (("stat", "content", "content"), False),
        (("stat", "stat", "stat"), False),
    ],
)
def test_data_may_be_fingerprinted_in_another_mode(modes, said, monkeypatch, capsys):
    then, now, compared = modes
    known = {"1": then, "2": now, "3": compared}
    monkeypatch.setattr(resumption, "fingerprint", lambda config, own, moves: {"seed": "2"})
    monkeypatch.setattr(opening, "mode_in", lambda fingerprint: known[fingerprint["seed"]])
    same_way = {"seed": "3", "dataset": "1"}
    monkeypatch.setattr(opening, "in_mode_of", lambda saved, own, data: same_way)
    monkeypatch.setattr(opening, "same_but_for_skips", lambda saved, own, at: saved)
    monkeypatch.setattr(opening.installed, "all_of", lambda name: [])
    monkeypatch.setattr(resumption, "differences", lambda saved, own, despite: [])
    asked()._check_same(state(fingerprint={"seed": "1"}))
    line = "the data is that of the run by stat, its fingerprint so far; from now on it is "
    assert capsys.readouterr().err == (f"{line}fingerprinted by content\n" if said else "")


@pytest.mark.parametrize("file", ["a.png is another one", None])
def test_differences_are_explained(file, monkeypatch):
    monkeypatch.setattr(resumption, "fingerprint", lambda config, own, moves: {"seed": "1"})
    monkeypatch.setattr(resumption, "other_skips", lambda saved, own, at: f"skips from {at}")
    monkeypatch.setattr(opening, "mode_in", lambda fingerprint: "content")
    monkeypatch.setattr(opening, "in_mode_of", lambda saved, own, data: own | {"dataset": "1"})
    monkeypatch.setattr(opening, "same_but_for_skips", lambda saved, own, at: saved)
    monkeypatch.setattr(opening, "first_difference", lambda cache, then, now: file)
    monkeypatch.setattr(opening.installed, "all_of", lambda name: [])
    keys = [resumption.SKIP, "dataset", "seed"]
    problems = [Problem(key, "is 1, and was 2") for key in keys]
    monkeypatch.setattr(resumption, "differences", lambda saved, own, despite: list(problems))
    with pytest.raises(ConfigError) as caught:
        asked()._check_same(state(fingerprint={"seed": "1"}))
    data = f"{file}; its fingerprint is 1, and was 2" if file else "is 1, and was 2"
    messages = [f"skips from {Address(1, 2)}", data, "is 1, and was 2"]
    assert list(caught.value.problems) == list(map(Problem, keys, messages))
