"""Datasets and transforms that end or hang their worker, a given number of times."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import IterableDataset

from tests.support import toy, warm


class Files(toy.Pictures):
    """Pictures that know their paths."""

    def path(self, index):
        return f"pictures/{index}.png"


class Lines(IterableDataset):
    """A stream of 40 numbers."""

    def __iter__(self):
        yield from range(40)

    def decode(self, number):
        return {"image": torch.full((3, 4, 4), number, dtype=torch.uint8)}


class Doom:
    """Ends the process on one sample, the first `times` that it comes there.

    Args:
        how: name of a signal, "exit CODE", "loop", "lock", "sleep", "socket" or "condition".
        index: of the sample.
        folder: where it counts.
    """

    def __init__(self, how, index, folder, times=1):
        self.how, self.index, self.folder, self.times = how, index, Path(folder), times

    def __call__(self, sample):
        # A sample that knows its own index, as those of toy.Pictures and Lines do.
        pixels = sample["image"]
        index = int(pixels[0, 0, 1]) - (1 if pixels.shape[-1] == 16 else 0)
        if index == self.index and len(list(self.folder.iterdir())) < self.times:
            (self.folder / f"{self.index}-{os.getpid()}").touch()
            end(self.how)
        return sample


def end(how):
    """End or hang this process."""
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
    elif how.startswith("exit"):
        os._exit(int(how.split()[1]))
    elif how == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif how == "sleep":
        time.sleep(60)
    elif how == "socket":
        ours, _theirs = socket.socketpair()
        ours.recv(1)
    elif how == "condition":  # waits for another thread, which sleeps
        thread = threading.Thread(target=time.sleep, args=(60,))
        thread.start()
        thread.join()
    while how == "loop":
        pass


class Start:
    """A `worker_init_fn` that ends the process, the first `times` that it runs."""

    def __init__(self, folder, times=1):
        self.folder, self.times = Path(folder), times

    def __call__(self, worker_id):
        if len(list(self.folder.iterdir())) < self.times:
            (self.folder / str(os.getpid())).touch()
            end("SIGKILL")


class Bulky:
    """Adds what does not travel as shared memory, more than a socket takes at once."""

    def __call__(self, sample):
        image = np.asarray(sample["image"]).reshape(-1)
        return {**sample, "text": "x" * 200_000 + str(int(image[1]))}


class Slow:
    """Takes its time."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, sample):
        time.sleep(self.seconds)
        return sample


class Noted(Slow):
    """Leaves the number of its process in a folder."""

    def __init__(self, seconds, folder):
        super().__init__(seconds)
        self.folder = Path(folder)

    def __call__(self, sample):
        (self.folder / str(os.getpid())).touch()
        return super().__call__(sample)


PROGRAM = """
import os, signal, sys, threading, time
from tests import port
from tests.support import deaths, toy

def go():
    options = port.Options("process", 2, multiprocessing_context=sys.argv[1])
    loader = toy.loader(options, deaths.Noted(0.05, sys.argv[3]), deaths.Files(4000))
    for batch in loader.epoch(0):
        if batch.request.step >= 3 and len(os.listdir(sys.argv[3])) == 2:  # both have started
            pids = port.worker_pids(loader)
            print(*pids, flush=True)
            {end}
            return

if __name__ == "__main__":
    if sys.argv[2] == "thread":
        thread = threading.Thread(target=go)
        thread.start()
        thread.join()
    else:
        go()
"""


def program(context, where, folder, end):
    """A program that has begun to load in its "main" thread or another, and then does `end`."""
    script = Path(folder) / "program.py"
    script.write_text(PROGRAM.format(end=end))
    at_work = Path(folder) / "at work"
    for place in (at_work, Path(folder) / "temporary"):
        place.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TMPDIR": str(Path(folder) / "temporary"),
    }
    return warm.start(
        [sys.executable, script, context, where, at_work],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def check_orphans(context, where, folder):
    """No worker outlives its main process, nor does a stopped one where the kernel can help."""
    with program(context, where, folder, "time.sleep(60)") as main:
        pids = [int(pid) for pid in main.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(is_gone(pid) for pid in pids)
        os.kill(pids[0], signal.SIGSTOP)
        main.kill()
        assert until(lambda: is_gone(pids[1]))
        if context == "forkserver":  # the server is their parent, and lives on
            os.kill(pids[0], signal.SIGCONT)
        assert until(lambda: is_gone(pids[0]))
    assert not any(files_of(pid) for pid in pids)
    if context != "forkserver":  # multiprocessing's server has a socket there
        assert not list((Path(folder) / "temporary").iterdir())


def is_gone(pid):
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(condition, seconds=60.0):
    """Whether `condition` comes true within some seconds."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if condition():
            return True
        time.sleep(0.02)
    return False


def children():
    """Names of this process's children, but for the helpers of multiprocessing and of the tests."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    names = {(pid, Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in pids}
    helpers = b"resource_tracker", b"forkserver", b"tests.warm_server"
    # One without a command line has ended, and nobody has waited for it yet.
    return {one for one in names if one[1] and not any(helper in one[1] for helper in helpers)}


def files_of(pid):
    """What a process has left of torch's shared memory."""
    return list(Path("/dev/shm").glob(f"torch_{pid}_*"))


def assert_told_of_row_7(text, requests):
    """Whether a message about a death names the address, the sample, its place and the others."""
    request = next(one for one in requests if 7 in one.indices)
    place = request.indices.tolist().index(7) + 1
    assert (
        f"it was at stage 'transform' of epoch 0, step {request.step}, "
        f"sample 7 (pictures/7.png), {place} of 8\n"
    ) in text
    held = ", ".join(f"{row} pictures/{row}.png" for row in request.indices)
    assert f"    it held epoch 0, step {request.step}: samples {held}\n" in text
    assert "death 1 of 3 at this address" in text
