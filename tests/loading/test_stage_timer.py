"""Seconds by stage, by a clock that the test sets; and which side they blame."""

from types import SimpleNamespace

import pytest

from penstock.loading import stage_timer
from penstock.loading.stage_timer import StageTimer, slower_side


@pytest.fixture
def clock(monkeypatch):
    """now: of the wall; cpu: of this thread; late: seconds without a core."""
    clock = SimpleNamespace(now=100.0, cpu=10.0, late=1.0)
    monkeypatch.setattr(
        stage_timer,
        "time",
        SimpleNamespace(perf_counter=lambda: clock.now, thread_time=lambda: clock.cpu),
    )
    monkeypatch.setattr(stage_timer, "delayed", lambda: clock.late)
    return clock


def pass_by(clock, now, cpu=0.0, late=0.0):
    clock.now, clock.cpu, clock.late = clock.now + now, clock.cpu + cpu, clock.late + late


@pytest.mark.parametrize("traced", [False, True])
def test_a_stage_has_the_seconds_of_its_laps(clock, traced):
    timer = StageTimer(traced)
    for stage, seconds in (("read", 1), ("decode", 2), ("decode", 4), ("read", 8)):
        pass_by(clock, seconds, cpu=seconds / 2, late=0.25)
        assert timer.lap(stage) == clock.now
    assert timer.seconds == {"read": 9, "decode": 6}
    pass_by(clock, 0.5, late=0.5)  # after the last lap
    trace = timer.trace()
    if not traced:
        assert trace is None
        return
    assert (trace.begin, trace.end) == (100, 115)
    assert trace.laps == [("read", 100, 101), ("decode", 101, 107), ("read", 107, 115)]
    assert trace.computing == {"read": 4.5, "decode": 3}
    assert trace.delayed == 1
    assert trace.blocked == 15 - 7.5 - 1
    pass_by(clock, 2)
    assert timer.trace().delayed == 0  # all of it may have come after the last lap
    trace.delayed = 10
    assert trace.blocked == 0


def test_a_delay_before_a_batch_is_not_the_batchs(clock, monkeypatch):
    def delayed():
        clock.now += 3  # while the kernel's file is read
        return clock.late

    monkeypatch.setattr(stage_timer, "delayed", delayed)
    timer = StageTimer(traced=True)
    pass_by(clock, 10, late=5)
    timer.lap("read")
    clock.late += 3  # the reading of the file for the trace
    assert timer.trace().delayed == 2
    assert timer.trace().begin == 103


@pytest.mark.parametrize(
    ("text", "seconds"), [("1 2500000000 3", 2.5), ("1", 0), ("a b", 0), (None, 0)]
)
def test_the_kernel_counts_delays(text, seconds, tmp_path, monkeypatch):
    path = tmp_path / "schedstat"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(stage_timer, "_SCHEDSTAT", path)
    assert stage_timer.delayed() == seconds


@pytest.mark.parametrize(
    ("waited", "work", "step", "workers", "busy", "side"),
    [
        (0.49, 1, 1, 0, 0, "training"),  # without workers only the waiting counts
        (0.5, 1, 1, 0, 0, "loading"),
        (0.09, 9, 1, 1, 1, "training"),
        (0.1, 9, 1, 1, 1, "loading"),
        (0.1, 1, 4, 1, 0.4, "training"),  # stalls
        (0.24, 1, 4, 1, 0.4, "training"),
        (0.25, 1, 4, 1, 0.4, "neither"),
        (0.24, 2, 4, 1, 0.4, "neither"),
        (0.24, 3, 4, 2, 0.4, "training"),
        (0.24, 1, 4, 1, 0.5, "neither"),
        (0.5, 3, 4, 1, 0.59, "neither"),
        (0.5, 3, 4, 1, 0.6, "loading"),
        (0.5, 4, 4, 1, 0.1, "loading"),
        (0.5, 7, 4, 2, 0.1, "neither"),
    ],
)
def test_the_slower_side_is_the_one_to_make_faster(waited, work, step, workers, busy, side):
    assert slower_side(waited, work, step, workers, busy) == side
