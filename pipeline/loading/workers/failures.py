"""Reports on workers that died or hang: how, where they stood, and which requests they had."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.distributed.presence import state_of as state_of
from penstock.loading import memory, worker_status
from penstock.loading.bad_samples import path_of
from penstock.loading.facts import own_row, sample_name
from penstock.loading.worker_status import WorkerStatus
from penstock.order.plan import Request

_MOST_LISTED = 32  # samples of a batch that are listed
_STACK_BYTES = 64 << 10
_STACK_SECONDS = 1.0
_SWITCHES = re.compile(r"voluntary_ctxt_switches:\s*(\d+)")
# A person looks for their own code in a stack, so ours at its start is cut off. faulthandler writes
# a stack as text, in which our files have no other mark than their names. A file that is renamed
# makes stacks longer, and nothing wrong.
_OWN_THREAD = re.compile(r"worker_side\.py.* in _\w+$", re.MULTILINE)
_FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')
_STANDARD = str(Path(os.__file__).parent)
_START_OF_WORK = re.compile(r"\n[^\n]*loading/workers/(?:results|worker_side)\.py")


@dataclass
class FailureReport:
    """The end of a worker.

    Attributes:
        who: which worker, with its pid where it has one.
        how: what happened to it, as the end of a sentence about it.
        status: where it stood last, or UNKNOWN.
        held: its requests without a result; it worked on the first.
        stack: of its threads; "" if there is none.
        hint: what else is known.
    """

    who: str
    how: str
    status: WorkerStatus
    held: Sequence[Any]
    stack: str
    hint: str = ""

    def report(self, dataset: Any) -> str:
        """Some lines, without an end of line."""
        lines = [f"{self.who} {self.how}"]
        if self.status != worker_status.UNKNOWN:
            lines.append(f"    it was {self._place(dataset)}")
        lines += [f"    it held {_described(request, dataset)}" for request in self.held]
        if self.hint:
            lines.append(f"    {self.hint}")
        if self.stack:
            lines += ["    its stack:", *(f"      {line}" for line in self.stack.splitlines())]
        return "\n".join(lines)

    def _place(self, dataset: object) -> str:
        status = self.status
        if status.stage == worker_status.STARTING:
            return "starting"
        if not status.works:
            return "idle" if not self.held else "between two batches"
        where = (
            f"at stage '{worker_status.STAGES[status.stage]}' of epoch {status.epoch}, "
            f"step {status.step}"
        )
        now = next((request for request in self.held if request.address == status[:2]), None)
        rows = [] if now is None else _rows(now)
        if not 0 <= status.place < len(rows):
            return where
        row = rows[status.place]
        path = path_of(dataset, row)
        name = sample_name(row, own_row(dataset, row))
        sample = f"sample {name}{f' ({path})' if path else ''}"
        return f"{where}, {sample}, {status.place + 1} of {len(rows)}"


def _described(request: Any, dataset: Any) -> str:
    """An address and its samples, with their paths as far as the dataset knows them."""
    where = f"epoch {request.epoch}, step {request.step}"
    rows = _rows(request)
    if not rows:
        return f"{where} of a stream"
    named = [
        f"{sample_name(row, own_row(dataset, row))} {path_of(dataset, row)}".rstrip()
        for row in rows[:_MOST_LISTED]
    ]
    more = f" and {len(rows) - _MOST_LISTED} more" if len(rows) > _MOST_LISTED else ""
    return f"{where}: samples {', '.join(named)}{more}"


def _rows(request: Any) -> list[int]:
    """Indices of its samples, or keys that are such; none of a stream."""
    if isinstance(request, Request):
        return request.indices.tolist()
    keys = getattr(request, "keys", None)
    listed: list[Any] = list(keys) if isinstance(keys, (list, tuple)) else [keys]
    return listed if all(type(key) is int for key in listed) else []


def by_exit_code(code: int) -> str:
    """An exit code of multiprocessing in words."""
    if code >= 0:
        return f"exited unexpectedly with code {code}"
    name = ""
    with suppress(ValueError):
        name = f" ({signal.Signals(-code).name})"
    return f"was killed by signal {-code}{name}"


def hint_for(code: int, kills: int = 0) -> str:
    """A hint on an exit code.

    Args:
        kills: processes that the kernel had ended for want of memory before.
    """
    if code == -signal.SIGKILL:
        if memory.kills() > kills:
            return "SIGKILL: the kernel ended it because memory ran out"
        return (
            "SIGKILL leaves no stack behind; the system also sends it when memory runs out "
            "(dmesg tells)"
        )
    if code == -signal.SIGBUS:
        return "SIGBUS also comes when shared memory or a mapped file runs out of space"
    return ""


def hint_for_state(state: str) -> str:
    """A hint on the state of a process that hangs."""
    if state in ("T", "t"):
        return "it had been stopped (SIGSTOP, or a debugger); the stack is from after it continued"
    if state == "D":
        return "it waits inside the kernel, often for a disk or a network file system"
    return ""


def threads() -> int:
    """Of this process, those of libraries included, as far as the system tells."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()


def hint_for_fork(stack: str, threads: int) -> str:
    """A hint on a process that waits for a thread which its fork has not copied."""
    frames = (
        f"{path}, line {line} in {name}"
        for path, line, name in _FRAME.findall(stack)
        if "site-packages" in path or not path.startswith(_STANDARD)
    )
    return (
        f"it was forked while {threads} other thread(s) of this program were alive. A fork copies "
        f"no threads, and what waits for one ({next(frames, 'unknown')}) waits for ever. "
        "Start workers by forkserver or spawn (loader.multiprocessing_context, or "
        "multiprocessing_context= of a DataLoader), or use that library in the workers alone"
    )


def waits_for_locks(pid: int) -> Any:
    """How often each thread of a process went to sleep, if all of them wait for locks now.

    Where two looks give the same, no thread has woken in between. None where a thread does
    anything else, such as sleeping or waiting for a disk or the network, or the kernel does not
    tell.
    """
    try:
        tasks = sorted(Path(f"/proc/{pid}/task").iterdir())
        if not all((task / "wchan").read_text().startswith("futex") for task in tasks):
            return None
        return [_SWITCHES.findall((task / "status").read_text()) for task in tasks]
    except OSError:
        return None


def stack_of(descriptor: int) -> str:
    """The stack that a worker has written, without the frames that started its work."""
    text = os.pread(descriptor, _STACK_BYTES, 0).decode(errors="replace").strip()
    threads = [thread for thread in text.split("\n\n") if not _OWN_THREAD.search(thread)]
    return "\n".join(map(without_start, threads))


def without_start(thread: str) -> str:
    """The stack of a thread, most recent call first, without the frames that started its work."""
    return _START_OF_WORK.split(thread)[0]


def ask_for_stack(pid: int, number: int, descriptor: int, stopped: bool) -> str:
    """Have a process that hangs write its stack; "" if it does not within a second."""
    with suppress(ProcessLookupError):  # it may have ended just now
        os.kill(pid, number)
        if stopped:
            os.kill(pid, signal.SIGCONT)
    ends = time.monotonic() + _STACK_SECONDS
    size, grew = 0, False
    while time.monotonic() < ends and (grew or not size):
        time.sleep(0.05)
        now = os.fstat(descriptor).st_size
        size, grew = now, now > size
    return stack_of(descriptor)


def remove_shared_files(pid: int) -> None:
    """Remove what a killed process may have left of torch's shared memory."""
    for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
        path.unlink(missing_ok=True)
