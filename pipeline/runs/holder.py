"""Who has a run's folder: a lock of the operating system on holder.json, which names its process.

Over a network the lock of a machine that died may stay until the server has given that machine up,
or for ever. A launcher that has started the ranks again without that machine knows that its process
is gone, or cut off from the other ranks; then the file, and with it the lock, is replaced.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from datetime import datetime
from pathlib import Path

from penstock import program
from penstock.errors import ConfigError, Problem
from penstock.files import plain_json
from penstock.files.disk import Hold, beside, refuse
from penstock.files.plain_json import JsonError, mapping
from penstock.terminal import one_line

HOLDER = "holder.json"

_PATIENCE = 10.0  # seconds in which a lost process may still be ending
_LOOK = 0.1


def take(folder: Path) -> Hold | None:
    """Hold `folder` and record it in holder.json; None if another process has it."""
    path = folder / HOLDER
    try:
        hold = Hold.take(path, os.O_RDWR | os.O_CREAT)
        if hold is None:  # somebody may just have asked whether it is locked
            time.sleep(0.01)
            hold = Hold.take(path)
    except FileNotFoundError as error:
        raise ConfigError(Problem("resume", f"{folder} does not exist")) from error
    except OSError as error:
        refuse(path, error)
    if hold is None:
        return None
    who = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": now(),
        "command": program.joined(sys.orig_argv),
    }
    try:
        os.ftruncate(hold.descriptor, 0)
        os.write(hold.descriptor, (json.dumps(who) + "\n").encode())
    except OSError as error:
        hold.release()
        refuse(path, error)
    return hold


def take_from_lost(folder: Path) -> Hold | None:
    """`take` from a process that is known to be gone, or to be cut off; waits 10 s for its lock."""
    until = time.monotonic() + _PATIENCE
    while (hold := take(folder)) is None and time.monotonic() < until:
        time.sleep(_LOOK)
    if hold is None:
        new = beside(folder / HOLDER)
        try:
            new.touch(mode=0o666)
            new.replace(folder / HOLDER)
        except OSError as error:
            refuse(folder / HOLDER, error)
        hold = take(folder)
    return hold


def held_by(folder: Path) -> str:
    """Who has `folder`, for a message."""
    try:
        who = mapping(plain_json.read(folder / HOLDER))
        said = {name: one_line(who[name])[:200] for name in ("pid", "host", "since", "command")}
        holder = "process {pid} on {host} since {since} ({command})".format(**said)
    except (OSError, JsonError, LookupError):  # the holder is just writing it
        holder = "another process"
    return f"{folder} is in use by {holder}; wait for it or stop it, or set another run_dir"


def now() -> str:
    """The time, for records."""
    return datetime.now().astimezone().isoformat(timespec="seconds")
