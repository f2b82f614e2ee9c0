"""Workers that die or hang: replaced, told of, and no batch the less or other for it."""

import logging
import os
import re
import signal
import threading
import time
from contextlib import suppress

import pytest
import torch

from penstock.loading.collate import List
from tests import port
from tests.port import Options, WorkerError
from tests.support import deaths, toy
from tests.support.deaths import Doom, Files, assert_told_of_row_7

TWO = Options("process", 2)


@pytest.fixture(autouse=True)
def nothing_stays(caplog):
    """No test leaves a process behind."""
    caplog.set_level(logging.WARNING)
    before = deaths.children()
    yield
    assert deaths.children() <= before


def undisturbed(transform=None, epoch=0):
    return toy.hashes(toy.loader(transform=transform, dataset=Files()), epoch)


def message(caplog):
    """What was said of one death."""
    said = [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("penstock.loading")
    ]
    assert len(said) == 1
    return said[0]


def numbers(batches):
    """Of what is not hashed here: which addresses came, in which order."""
    return [batch.request.step for batch in batches]


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("SIGKILL", r"was killed by signal 9 \(SIGKILL\)[\s\S]*no stack"),
        ("SIGSEGV", r"was killed by signal 11 \(SIGSEGV\)[\s\S]*deaths\.py\", line \d+ in end"),
        ("SIGABRT", r"was killed by signal 6 \(SIGABRT\)[\s\S]*deaths\.py\", line \d+ in end"),
        ("exit 0", "exited unexpectedly with code 0"),
        ("exit 1", "exited unexpectedly with code 1"),
    ],
)
def test_a_dead_worker_is_replaced_and_reported(how, said, tmp_path, caplog):
    expected = undisturbed()
    loader = toy.loader(TWO, Doom(how, 7, tmp_path), Files())
    assert toy.hashes(loader) == expected
    assert loader.workers.deaths == 1
    text = message(caplog)
    assert re.search(rf"^DataLoader worker [01] \(pid \d+\) {said}", text)
    assert_told_of_row_7(text, [one.request for one in toy.loader(dataset=Files()).epoch(0)])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("how", ["SIGSTOP", "loop", "lock"])
def test_a_worker_that_hangs_is_replaced_after_the_limit(how, tmp_path, caplog):
    loader = toy.loader(Options("process", 2, timeout=1), Doom(how, 7, tmp_path), Files())
    began = time.monotonic()
    assert toy.hashes(loader) == undisturbed()
    assert 1 < time.monotonic() - began < 60  # generously; the default is 120
    text = message(caplog)
    said = r"gave no sign of life for 1 s \(loader\.timeout\) and was killed"
    assert re.search(said + r"[\s\S]*deaths\.py\", line \d+ in end", text)
    assert "sample 7 (pictures/7.png)" in text
    assert "_bootstrap" not in text  # the stack is that of the work, not of how it was started


def test_work_that_takes_longer_than_the_limit_in_all_does_not_hang():
    # A batch takes 3.2 s, a sample 0.4 s: each of them is a sign of life.
    loader = toy.loader(Options("process", 1, timeout=3), deaths.Slow(0.4), toy.Pictures(8))
    assert numbers(loader.epoch(0)) == [0]
    assert loader.workers.deaths == 0


def test_the_third_death_at_one_address_stops_the_run(tmp_path, caplog):
    loader = toy.loader(TWO, Doom("SIGKILL", 7, tmp_path, times=9), Files())
    steps = []
    batches = loader.epoch(0)
    with pytest.raises(WorkerError) as caught:
        steps.extend(batch.request.step for batch in batches)
    text = str(caught.value)
    assert re.search(r"death 3 of 3 at this address \(loader\.max_deaths\)", text)
    assert "sample 7 (pictures/7.png)" in text
    # What comes before it was delivered first.
    assert f"it held epoch 0, step {len(steps)}: samples" in text
    assert steps == list(range(len(steps)))
    assert loader.workers.deaths == 3
    assert len(caplog.records) == 2  # the third is the error


def test_a_worker_that_dies_while_it_starts_is_replaced(tmp_path, caplog):
    options = Options("process", 1, worker_init_fn=deaths.Start(tmp_path))
    assert toy.hashes(toy.loader(options, dataset=Files())) == undisturbed()
    assert "it was starting\n" in message(caplog)


def test_workers_that_cannot_start_stop_the_run(tmp_path):
    options = Options("process", 2, worker_init_fn=deaths.Start(tmp_path, times=99))
    with pytest.raises(WorkerError, match=r"it was starting[\s\S]*death 3 of 3"):
        toy.hashes(toy.loader(options, dataset=Files()))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
def test_all_workers_may_be_killed_at_once(persistent, in_order):
    options = Options("process", 2, persistent_workers=persistent, in_order=in_order)
    killed = []
    with toy.loader(options, deaths.Slow(0.002), Files(80), size=4) as loader:
        for epoch in range(2):
            steps = []
            for batch in loader.epoch(epoch):
                if batch.request.step in (0, 10, 19):
                    for pid in port.worker_pids(loader):
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
                steps.append(batch.request.step)
            assert (steps if in_order else sorted(steps)) == list(range(20))
            assert loader.workers.deaths >= 4
    assert not any(deaths.files_of(pid) for pid in killed)


def test_a_death_never_interrupts_the_training_loop():
    # torch's own handler would raise in the middle of it.
    with toy.loader(TWO, deaths.Slow(0.002), Files()) as loader:
        batches = loader.epoch(0)
        next(batches)
        for pid in port.worker_pids(loader):
            os.kill(pid, signal.SIGKILL)
        ends = time.monotonic() + 0.5
        while time.monotonic() < ends:
            torch.ones(8).sum()
        assert numbers(batches) == [1, 2, 3, 4]


def test_idle_workers_that_died_between_epochs_are_replaced():
    # At once, the first that is replaced could make all five batches before the other is missed.
    options = Options("process", 2, persistent_workers=True)
    with toy.loader(options, deaths.Slow(0.02), Files()) as loader:
        toy.hashes(loader, 0)
        pids = port.worker_pids(loader)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert deaths.until(lambda: all(map(deaths.is_gone, pids)))
        assert toy.hashes(loader, 1) == undisturbed(epoch=1)
        assert loader.workers.deaths == 2


def test_recovery_works_outside_of_the_main_thread(tmp_path):
    found = []
    loader = toy.loader(TWO, Doom("SIGKILL", 7, tmp_path), Files())
    thread = threading.Thread(target=lambda: found.extend(toy.hashes(loader)))
    thread.start()
    thread.join(200)
    assert found == undisturbed()


def test_workers_outlive_the_thread_that_started_them():
    # Where the kernel is to end them with their parent, it takes the starting thread for it.
    with toy.loader(Options("process", 2, persistent_workers=True), dataset=Files()) as loader:
        thread = threading.Thread(target=toy.hashes, args=(loader,))
        thread.start()
        thread.join()
        time.sleep(0.2)
        assert len(port.worker_pids(loader)) == 2
        assert toy.hashes(loader, 1) == undisturbed(epoch=1)
        assert loader.workers.deaths == 0


def test_a_message_that_was_cut_off_stops_nobody(tmp_path):
    # Each batch is 1.6 MB of text: a killed worker has most likely sent a part of one.
    loader = toy.loader(TWO, deaths.Bulky(), Files(80), List())
    expected = [batch["text"] for batch in toy.loader(None, deaths.Bulky(), Files(80), List())]
    got, killed = [], set()
    for batch in loader.epoch(0):
        got.append(batch["text"])
        if batch.request.step in (1, 4, 7):
            killed.add(pid := port.worker_pids(loader)[0])
            with suppress(ProcessLookupError):  # on a busy machine the one before, buried just now
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
    assert got == expected
    # A death is noticed where a batch is waited for; a worker may have sent all of its own before.
    assert 1 <= loader.workers.deaths <= len(killed)


def test_streams_recover(tmp_path):
    def stream(options, transform=None):
        return port.loader(deaths.Lines(), size=4, transform=transform, buffer=8, options=options)

    expected = [batch["image"] for batch in stream(None).epoch(0)]
    loader = stream(TWO, Doom("SIGKILL", 21, tmp_path))
    got = [batch["image"] for batch in loader.epoch(0)]
    assert loader.workers.deaths == 1
    assert len(got) == len(expected) == 10
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_leaving_an_epoch_ends_workers_that_are_stopped():
    loader = toy.loader(TWO, deaths.Slow(0.001), Files())
    batches = loader.epoch(0)
    next(batches)
    pids = port.worker_pids(loader)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    batches.close()
    assert all(deaths.is_gone(pid) for pid in pids)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("context", "where"), [("fork", "main"), ("fork", "thread")])
def test_no_worker_outlives_the_main_process(context, where, tmp_path):
    deaths.check_orphans(context, where, tmp_path)


def test_a_program_ends_although_a_worker_is_stopped(tmp_path):
    with deaths.program("fork", "main", tmp_path, "os.kill(pids[0], signal.SIGSTOP)") as main:
        assert main.wait(240) == 0
