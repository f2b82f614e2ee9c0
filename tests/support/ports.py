"""Ports for servers that tests start."""

import fcntl
import itertools
import os
import socket
import tempfile
from pathlib import Path

# Below the range from which Linux takes the ports of outgoing connections: a port that was free
# when it was asked for must still be free when the server starts.
_PORTS = range(20_000, 30_000)
_next = itertools.count()


def free_port():
    """A port at which nothing listens, and which no other test process on this machine gets.

    Its lock is a bare descriptor, which stays open until this process ends.
    """
    locks = Path(tempfile.gettempdir()) / f"penstock-test-ports-{os.getuid()}"
    locks.mkdir(mode=0o700, exist_ok=True)
    start = os.getpid() * 97
    for number in _next:
        port = _PORTS[(start + number) % len(_PORTS)]
        lock = os.open(locks / str(port), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.create_server(("127.0.0.1", port)):
                pass
        except OSError:
            os.close(lock)
            continue
        return port
    raise AssertionError("no port is free")
