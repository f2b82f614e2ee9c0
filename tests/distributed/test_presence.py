"""What a rank does about news of the others; no time passes here, and nothing ends.

`test_hangs.py` has real ranks.
"""

import json
import platform
import signal
import threading
from types import SimpleNamespace

import pytest

from penstock.distributed import meeting, preemption, presence, standing
from penstock.distributed.presence import LateError, Presence
from penstock.distributed.standing import Described, Standing
from penstock.distributed.world import World
from penstock.errors import LOST, PREEMPTED

RANK_0, RANK_2 = (Described(pid, "node1", 5, 6, 7) for pid in (10, 12))


class Flag:
    """An event: `waits` has what each wait gives, the last one for all that follow."""

    def __init__(self, *waits):
        self.waits, self.seconds = list(waits) or [False], []

    def wait(self, seconds):
        self.seconds.append(seconds)
        return self.waits.pop(0) if len(self.waits) > 1 else self.waits[0]

    def set(self):
        self.waits = [True]

    def clear(self):
        self.waits = [False]

    def is_set(self):
        return self.waits[0]


class Left(BaseException):
    """The process has ended with a code."""


@pytest.fixture
def until(monkeypatch):
    """What was waited for: whether it was so, and for how many seconds at most."""
    waited = []
    monkeypatch.setattr(
        presence, "_until", lambda condition, seconds: waited.append((condition(), seconds))
    )
    return waited


@pytest.fixture
def rank(monkeypatch, tmp_path, until):
    """Makes a rank whose store is a folder, and whose methods of some names are only noted."""

    def leave(code):
        raise Left(code)

    monkeypatch.setattr(presence.os, "_exit", leave)
    for name in ("PENSTOCK_MEETING", "TORCHELASTIC_MAX_RESTARTS"):
        monkeypatch.delenv(name, raising=False)

    def make(number=1, size=3, served=False, noted=()):
        made = Presence(World(number, size, number, local_size=size), 2.0)
        made._store, made._served = meeting.Notes(tmp_path), served
        made._said, made._done, made._waited = Flag(), Flag(), Flag()
        made.called = []
        for name in noted:
            setattr(made, name, lambda *given, name=name: made.called.append((name, *given)))
        return made

    return make


def news(rank, **notes):
    for name, value in notes.items():
        text = value if isinstance(value, str) else json.dumps(value)
        rank._store.set(name.replace("_", "-"), text)
    rank._store.set("news", "1")


@pytest.mark.parametrize(
    ("folder", "address", "served"),
    [("", "10.0.0.1", True), ("", "", False), ("met", "10.0.0.1", False), ("met", "", False)],
)
def test_rank_0_serves_the_store_at_an_address_without_a_folder(
    folder, address, served, monkeypatch
):
    monkeypatch.setenv("PENSTOCK_MEETING", folder)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    made = Presence(World(0, 2), 2.0)
    assert made._served == served
    assert made._guard.interval == 5.0


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("alive", [True, False])
def test_the_end_of_the_context_ends_those_that_are_late(said, alive, rank):
    here, joined = rank(noted=["_end_others"]), []
    here._said, here._done = Flag(said), threading.Event()
    here._thread = SimpleNamespace(is_alive=lambda: alive, join=joined.append)
    with here:
        assert not here._guard.finished.is_set()
    assert here._guard.finished.is_set()
    assert here._done.is_set()
    assert here.called == [("_end_others",)] * said
    assert joined == [0.25] * alive


def test_a_rank_that_joins_knows_the_server(rank, until):
    for served, known in ((False, {}), (True, {}), (True, {0: RANK_0})):
        here = rank(served=served)
        here._descriptions = known
        here.joined()
        assert here._guard.finished.is_set()
    assert until == [(False, 3.0), (True, 3.0)]


TIMED_OUT = ("Timed out waiting 2000ms", "Wait timeout", "Socket Timeout", "socket timeout")
CLOSED = ("Connection closed by peer", "connection reset", "Broken pipe", "Connection refused")


@pytest.mark.parametrize(
    ("text", "state", "late", "waited"),
    [
        *((text, {}, text != "Socket Timeout", []) for text in TIMED_OUT),
        ("timed out after 2 s", {}, True, []),
        ("Application timeout caused pair closure", {}, True, []),
        ("pair closure", {"_said": Flag(True)}, True, [1.0]),
        *((text, {"_said": Flag(True)}, True, [1.0]) for text in CLOSED),
        ("Connection closed", {}, False, [1.0]),
        ("Connection closed", {"_answered": True}, True, [1.0]),
        ("out of memory", {"_said": Flag(True)}, False, []),
        ("timed out after 2 s", {"_store": None}, False, []),
    ],
)
@pytest.mark.parametrize("caused", [True, False])
def test_which_errors_mean_that_a_rank_is_late(text, state, late, waited, caused, rank):
    here = rank(noted=["_verdict"])
    here._verdict = lambda: "late"
    vars(here).update({name: value for name, value in state.items() if name != "_said"})
    here._said = Flag(*state["_said"].waits) if "_said" in state else Flag()
    with pytest.raises(RuntimeError) as raised:
        raise RuntimeError("of gloo" if caused else text) from (OSError(text) if caused else None)
    assert here.explained(raised.value) == ("late" if late else None)
    assert here._said.seconds == waited
    assert bool(here._gave_up_at) == late


@pytest.mark.parametrize(
    ("said", "seconds", "called"),
    [
        ([True], [3.0], []),
        ([False, True], [3.0, 9.0], [("_ask_server",)]),
        ([False], [3.0, 9.0], [("_ask_server",), ("_say_alone",)]),
    ],
)
def test_a_rank_waits_until_it_is_said_who_is_late(said, seconds, called, rank, monkeypatch):
    here, ignored = rank(noted=["_ask_server", "_say_alone", "_end_others"]), []
    monkeypatch.setattr(preemption, "ignore", lambda: ignored.append(True))
    here._said, here._text = Flag(*said), "rank 2 is late"
    error = here._verdict()
    assert isinstance(error, LateError)
    assert str(error) == "rank 2 is late"
    assert (error.exit_code, error.told) == (PREEMPTED, True)
    assert (here._said.seconds, here.called, ignored) == (seconds, called, [True])
    assert here._waited.is_set()
    here._said = Flag(True)
    with pytest.raises(Left, match=str(PREEMPTED)):
        here._never_joined()
    assert here.called[-1] == ("_end_others",)


@pytest.mark.parametrize(
    ("number", "served", "known", "sibling", "state", "looked"),
    [
        (1, True, RANK_0, None, "T", [("_look_at", 0, RANK_0)]),
        (1, True, RANK_0, None, "t", [("_look_at", 0, RANK_0)]),
        (1, True, RANK_0, None, "S", []),
        (1, True, None, 10, "T", [("_look_at", 0, None)]),
        (1, True, None, None, "T", []),
        (0, True, RANK_0, None, "T", []),
        (1, False, RANK_0, None, "T", []),
    ],
)
def test_a_server_that_is_stopped_is_looked_at(
    number, served, known, sibling, state, looked, rank, monkeypatch
):
    monkeypatch.setattr(standing, "sibling", {0: sibling}.get)
    monkeypatch.setattr(standing, "state_of", {10: state}.get)
    here = rank(number, served=served, noted=["_look_at"])
    here._descriptions = {} if known is None else {0: known}
    here._ask_server()
    assert here.called == looked


@pytest.mark.parametrize(
    ("number", "served", "says"), [(1, True, True), (0, True, False), (0, False, True)]
)
@pytest.mark.parametrize("hint", ["", "To resume: x"])
def test_one_rank_says_that_nobody_answers(number, served, says, hint, rank, capsys):
    here = rank(number, served=served)
    here._descriptions, here.hint = {0: RANK_0}, hint
    here._say_alone()
    who = "the store of the launcher gives no answer, and no rank can be asked"
    if served:
        who = "rank 0 (process 10 on node1) gives no sign of life. It serves the ranks' store"
    text = f"{who}. The others have waited for 2 s (distributed.timeout)"
    assert here._text == (f"{text}\n{hint}" if hint else text)
    assert capsys.readouterr().err == (f"error: {here._text}\n" if says else "")
    assert here._said.is_set()


def test_ranks_of_this_machine_are_looked_at(rank, monkeypatch):
    monkeypatch.setattr(standing, "sibling", {3: 13}.get)
    monkeypatch.setattr(standing, "ask", lambda one: Standing("asked") if one == RANK_2 else None)
    monkeypatch.setattr(standing, "before_joining", lambda pid: Standing(f"{pid} is late"))
    here = rank()
    for number, described in ((0, RANK_0), (2, RANK_2), (3, None), (4, None)):
        here._look_at(number, described)
    assert here._asked == {2: Standing("asked"), 3: Standing("13 is late")}
    here._descriptions = {2: RANK_2}
    here._ask([2, 3, 4])
    assert json.loads(here._store.get("asked-3"))["how"] == "13 is late"
    assert not here._store.check(["asked-4"])


@pytest.mark.parametrize(("number", "served"), [(0, True), (0, False), (1, True)])
@pytest.mark.parametrize(("seen", "there"), [(1, False), (2, True), (3, False)])
def test_late_ranks_are_killed_once_the_others_know(
    number, served, seen, there, rank, until, monkeypatch
):
    killed = []
    monkeypatch.setattr(standing, "is_there", lambda described: there)
    monkeypatch.setattr(standing, "kill", killed.append)
    here = rank(number, served=served)
    here._asked = {0: Standing(), 2: Standing()}
    here._descriptions, here._seen_by = {2: RANK_2, 1: RANK_0}, 2
    here._store.add("seen", seen)
    here._end_others()
    assert killed == [RANK_2]
    assert until == [(seen >= 2, 3.0)] * (served and number == 0) + [(not there, 3.0)]


def test_nobody_has_to_have_seen_what_was_never_said(rank, until):
    rank(0, served=True)._end_others()
    assert until == [(True, 3.0)] * 2


@pytest.mark.parametrize("served", [True, False])
def test_a_rank_is_seen_and_looks_for_news(served, rank):
    here = rank(0, served=served, noted=["_look", "_lost"])
    here._live()
    assert here.called == [("_look",)]
    assert json.loads(here._store.get("rank-0")) == vars(standing.description())
    assert here._descriptions == ({0: standing.description()} if served else {})
    assert not here._store.check(["news"])


@pytest.mark.parametrize(("answered", "seconds"), [(True, 1.0), (False, 2.0)])
@pytest.mark.parametrize("done", [True, False])
def test_a_rank_whose_store_is_gone_is_lost(answered, seconds, done, rank):
    here = rank(noted=["_lost"])
    here._answered, here._done = answered, Flag(done)

    def look():
        raise RuntimeError("the store is gone")

    here._look = look
    if done:
        here._live()
    else:
        with pytest.raises(Left, match=str(PREEMPTED)):
            here._live()
    assert here.called == [("_lost",)]
    assert here._done.seconds == [seconds]


LOOKED = ["_answer", "_decide", "_lost", "_ask", "_end"]


def looks(here, times=2):
    here._done = Flag(*[False] * times, True)
    here._look()
    assert set(here._done.seconds) == {0.25}
    return here.called


def test_the_first_rank_that_waited_decides(rank):
    first, second = rank(1, noted=LOOKED), rank(2, noted=LOOKED)
    for here in (first, second):
        here._waited = Flag(True)
    first._answer = second._answer = lambda: None
    assert looks(first, 1) == [("_decide",)]
    assert json.loads(first._store.get("call")) == 1
    assert looks(second, 1) == []
    assert json.loads(first._store.get("call")) == 1
    idle = rank(0, noted=LOOKED)
    idle._answered, idle._waited = True, Flag(True)
    assert looks(idle) == []


def test_nothing_is_read_before_there_is_news(rank):
    here = rank(noted=LOOKED)
    for name in ("lost", "stop", "call", "ask", "end"):
        here._store.set(name, "{}")
    assert looks(here) == []


@pytest.mark.parametrize(
    ("notes", "called"),
    [
        ({}, []),
        ({"lost": "1"}, [("_lost",)] * 2),
        ({"call": 0}, [("_answer",)] * 2),
        ({"ask": {"by": [0, 1], "ranks": [2]}}, [("_ask", [2])]),
        ({"ask": {"by": [0], "ranks": [2]}}, []),
        ({"end": {"text": "x"}}, [("_end", {"text": "x"})]),
    ],
)
def test_news(notes, called, rank):
    here = rank(noted=LOOKED)
    news(here, **notes)
    assert looks(here) == called
    if "call" in notes:
        here._answered, here.called = True, []
        assert looks(here) == []


@pytest.mark.parametrize("asked", [None, "SIGTERM"])
def test_a_request_to_another_rank_is_one_to_this_rank(asked, rank, monkeypatch):
    sent, here = [], rank(noted=LOOKED)
    monkeypatch.setattr(preemption, "asked", lambda: asked)
    monkeypatch.setattr(signal, "pthread_kill", lambda *given: sent.append(given))
    rank(0).tell("SIGUSR1")
    assert looks(here, 3) == []
    main = threading.main_thread().ident
    assert sent == ([] if asked else [(main, signal.SIGUSR1)])


def test_a_process_ends_with_another_unless_its_main_thread_finds_out(rank, capsys):
    here = rank()
    here._apart = Flag(True)
    here._lost()
    assert capsys.readouterr().err == ""
    here._apart = Flag(False)
    with pytest.raises(Left, match=str(LOST)):
        here._lost()
    assert here._apart.seconds == [2.0]
    assert capsys.readouterr().err == "rank 1: ends, as another rank is gone\n"


@pytest.mark.parametrize(("late", "seconds"), [([1, 2], 1.0), ([2], 10.0)])
@pytest.mark.parametrize("done", [True, False])
def test_once_it_is_said_who_is_late_a_rank_leaves(late, seconds, done, rank):
    here = rank(noted=["_end_others"])
    here._done = Flag(done)
    verdict = {"text": "rank 2 is late", "late": late, "seen_by": 2}
    if done:
        here._end(verdict)
    else:
        with pytest.raises(Left, match=str(PREEMPTED)):
            here._end(verdict)
    assert here._done.seconds == [seconds]
    assert (here._text, here._seen_by, here._said.is_set()) == ("rank 2 is late", 2, True)
    assert here._store.add("seen", 0) == 1
    assert here.called == [("_end_others",)] * (not done)


@pytest.mark.parametrize(
    ("gave_up", "waits", "waited", "stack", "told"),
    [
        ([], False, False, ["here"], False),
        ([], True, False, ["here"], True),
        (["there"], False, True, ["there"], True),
    ],
)
def test_a_rank_answers_where_it_stands(gave_up, waits, waited, stack, told, rank, monkeypatch):
    monkeypatch.setattr(standing, "own", lambda threads: Standing("", ["here"], waits))
    here = rank()
    here._gave_up_at, here._waited = gave_up, Flag(waited)
    here._asked = {0: Standing("is stopped", ["frame"])}
    here._answer()
    assert here._answered
    asked = {"0": {"how": "is stopped", "stack": ["frame"], "waits": False}}
    assert json.loads(here._store.get("at-1")) == {"stack": stack, "waits": told, "asked": asked}
    assert here._store.check(["news"])


def at(waits, asked=None, stack=("in f",)):
    return {"stack": list(stack), "waits": waits, "asked": asked or {}}


STOPPED = vars(Standing("is stopped (SIGSTOP)", ["in g"]))
OTHERS = ". The others have waited for 2 s (distributed.timeout)"
LIVES = "lives, but does not come to where the others wait"
STANDS = "    rank {} stands at (innermost first):\n      {}"


@pytest.mark.parametrize(
    ("notes", "late", "seen_by", "text"),
    [
        (
            {"at_0": at(True), "at_1": at(True), "at_2": at(False)},
            [2],
            3,
            f"rank 2 {LIVES}{OTHERS}\n{STANDS.format(2, 'in f')}",
        ),
        (
            {"at_0": at(True), "at_1": at(True), "at_2": at(True, stack=())},
            [],
            3,
            "the ranks wait for each other, and not at the same place, for 2 s "
            "(distributed.timeout)\n" + "\n".join(STANDS.format(rank, "in f") for rank in (0, 1)),
        ),
        (
            {"at_0": at(True), "at_1": at(True), "asked_2": STOPPED},
            [2],
            2,
            f"rank 2 is stopped (SIGSTOP){OTHERS}\n{STANDS.format(2, 'in g')}",
        ),
        (
            {"at_0": at(True), "at_1": at(True, {2: STOPPED}), "asked_2": {"how": "is odd"}},
            [2],
            2,
            f"rank 2 is stopped (SIGSTOP){OTHERS}\n{STANDS.format(2, 'in g')}",
        ),
        (
            {"at_1": at(True, stack=()), "rank_0": vars(RANK_0)},
            [0, 2],
            1,
            "rank 0 (process 10 on node1) gives no sign of life; rank 2 has not come" + OTHERS,
        ),
    ],
)
@pytest.mark.parametrize(
    ("restarts", "hint", "end"),
    [
        ("0", "", ""),
        ("0", "To resume: x", "\nTo resume: x"),
        ("1", "To resume: x", "\nAll ranks start again (distributed.max_restarts)."),
    ],
)
def test_who_is_late(
    notes, late, seen_by, text, restarts, hint, end, rank, until, monkeypatch, capsys
):
    monkeypatch.setattr(standing, "sibling", lambda rank: None)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
    here = rank(noted=["_ask"])
    here.hint = hint
    news(here, **notes)
    here._decide()
    verdict = {"text": text + end, "late": late, "seen_by": seen_by}
    assert json.loads(here._store.get("end")) == verdict
    assert capsys.readouterr().err == f"error: {text}{end}\n"
    silent = [rank for rank in range(3) if f"at_{rank}" not in notes]
    assert until[0] == (not silent, 3.0)
    answered = all(f"asked_{rank}" in notes for rank in silent)
    assert until[1:] == [(answered, 3.0)] * bool(silent)
    assert here._store.check(["ask"]) == bool(silent)
    assert here.called == []  # no rank that answered is known by its machine


def test_one_rank_of_each_machine_asks_the_silent_ones(rank):
    here = rank(1, 5, noted=["_ask"])
    hosts = {0: "a", 1: "b", 2: "b", 3: "a"}
    described = {
        f"rank_{number}": vars(Described(number, host, 0, 0, 0)) for number, host in hosts.items()
    }
    news(here, **{f"at_{number}": at(True) for number in hosts}, **described)
    here._decide()
    assert json.loads(here._store.get("ask")) == {"ranks": [4], "by": [0, 1]}
    assert here.called == [("_ask", [4])]
    other = rank(2, 5, noted=["_ask"])
    other._decide()
    assert other.called == []


def test_four_late_ranks_are_shown(rank):
    here = rank(size=6)
    for number in range(6):
        news(here, **{f"at_{number}": at(False)})
    here._decide()
    assert json.loads(here._store.get("end"))["text"].count("stands at") == 4


def test_how_a_rank_is_named(monkeypatch):
    monkeypatch.setattr(standing, "sibling", {3: 13}.get)
    assert presence._named(0, RANK_0) == "rank 0 (process 10 on node1)"
    assert presence._named(3, None) == f"rank 3 (process 13 on {platform.node()})"
    assert presence._named(4, None) == "rank 4"


def test_waiting_ends_with_the_condition_or_the_time(monkeypatch):
    now, asked = [0.0], []

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(presence, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    presence._until(lambda: asked.append(now[0]) or len(asked) == 3, 60)
    assert asked == pytest.approx([0.0, 0.1, 0.2])
    asked.clear()
    now[0] = 5.0
    presence._until(lambda: asked.append(now[0]), 0.25)
    assert asked == pytest.approx([5.0, 5.1, 5.2, 5.3])
    asked.clear()
    presence._until(lambda: asked.append(now[0]), 0)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("error", "note"),
    [(None, False), (ValueError("x"), True), (LateError("x"), False), (KeyboardInterrupt(), False)],
)
def test_a_rank_that_fails_leaves_a_note(error, note, rank):
    here = rank()

    def work():
        with here.ends_with_others():
            assert not here._apart.is_set()
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(type(error)):
            work()
    assert here._apart.is_set()
    assert here._store.check(["lost", "news"]) == note


def test_a_store_that_is_gone_takes_no_note(rank, monkeypatch):
    here = rank()
    monkeypatch.setattr(here, "_store", SimpleNamespace())
    here._store.set = lambda *_: (_ for _ in ()).throw(RuntimeError("gone"))
    here.tell("SIGTERM")
    cloned = SimpleNamespace(clone=lambda: "a connection of its own")
    here._thread = SimpleNamespace(start=lambda: None)
    here.meet(cloned)
    assert here._store == "a connection of its own"
