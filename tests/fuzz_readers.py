"""Damaged and hostile folders for every reader: a batch of 64 comes of each, or a refusal, soon and
within 1 GiB.

    make fuzz                                                          10,000 for each reader
    python tests/fuzz_readers.py --reader parquet --count 10000 --seed 0 --first 0

Each folder (`fuzz_folders`, `fuzz_task_folders`) is read by a forked process as a run reads it:
dataset, fetch, collate.
What is allowed is a batch, or an error for people (PenstockError). Anything else is a finding:
another exception (MemoryError among them), the failure of a reader's own code (SampleError), a
signal, 240 s of processor time a folder, and 1 GiB more memory of its own than the process had
after its imports (RLIMIT_DATA; pages of mapped files are the kernel's to drop). The folder is then
kept, with its name in the report. Folder number n of a seed is always the same one.
"""

from __future__ import annotations

import argparse
import gc
import logging
import mmap
import os
import random
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # others reserve more than they use
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.files.batch_bytes import BatchTooLargeError
from penstock.loading import bad_samples
from penstock.loading.compose import Compose
from penstock.loading.fetch import Fetch, SampleError
from penstock.loading.stream_fetch import StreamFetch
from penstock.order.plan import Request
from penstock.order.samplers import Sequential
from penstock.order.streams import StreamOrder, StreamPlan, is_stream
from tests.fuzz_folders import LIMITS, ROWS, Files, Sparse, Way
from tests.fuzz_task_folders import READERS

CHUNK = 200  # folders that one process reads
MEMORY = 1 << 30  # bytes more than after imports
SECONDS = 240  # of processor time for a folder: 64 pictures of `limits.pixels` take 30 to 100
STUCK = 300  # seconds without any progress, on a machine however busy
FINDINGS = 20  # after so many, enough is known


@dataclass
class Report:
    """What came of the folders of one reader."""

    files: int = 0  # of different content
    read: int = 0  # a batch of it
    refused: int = 0
    too_large: int = 0  # of these: for the memory that a batch would take
    most: int = 0  # bytes of memory that a folder took, pages of mapped files among them
    seconds: float = 0.0  # of processor time
    findings: list[str] = field(default_factory=list)


def fuzz(name: str, numbers: range, seed: int, keep: Path) -> Report:
    """Read the damaged folders `numbers` of a reader.

    Args:
        keep: folder for those that are findings.
    """
    report = Report()
    while numbers and len(report.findings) < FINDINGS:
        chunk = numbers[:CHUNK]
        next_one = _chunk(name, seed, chunk, report, keep)
        numbers = range(next_one, numbers.stop)
    return report


def damaged(name: str, seed: int, number: int) -> Files:
    """The files of a folder."""
    return READERS[name].files(random.Random(f"{name} {seed} {number}"))


def write(files: Files, root: Path) -> None:
    """Write the files of a folder."""
    written: dict[int, Path] = {}
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if id(content) in written:
            os.link(written[id(content)], path)
            continue
        written[id(content)] = path
        if isinstance(content, Sparse):
            path.write_bytes(content.content)
            os.truncate(path, max(content.size, len(content.content)))
        else:
            path.write_bytes(content)


def read(name: str, root: Path, number: int) -> list[str]:
    """What came of each way of reading a folder: "" for a batch, or the error."""
    outcomes = []
    for place, way in enumerate(READERS[name].ways(root)):
        outcomes.append(_outcome(way, ("raise", "skip")[(number + place) % 2]))
        gc.collect()  # what a way left in cycles is not the next one's memory
    return outcomes


def _outcome(way: Way, on_error: Any) -> str:
    try:
        dataset = way.dataset()
        batch(dataset, way, on_error)
        for attribute in ("metadata", "fingerprint", "facts"):  # what else a run asks for
            getattr(dataset, attribute, None)
    except SampleError:
        raise
    except PenstockError as error:  # itself would keep what was read
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def batch(dataset: Any, way: Way, on_error: Any) -> Any:
    """A batch of 64 rows; of a dataset that has fewer, each several times."""
    steps = Compose(dict(enumerate(way.steps))) if way.steps else None
    most = LIMITS.batch_bytes
    if is_stream(dataset):
        order = StreamOrder(0, buffer=100 if on_error == "skip" else 0)
        bad = bad_samples.rule(on_error, {}, order, None, 0)
        fetch = StreamFetch(
            dataset, steps, way.collate, 0, bad=bad, batch_bytes=most, order=order, batch_size=ROWS
        )
        return fetch(StreamPlan(order, ROWS, "keep", None).request(0, 0))
    length = len(dataset)
    if length > ROWS:
        rows = np.linspace(0, length - 1, ROWS).astype(np.int64)
    else:
        rows = np.arange(ROWS) % max(length, 1)
    bad = bad_samples.rule(on_error, {}, Sequential(length), length, 0)
    fetch = Fetch(dataset, steps, way.collate, 0, bad=bad, batch_bytes=most)
    return fetch(Request(0, 0, np.arange(ROWS), rows, ROWS))


def _chunk(name: str, seed: int, numbers: range, report: Report, keep: Path) -> int:
    """Read some folders in a process; the number of the first one that was not read."""
    shared = mmap.mmap(-1, 48)  # the folder at hand, and the counts of `Report`
    shared[:] = struct.pack("6q", numbers.start, 0, 0, 0, 0, 0)
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory() as base:
        pid = os.fork()
        if pid == 0:
            os.dup2(errors.fileno(), 2)
            _read(name, seed, numbers, shared, Path(base))
        status, seconds = _wait(pid, shared)
        report.seconds += seconds
        number, files, done, refused, too_large, most = struct.unpack("6q", shared[:])
        report.files += files
        report.read += done
        report.refused += refused
        report.too_large += too_large
        report.most = max(report.most, most)
        if status == 0:
            return numbers.stop
        errors.seek(0)
        text = errors.read().decode(errors="replace").strip()[-1500:]
    kept = keep / f"{name}-{seed}-{number}"
    write(damaged(name, seed, number), kept)
    what = f"signal {signal.Signals(-status).name}" if status < 0 else "an exception"
    report.findings.append(
        f"{kept} (--reader {name} --seed {seed} --first {number} --count 1): {what}\n{text}"
    )
    return number + 1


def _read(name: str, seed: int, numbers: range, shared: mmap.mmap, base: Path) -> None:
    """In the process of its own: read the folders and exit."""
    code, files, done, refused, too_large, most = 1, 0, 0, 0, 0, 0
    try:
        warnings.simplefilter("ignore")
        logging.disable()
        torch.set_num_threads(1)
        damaged(name, seed, numbers.start)  # what is sound is made once
        gc.collect()
        gc.freeze()  # each collection from here on is of the folder at hand
        before = _status("VmRSS")
        limit = _status("VmData") + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in numbers:
            shared[:] = struct.pack("6q", number, files, done, refused, too_large, most)
            folder = base / str(number)
            root = folder / "root"
            root.mkdir(parents=True)
            contents = damaged(name, seed, number)
            write(contents, root)
            files += len({id(content) for content in contents.values()})
            del contents
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            outcomes = read(name, root, number)
            signal.setitimer(signal.ITIMER_PROF, 0)
            most = max(most, _status("VmHWM") - before)
            done += "" in outcomes
            refused += "" not in outcomes
            too_large += any(one.startswith(BatchTooLargeError.__name__) for one in outcomes)
            shutil.rmtree(folder)
            if number == numbers.start:  # what it imported is no garbage either
                gc.freeze()
        shared[:] = struct.pack("6q", numbers.stop, files, done, refused, too_large, most)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _status(name: str) -> int:
    """Bytes, by a field of this process's status."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) << 10


def _wait(pid: int, shared: mmap.mmap) -> tuple[int, float]:
    """The exit code, or the negative signal, of a process, and the processor time that it took.

    One that makes no progress is killed.
    """
    descriptor = os.pidfd_open(pid)
    try:
        before = None
        while not select.select([descriptor], [], [], STUCK)[0]:
            if shared[:8] == before:
                os.kill(pid, signal.SIGKILL)
            before = shared[:8]
        _, status, took = os.wait4(pid, 0)
        return os.waitstatus_to_exitcode(status), took.ru_utime + took.ru_stime
    finally:
        os.close(descriptor)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reader", choices=[*READERS, "all"], default="all")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    keep = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    failed = False
    for name in READERS if given.reader == "all" else [given.reader]:
        numbers = range(given.first, given.first + given.count)
        report = fuzz(name, numbers, given.seed, keep)
        print(
            f"{name}: {report.files} files, {report.read} folders read, {report.refused} refused, "
            f"{report.too_large} of all too large, {report.most >> 20} MiB at most, "
            f"{report.seconds:.0f} s of CPU time, {len(report.findings)} findings",
            flush=True,
        )
        for finding in report.findings:
            print(finding, flush=True)
        failed |= bool(report.findings)
    if not failed:
        keep.rmdir()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
