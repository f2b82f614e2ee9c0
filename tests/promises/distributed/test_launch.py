"""What the launcher makes of its ranks, which are small programs that import nothing."""

import logging
import signal
import sys

import pytest

from penstock.distributed import launch
from penstock.distributed.stop import SIGNALS
from penstock.errors import PREEMPTED

RANK = """
import json, os, sys
rank, start = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def end(code):
    if code < 0:
        os.kill(os.getpid(), -code)
        import time; time.sleep(60)
    sys.exit(code)
"""


@pytest.fixture(autouse=True)
def nameless_events(monkeypatch):
    """torch's events name the function that they come from by the stack, whose search for modules
    takes a second where a thousand tests are imported."""
    rendezvous = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
    monkeypatch.setattr(f"{rendezvous}.get_method_name", lambda depth=2: "")


def launched(body, processes=2, **options):
    return launch.run([sys.executable, "-I", "-S", "-c", RANK + body], processes, **options)


def test_each_rank_has_its_place(tmp_path):
    handlers = [signal.getsignal(number) for number in SIGNALS]
    launched(
        f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').write(os.environ['WORLD_SIZE'])", processes=3
    )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys("012", "3")
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    talks = logging.getLogger("torch.distributed.elastic.agent.server.api")
    assert not talks.isEnabledFor(logging.WARNING)  # of a signal, which a rank says in our words


@pytest.mark.parametrize(
    ("codes", "message", "code"),
    [
        ((2, 0), "", 2),
        ((0, -9), "rank 1 was ended by SIGKILL", 1),
        ((0, -15), "", 1),  # as the launcher itself ends ranks
        ((PREEMPTED, 0), "", PREEMPTED),
        ((2, PREEMPTED), "", 2),  # the most telling one wins
    ],
)
def test_the_failure_of_a_rank_is_that_of_the_run(codes, message, code, tmp_path):
    # The launcher ends the rank that it finds running with SIGTERM; that one has its code, too.
    meet = f"""
import signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(max({codes}[rank], 0)))
open({str(tmp_path)!r} + f"/{{rank}}", "w").close()
while len(os.listdir({str(tmp_path)!r})) < 2: time.sleep(0.01)
if {codes}[rank] < 0: signal.signal(signal.SIGTERM, signal.SIG_DFL)
"""
    with pytest.raises(launch.RanksError) as caught:
        launched(f"{meet}end({codes}[rank])")
    assert (str(caught.value), caught.value.exit_code) == (message, code)


def test_ranks_that_start_again_meet_each_other_and_not_the_dead(tmp_path):
    # Rank 1 comes first, when the launcher's store still has what the first rank 0 wrote.
    body = (
        "import time\n"
        "from penstock.distributed.group import join\n"
        "from penstock.distributed.world import from_environment\n"
        "time.sleep(3 * start * (1 - rank))\n"
        "with join(from_environment('cpu'), timeout=60) as group:\n"
        f"    open({str(tmp_path)!r} + f'/{{rank}}', 'w').write(str(group.gather(start)))\n"
        "    if start < 1 and not rank: end(-9)\n"
        "    group.gather(0)\n"
    )
    launch.run([sys.executable, "-c", RANK + body], 2, max_restarts=1)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        "01", "[1, 1]"
    )


def test_ranks_are_started_again_as_often_as_they_may_be(tmp_path):
    body = (
        f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').write(str(start))\n"
        "if start < 1: end(-9 if rank else 0)"
    )
    launched(body, max_restarts=1)
    assert (tmp_path / "0").read_text() == "1"
    with pytest.raises(launch.RanksError, match="rank 1 was ended by SIGKILL"):
        launched(body)
