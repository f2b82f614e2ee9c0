"""Damaged files for every reader: whatever is in them, it comes back, soon and within 1 GiB.

    make fuzz                                                    all formats
    python tests/fuzz_files.py --format arrow --files 10000 --seed 0

Each file is a sound one, changed in a few places (`fuzz_formats`), and is read by a forked process
as a run reads it. The process may take 1 GiB more than it had after its imports (RLIMIT_DATA), and
5 s of processor time a file. What is allowed is a sample, or an error for people (PenstockError).
Anything else is a failure: another exception, MemoryError among them, a signal, a hang. The file is
then kept, with its name in the report. File number n of a seed is always the same one.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # others reserve more than they use
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from pipeline.errors import PenstockError
from tests.fuzz_formats import FORMATS, Format

CHUNK = 200  # files that one process reads
MEMORY = 1 << 30  # bytes more than after imports
SECONDS = 5  # of processor time for a file
STUCK = 120  # seconds without any progress, on a machine however busy
FAILURES = 20  # after so many, enough is known


@dataclass
class Report:
    """What came of the files of one format."""

    read: int = 0  # at least one sample of it
    refused: int = 0
    failures: list[str] = field(default_factory=list)


def damaged(format: Format, name: str, seed: int, number: int) -> tuple[str, bytes]:
    """The name and content of a damaged file."""
    draw = random.Random(f"{name} {seed} {number}")
    seeds = format.seeds()
    chosen = draw.choice(sorted(seeds))
    others = [seeds[other] for other in sorted(seeds)]
    return chosen, format.mutate(draw, seeds[chosen], others)


def fuzz(name: str, files: int, seed: int, keep: Path) -> Report:
    """Read `files` damaged files of a format.

    Args:
        keep: folder for files that failed.
    """
    format, report = FORMATS[name], Report()
    first = 0
    while first < files and len(report.failures) < FAILURES:
        stop = min(first + CHUNK, files)
        first = _chunk(format, name, seed, range(first, stop), report, keep)
    return report


def _chunk(format: Format, name: str, seed: int, numbers: range, report: Report, keep: Path) -> int:
    """Read some files in a process; the number of the first one that was not read."""
    shared = mmap.mmap(-1, 24)  # the file at hand, how many were read, how many refused
    shared[:] = struct.pack("qqq", numbers.start, 0, 0)
    with tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if pid == 0:
            os.dup2(errors.fileno(), 2)
            _read(format, name, seed, numbers, shared)
        status = _wait(pid, shared)
        number, done, refused = struct.unpack("qqq", shared[:])
        report.read += done
        report.refused += refused
        if status == 0:
            return numbers.stop
        errors.seek(0)
        text = errors.read().decode(errors="replace").strip()[-700:]
    file, content = damaged(format, name, seed, number)
    kept = keep / f"{name}-{seed}-{number}-{file}"
    kept.write_bytes(content)
    what = f"signal {signal.Signals(-status).name}" if status < 0 else "an exception"
    report.failures.append(f"{kept} (--format {name} --seed {seed}, file {number}): {what}\n{text}")
    return number + 1


def _read(format: Format, name: str, seed: int, numbers: range, shared: mmap.mmap) -> None:
    """In the process of its own: read the files and exit."""
    code, done, refused = 1, 0, 0
    try:
        torch.set_num_threads(1)
        base = tempfile.mkdtemp()
        made = {number: damaged(format, name, seed, number) for number in numbers}
        _cap_memory()
        for number in numbers:
            shared[:] = struct.pack("qqq", number, done, refused)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            folder = Path(base, str(number))
            folder.mkdir()
            file, content = made[number]
            (folder / file).write_bytes(content)
            try:
                samples = format.read(folder / file)
            except PenstockError:
                samples = 0
            done += samples > 0
            refused += samples == 0
            shutil.rmtree(folder)
        shared[:] = struct.pack("qqq", numbers.stop, done, refused)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        shutil.rmtree(base, ignore_errors=True)
        os._exit(code)


def _cap_memory() -> None:
    status = Path("/proc/self/status").read_text()
    used = int(status.partition("VmData:")[2].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _wait(pid: int, shared: mmap.mmap) -> int:
    """The exit code, or the negative signal, of a process; kills one that makes no progress."""
    descriptor = os.pidfd_open(pid)
    try:
        before = None
        while not select.select([descriptor], [], [], STUCK)[0]:
            if shared[:8] == before:
                os.kill(pid, signal.SIGKILL)
            before = shared[:8]
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(descriptor)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", choices=[*FORMATS, "all"], default="all")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    keep = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    failed = False
    for name in FORMATS if given.format == "all" else [given.format]:
        report = fuzz(name, given.files, given.seed, keep)
        print(f"{name}: {report.read} read, {report.refused} refused, "
              f"{len(report.failures)} failed", flush=True)  # fmt: skip
        for failure in report.failures:
            print(failure, flush=True)
        failed |= bool(report.failures)
    if not failed:
        keep.rmdir()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
