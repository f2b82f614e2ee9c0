"""Where a process stands: the Python stack of its main thread, its own or that of another process.

A process that another one may ask for its stack calls `listen` and hands out its `description`.
faulthandler answers in C, so also for a process in which one thread holds Python's lock (the GIL)
and never gives it back. Both have to be on one machine, under one user, on Linux.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

DUMP = getattr(signal, "SIGRTMAX", signal.SIGUSR2)  # asks for the stack, as in the workers

_FRAMES = 8  # innermost ones that are shown
_BYTES = 64 << 10  # of a dump that are read
_SECONDS = 1.5  # for a dump
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
# Of torch's files: where it waits for other ranks; the last runs the backward pass, and in it DDP's
# sums. Then those that may stand between.
_WAITS = ("/distributed/", "/nn/parallel/distributed.py", "/autograd/graph.py")
_BETWEEN = ("/_ops.py", "/_compile.py", "/utils/")

_dump = -1  # descriptor of the file for this process's dumps


@dataclass
class Standing:
    """Where a process was found.

    Attributes:
        how: its state, as the end of a sentence about it; "" if it answers by itself.
        stack: frames of its main thread, the innermost first.
        waits: whether it stands in torch's communication, waiting for others.
    """

    how: str = ""
    stack: list[str] = field(default_factory=list)
    waits: bool = False


@dataclass(frozen=True)
class Described:
    """The facts of a process that `ask` needs.

    Attributes:
        host: the machine.
        began: when the process did, in ticks since the machine did.
        main: the identity of its main thread.
        dump: the descriptor of the file for its stacks.
    """

    pid: int
    host: str
    began: int
    main: int | None
    dump: int


def listen() -> None:
    """Let `ask` of other processes find out where this one stands; main thread only."""
    global _dump
    if _dump < 0 and threading.current_thread() is threading.main_thread():
        _dump, path = tempfile.mkstemp(prefix="penstock-stack-")
        Path(path).unlink()
        faulthandler.register(DUMP, _dump, all_threads=True, chain=False)


def description() -> Described:
    """This process, for others to `ask` it."""
    pid, main = os.getpid(), threading.main_thread().ident
    return Described(pid, platform.node(), began(pid), main, _dump)


def own(threads: Iterable[str] = ()) -> Standing:
    """Where this process's main thread stands, and below it those of the names `threads`."""
    frames = sys._current_frames()
    main = _frames_of(frames.get(threading.main_thread().ident or 0))
    standing = Standing("", [_text(*frame) for frame in main[:_FRAMES]], waits(f[0] for f in main))
    for thread in threading.enumerate():
        if thread.name in threads:
            standing.stack.append(f"in its thread '{thread.name}':")
            inner = _frames_of(frames.get(thread.ident or 0))
            standing.stack += [_text(*frame) for frame in inner[:_FRAMES]]
            if main and main[0][0] == threading.__file__:  # waits for that thread, or a lock
                standing.waits |= waits(frame[0] for frame in inner)
    return standing


def of_error(error: BaseException) -> list[str]:
    """Where an error was raised, as frames, the innermost first."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return [_text(frame.filename, frame.lineno, frame.name) for frame in frames][:_FRAMES]


def _frames_of(frame: FrameType | None) -> list[tuple[str, int | None, str]]:
    stack = [] if frame is None else traceback.extract_stack(frame)
    return [(summary.filename, summary.lineno, summary.name) for summary in reversed(stack)]


def _text(path: str, line: object, name: str) -> str:
    return f'File "{path}", line {line}, in {name}'


def waits(paths: Iterable[str]) -> bool:
    """Whether frames in these files, the innermost first, wait inside torch's communication."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    torch = str(Path(file).parent) if file else ""
    between, known = (tuple(torch + end for end in ends) for ends in (_BETWEEN, _WAITS))
    inner = next((path for path in paths if not path.startswith(between)), "")
    return bool(torch) and inner.startswith(known)


def ask(described: Described) -> Standing | None:
    """Where the process of a `description` stands; it is continued if it was stopped.

    None if it is not on this machine, or is another process by now. Takes up to 1.5 s.
    """
    pid = described.pid
    if described.host != platform.node() or not is_there(described):
        return None
    state, before = state_of(pid), len(_dumped(described))
    with suppress(OSError):
        os.kill(pid, DUMP)
        os.kill(pid, signal.SIGCONT)
    until, size = time.monotonic() + _SECONDS, before
    while time.monotonic() < until:
        time.sleep(0.05)
        now = len(_dumped(described))
        if now > before and now == size:
            break
        size = now
    how = {
        "T": "is stopped (SIGSTOP)",
        "t": "is stopped by a debugger",
        "D": "waits inside the kernel, often for a disk or a network file system",
    }
    dump = _dumped(described)[before:][:_BYTES].decode(errors="replace")
    # faulthandler's text is the only form in which a process gives its stacks while a thread of it
    # holds the GIL: "Thread 0x00007f (most recent call first):", and a line for each frame.
    main = re.search(
        rf"^(Current t|T)hread 0x0*{described.main or 0:x}\b.*?(?=^Thread |^Current thread |\Z)",
        dump,
        re.MULTILINE | re.DOTALL,
    )
    frames = _FRAME.findall(main[0] if main else dump)
    return Standing(
        how.get(state, "does not answer (a library may be holding Python's lock, the GIL)"),
        [_text(*frame) for frame in frames[:_FRAMES]],
        waits(path for path, *_ in frames),
    )


def before_joining(pid: int) -> Standing:
    """The same of a process that has not joined, and so has no stack to give."""
    state = state_of(pid)
    if state == "T":
        with suppress(OSError):
            os.kill(pid, signal.SIGCONT)
    how = "is stopped (SIGSTOP)" if state == "T" else "is still on its way"
    return Standing(f"has not come; it {how}")


def _dumped(described: Described) -> bytes:
    """All that a process has written for those who asked it."""
    with suppress(OSError):
        return Path(f"/proc/{described.pid}/fd/{described.dump}").read_bytes()
    return b""


def kill(described: Described) -> None:
    """End the process of a `description`, if it is still there."""
    if described.host == platform.node() and is_there(described):
        with suppress(OSError):
            os.kill(described.pid, signal.SIGKILL)


def is_there(described: Described) -> bool:
    """Whether a process of this machine is still the one that was described, and has not ended."""
    pid = described.pid
    return pid > 1 and began(pid) == described.began and state_of(pid) not in ("", "Z", "X")


def sibling(rank: int) -> int | None:
    """The process of that rank, if it has the same parent as this process (a launcher, srun)."""
    parent = os.getppid()
    names = [b"RANK=%d" % rank, b"SLURM_PROCID=%d" % rank]
    with suppress(OSError):
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            with suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if any(name in variables for name in names):
                    return int(pid)
    return None


def began(pid: int) -> int:
    """When a process began, in ticks since this machine did; 0 where that is not known."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def state_of(pid: int) -> str:
    """The state of a process as in /proc ("R", "S", "D", "T" ...); "" where that is not known."""
    return next(iter(_stat(pid)), "")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
