"""Workers that die or hang: replaced, told of, and no batch the less or other for it."""

import logging
import os
import re
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock import torch_internals
from penstock.loading import worker_status
from penstock.loading.batch import Batch
from penstock.loading.collate import List, Stack
from penstock.loading.loader import Loader
from penstock.loading.stream_fetch import StreamFetch
from penstock.loading.workers import channel, failures, pool
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.pool import ProcessBackend
from penstock.loading.workers.results import WorkerError
from penstock.order.streams import StreamOrder, StreamPlan
from tests import deaths, toy
from tests.deaths import Doom, Files, assert_told_of_row_7

TWO = LoaderOptions("process", 2)


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
        if record.name == "penstock.loading.workers.pool"
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
    assert loader.stats.deaths == 1
    text = message(caplog)
    assert re.search(rf"^DataLoader worker [01] \(pid \d+\) {said}", text)
    assert_told_of_row_7(text, [one.request for one in toy.loader(dataset=Files()).epoch(0)])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("SIGSTOP", r"it had been stopped \(SIGSTOP, or a debugger\)"),
        ("loop", r"deaths\.py\", line \d+ in end"),
        ("lock", r"deaths\.py\", line \d+ in end"),
    ],
)
def test_a_worker_that_hangs_is_replaced_after_the_limit(how, said, tmp_path, caplog):
    loader = toy.loader(LoaderOptions("process", 2, timeout=1), Doom(how, 7, tmp_path), Files())
    began = time.monotonic()
    assert toy.hashes(loader) == undisturbed()
    assert 1 < time.monotonic() - began < 60  # generously; the default is 300
    text = message(caplog)
    assert re.search(
        rf"gave no sign of life for 1 s \(loader\.timeout\) and was killed[\s\S]*{said}", text
    )
    assert "sample 7 (pictures/7.png)" in text
    assert "_bootstrap" not in text  # the stack is that of the work, not of how it was started


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("SIGSTOP", r"had been stopped for 1 s and was killed[\s\S]*it had been stopped"),
        ("lock", r"waited for a lock that nobody was there to release, for 1 s, and was killed"),
    ],
)
def test_a_worker_that_cannot_go_on_is_distinguished_from_one_that_works(
    how, said, tmp_path, caplog, monkeypatch
):
    # With the limit of 300 s; the patience with what cannot go on is shortened here.
    monkeypatch.setattr(pool, "_STOPPED", 1.0)
    monkeypatch.setattr(pool, "_LOCKED", 1.0)
    loader = toy.loader(TWO, Doom(how, 7, tmp_path), Files())
    assert toy.hashes(loader) == undisturbed()
    assert loader.stats.deaths == 1
    text = message(caplog)
    assert re.search(said, text)
    assert "sample 7 (pictures/7.png)" in text


@pytest.mark.parametrize("how", ["loop", "sleep", "socket", "condition"])
def test_a_worker_that_may_be_at_work_keeps_its_300_seconds(how, tmp_path):
    # Each of them sleeps without CPU time or computes without a sign, as slow data does.
    process = torch.multiprocessing.get_context("fork").Process(target=deaths.end, args=(how,))
    process.start()
    try:
        time.sleep(0.2)
        looks = [failures.waits_for_locks(process.pid)]
        time.sleep(0.3)
        looks.append(failures.waits_for_locks(process.pid))
        assert failures.state_of(process.pid) in "RS"
        assert looks[0] is None or looks[1] is None or looks[0] != looks[1]
    finally:
        process.kill()
        process.join()


def test_work_that_takes_longer_than_the_limit_in_all_does_not_hang():
    # A batch takes 3.2 s, a sample 0.4 s: each of them is a sign of life.
    loader = toy.loader(LoaderOptions("process", 1, timeout=3), deaths.Slow(0.4), toy.Pictures(8))
    assert numbers(loader.epoch(0)) == [0]
    assert loader.stats.deaths == 0


@pytest.mark.stress
def test_recovery_works_where_processes_are_spawned(tmp_path, caplog):
    options = LoaderOptions("process", 1, multiprocessing_context="spawn", persistent_workers=True)
    with toy.loader(options, Doom("exit 1", 7, tmp_path), Files()) as loader:
        assert toy.hashes(loader, 0) == undisturbed()
        assert loader.stats.deaths == 1
        assert toy.hashes(loader, 1) == undisturbed(epoch=1)
        assert loader.stats.deaths == 0
    assert "sample 7 (pictures/7.png)" in message(caplog)


def test_the_third_death_at_one_address_stops_the_run(tmp_path, caplog):
    loader = toy.loader(TWO, Doom("SIGKILL", 7, tmp_path, times=9), Files())
    steps = []
    batches = loader.epoch(0)
    with pytest.raises(WorkerError) as caught:
        steps.extend(batch.request.step for batch in batches)
    text = str(caught.value)
    assert re.search(r"death 3 at this address, and loader\.max_deaths=3", text)
    assert "sample 7 (pictures/7.png)" in text
    # What comes before it was delivered first.
    assert f"it held epoch 0, step {len(steps)}: samples" in text
    assert steps == list(range(len(steps)))
    assert loader.stats.deaths == 3
    assert len(caplog.records) == 2  # the third is the error


@pytest.mark.thorough
def test_how_many_deaths_are_too_many_can_be_chosen(tmp_path):
    doom = Doom("SIGKILL", 7, tmp_path, times=4)
    loader = toy.loader(LoaderOptions("process", 2, max_deaths=5), doom, Files())
    assert toy.hashes(loader) == undisturbed()
    assert loader.stats.deaths == 4


def test_a_worker_that_dies_while_it_starts_is_replaced(tmp_path, caplog):
    options = LoaderOptions("process", 1, worker_init_fn=deaths.Start(tmp_path))
    assert toy.hashes(toy.loader(options, dataset=Files())) == undisturbed()
    assert "it was starting\n" in message(caplog)


def test_workers_that_cannot_start_stop_the_run(tmp_path):
    options = LoaderOptions("process", 2, worker_init_fn=deaths.Start(tmp_path, times=99))
    with pytest.raises(WorkerError, match=r"it was starting[\s\S]*death 3"):
        toy.hashes(toy.loader(options, dataset=Files()))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
def test_all_workers_may_be_killed_at_once(persistent, in_order):
    options = LoaderOptions("process", 2, persistent_workers=persistent, in_order=in_order)
    killed = []
    with toy.loader(options, deaths.Slow(0.002), Files(80), size=4) as loader:
        for epoch in range(2):
            steps = []
            for batch in loader.epoch(epoch):
                if batch.request.step in (0, 10, 19):
                    for pid in loader._backend.pids():
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
                steps.append(batch.request.step)
            assert (steps if in_order else sorted(steps)) == list(range(20))
            assert loader.stats.deaths >= 4
    assert not any(deaths.files_of(pid) for pid in killed)


def test_a_death_never_interrupts_the_training_loop():
    # torch's own handler would raise in the middle of it.
    with toy.loader(TWO, deaths.Slow(0.002), Files()) as loader:
        batches = loader.epoch(0)
        next(batches)
        for pid in loader._backend.pids():
            os.kill(pid, signal.SIGKILL)
        ends = time.monotonic() + 0.5
        while time.monotonic() < ends:
            torch.ones(8).sum()
        assert numbers(batches) == [1, 2, 3, 4]


def test_idle_workers_that_died_between_epochs_are_replaced():
    # At once, the first that is replaced could make all five batches before the other is missed.
    options = LoaderOptions("process", 2, persistent_workers=True)
    with toy.loader(options, deaths.Slow(0.02), Files()) as loader:
        toy.hashes(loader, 0)
        pids = loader._backend.pids()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert deaths.until(lambda: all(map(deaths.is_gone, pids)))
        assert toy.hashes(loader, 1) == undisturbed(epoch=1)
        assert loader.stats.deaths == 2


def test_recovery_works_outside_of_the_main_thread(tmp_path):
    found = []
    loader = toy.loader(TWO, Doom("SIGKILL", 7, tmp_path), Files())
    thread = threading.Thread(target=lambda: found.extend(toy.hashes(loader)))
    thread.start()
    thread.join(200)
    assert found == undisturbed()


def test_workers_outlive_the_thread_that_started_them():
    # Where the kernel is to end them with their parent, it takes the starting thread for it.
    with toy.loader(
        LoaderOptions("process", 2, persistent_workers=True), dataset=Files()
    ) as loader:
        thread = threading.Thread(target=toy.hashes, args=(loader,))
        thread.start()
        thread.join()
        time.sleep(0.2)
        assert len(loader._backend.pids()) == 2
        assert toy.hashes(loader, 1) == undisturbed(epoch=1)
        assert loader.stats.deaths == 0


def test_a_message_that_was_cut_off_stops_nobody(tmp_path):
    # Each batch is 1.6 MB of text: a killed worker has most likely sent a part of one.
    loader = toy.loader(TWO, deaths.Bulky(), Files(80), List())
    expected = [batch["text"] for batch in toy.loader(None, deaths.Bulky(), Files(80), List())]
    got, killed = [], set()
    for batch in loader.epoch(0):
        got.append(batch["text"])
        if batch.request.step in (1, 4, 7):
            killed.add(pid := loader._backend.pids()[0])
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
    assert got == expected
    # A death is noticed where a batch is waited for; a worker may have sent all of its own before.
    assert 1 <= loader.stats.deaths <= len(killed)


@pytest.mark.thorough
def test_recovery_works_in_the_thread_that_pins(tmp_path, monkeypatch):
    # There need be no accelerator here: torch is told that there is one, and pins nothing.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    pinned = []
    monkeypatch.setattr(Batch, "pin_memory", lambda batch: pinned.append(batch) or batch)
    loader = toy.loader(TWO, Doom("SIGKILL", 7, tmp_path), Files())
    for persistent in (False, True):
        options = replace(TWO, persistent_workers=persistent)
        backend = ProcessBackend(loader.fetch, options, pin=True)
        for epoch in range(2):
            requests = (loader.plan.request(epoch, step) for step in range(len(loader)))
            with backend.run(requests) as results:
                assert [toy.batch_hash([one]) for one in results] == undisturbed(epoch=epoch)
        backend.close()
        assert backend.deaths == (0 if persistent else 1)
    assert len(pinned) == 20


def test_the_limit_is_never_for_ever_unless_asked_for():
    assert (LoaderOptions().limit, LoaderOptions(timeout=7).limit) == (300, 7)
    assert LoaderOptions(timeout=0).limit == 0


def test_streams_recover(tmp_path):
    def stream(options, transform=None):
        fetch = StreamFetch(
            deaths.Lines(), transform, Stack(), 0, order=StreamOrder(0, buffer=8), batch_size=4
        )
        return Loader(StreamPlan(StreamOrder(0, buffer=8), 4), fetch, options)

    expected = [batch["image"] for batch in stream(None).epoch(0)]
    loader = stream(TWO, Doom("SIGKILL", 21, tmp_path))
    got = [batch["image"] for batch in loader.epoch(0)]
    assert loader.stats.deaths == 1
    assert len(got) == len(expected) == 10
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_leaving_an_epoch_ends_workers_that_are_stopped():
    loader = toy.loader(TWO, deaths.Slow(0.001), Files())
    batches = loader.epoch(0)
    next(batches)
    pids = loader._backend.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    batches.close()
    assert all(deaths.is_gone(pid) for pid in pids)


def test_a_thread_that_hangs_ends_the_run_with_its_stack(tmp_path):
    options = LoaderOptions("thread", 2, timeout=1)
    loader = toy.loader(options, Doom("sleep", 7, tmp_path), Files())
    with pytest.raises(WorkerError) as caught:
        toy.hashes(loader)
    text = str(caught.value)
    assert re.search(r"^loader thread penstock-loader-\d gave no sign of life for 1 s", text)
    assert "sample 7 (pictures/7.png)" in text
    assert re.search(r"deaths\.py\", line \d+, in end\s+time\.sleep\(60\)", text)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("context", "where"), [("fork", "main"), ("fork", "thread")])
def test_no_worker_outlives_the_main_process(context, where, tmp_path):
    deaths.check_orphans(context, where, tmp_path)


def test_a_program_ends_although_a_worker_is_stopped(tmp_path):
    with deaths.program("fork", "main", tmp_path, "os.kill(pids[0], signal.SIGSTOP)") as main:
        assert main.wait(240) == 0


def test_what_the_board_says_is_where_an_executor_stands():
    cell = memoryview(bytearray(8 * worker_status.FIELDS)).cast("q")
    worker_status.clear(cell)
    assert worker_status.read(cell).stage == worker_status.STARTING
    worker_status.use(cell)
    worker_status.report(worker_status.WHOLE, worker_status.READ, (3, 14))
    assert worker_status.read(cell) == (3, 14, worker_status.WHOLE, worker_status.READ)
    worker_status.report(5, worker_status.TRANSFORM)
    assert worker_status.read(cell) == (3, 14, 5, worker_status.TRANSFORM)
    worker_status.report(worker_status.WHOLE, worker_status.IDLE)
    assert not worker_status.read(cell).works


@pytest.mark.parametrize(("size", "files"), [(12, 0), (1 << 15, 451)])
def test_messages_keep_tensors_that_share_memory_together(size, files):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        base = torch.arange(float(size))
        thing = {
            "base": base,
            "view": base[4:].view(-1, 4),
            "none": torch.empty(0),
            "text": "ü",
            "array": np.arange(3),
            "many": [torch.full((size,), float(n)) for n in range(450)],
        }
        packed = channel.pack(thing)
        assert len(packed.descriptors) == files
        sender = threading.Thread(target=channel.send, args=(theirs, packed))
        sender.start()
        receiver = channel.Receiver(ours)
        message = None
        while message is None:
            message = receiver.take()
        sender.join()
        got = channel.unpack(message)
    got["base"][4] = 99
    assert got["view"][0, 0] == 99
    assert base[4] == 4
    assert [int(one[0]) for one in got["many"]] == list(range(450))
    assert (got["none"].numel(), got["text"], got["array"].tolist()) == (0, "ü", [0, 1, 2])


def test_half_a_message_is_not_waited_for_and_leaves_nothing_open():
    ours, theirs = socket.socketpair()
    before = deaths.open_files()
    with ours:
        packed = channel.pack([torch.ones(1 << 15), "x" * 1000])
        with theirs:
            theirs.sendall(channel._HEADER.pack(len(packed.data), 1))
            channel._send_descriptors(theirs, packed.descriptors)
            theirs.sendall(packed.data[:500])
            receiver = channel.Receiver(ours)
            assert receiver.take() is None
        with pytest.raises(EOFError):
            receiver.take()
        receiver.drop()
        del packed
        assert deaths.open_files() == before - 1


def test_memory_of_workers_has_no_name(tmp_path):
    # torch's own has one in /dev/shm for a moment, and a killed process would leave it there.
    seen = toy.loader(LoaderOptions("process", 1), Named()).epoch(0)
    assert all(bool(batch["memfd"].all()) for batch in seen)


class Named:
    """Says whether torch's shared memory is anonymous in this process."""

    def __call__(self, sample):
        storage = torch_internals.shared_storage(1 << 20)
        descriptor = storage._share_fd_cpu_()[0]
        name = Path(f"/proc/self/fd/{descriptor}").readlink()
        return {**sample, "memfd": torch.tensor(str(name).startswith("/memfd:"))}
