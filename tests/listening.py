"""Where processes listen, read from /proc (Linux)."""

from contextlib import suppress
from pathlib import Path

LISTENING = "0A"
# 127.0.0.1, ::1 and ::ffff:127.0.0.1, as /proc has them.
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def tree(pid):
    """A process and all that descend from it; those that end meanwhile may be missing."""
    found = [pid]
    with suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                found += tree(int(child))
    return found


def addresses(pid):
    """(address, port) of all TCP sockets on which a process listens, in hexadecimal."""
    found = set()
    with suppress(OSError):
        own = _sockets(pid)
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                cells = line.split()
                if cells[3] == LISTENING and cells[9] in own:
                    found.add(tuple(cells[1].split(":")))
    return found


def _sockets(pid):
    """The inodes of a process's sockets."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found
