"""Starting Python programs from a process that has already imported what they import.

    process = warm.start([sys.executable, "run.py", ...], cwd=ROOT, stdout=subprocess.PIPE)
    done = warm.run([sys.executable, "-m", "tests.writers", ...], capture_output=True, text=True)

They take what `subprocess.Popen` and `subprocess.run` take, as far as tests need it. To import
torch, Hydra and the pipeline costs seconds of CPU; to fork a process that has done so costs
hundredths. The program is a process of its own, with its own pid, session, working folder,
environment, arguments, streams and `__main__`; it can be killed, ends as an interpreter ends, and
its exit code is the one that a shell sees (tests/test_warm.py).

This cannot show what a start itself does: the order of imports, and variables that are read when
the interpreter starts or a module is imported. Tests of such things start `sys.executable`
themselves. With PENSTOCK_TEST_COLD=1 all programs start so. Programs that find another copy of
Penstock on their path start from a process that has imported `libraries_only`.
"""

import atexit
import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).parent.parent
COLD = bool(os.environ.get("PENSTOCK_TEST_COLD")) or not sys.platform.startswith("linux")


_spent = []  # seconds of CPU of each program that has ended, with its own processes


def cpu():
    """Seconds of CPU of all programs that have ended."""
    return sum(_spent)


class Program:
    """A program that was started, as `subprocess.Popen` shows it.

    Args:
        status: the pipe on which it says its pid, and the server how it ended.
    """

    def __init__(self, words, status, stdout, stderr):
        self.args, self.stdout, self.stderr = words, stdout, stderr
        self.returncode = None
        self._status, self._lock = status, threading.Lock()
        self._found, self._readers = {}, []
        first = json.loads(status.readline())
        if "error" in first:
            for pipe in (status, stdout, stderr):
                if pipe is not None:
                    pipe.close()
            raise OSError(first["error"])
        self.pid = first["pid"]

    def wait(self, timeout=None):
        """The exit code; the number of a signal that ended it is negative."""
        with self._lock:
            if self.returncode is None:
                if not select.select([self._status], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout)
                said = json.loads(self._status.readline())
                self.returncode = said["code"]
                _spent.append(said["cpu"])
                self._status.close()
        return self.returncode

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        """What it writes, once all who hold its streams have closed them, and it has ended."""
        ends = time.monotonic() + (threading.TIMEOUT_MAX if timeout is None else timeout)
        if not self._readers:
            self._readers = [
                threading.Thread(target=self._read, args=(pipe,), daemon=True)
                for pipe in (self.stdout, self.stderr)
                if pipe is not None
            ]
            for reader in self._readers:
                reader.start()
        for reader in self._readers:
            reader.join(max(ends - time.monotonic(), 0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(None if timeout is None else max(ends - time.monotonic(), 0))
        return self._found.get(self.stdout), self._found.get(self.stderr)

    def _read(self, pipe):
        with pipe:
            self._found[pipe] = pipe.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


def start(
    words,
    *,
    cwd=None,
    env=None,
    stdin=subprocess.DEVNULL,
    stdout=None,
    stderr=None,
    text=False,
    bufsize=-1,
    start_new_session=False,
    libraries_only=False,
):
    """Start `python script ...`, `python -m module ...` or `python -c code ...`.

    Args:
        words: the command; its first word is `sys.executable`.
        libraries_only: it imports the modules of Penstock itself, wherever it finds them.
    """
    words = [os.fspath(word) for word in words]
    if COLD:
        return subprocess.Popen(
            words,
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=text,
            bufsize=bufsize,
            start_new_session=start_new_session,
        )
    assert words[0] == sys.executable, words
    environment = {name: os.fspath(value) for name, value in (env or os.environ).items()}
    request = {
        "words": words[1:],
        "cwd": str(Path(cwd or ".").absolute()),
        "environment": environment,
        "start_new_session": start_new_session,
    }
    with contextlib.ExitStack() as theirs:
        out, ours_out = _stream(stdout, 1, theirs)
        err, ours_err = (out, None) if stderr == subprocess.STDOUT else _stream(stderr, 2, theirs)
        read, _ = _stream(stdin, 0, theirs)
        report, status = _stream(subprocess.PIPE, None, theirs)
        _ask(request, [read, out, err, report], "libraries" if libraries_only else "all")
    pipes = [None if fd is None else os.fdopen(fd, "rb", bufsize) for fd in (ours_out, ours_err)]
    if text:
        pipes = [None if pipe is None else io.TextIOWrapper(pipe) for pipe in pipes]
    return Program(words, os.fdopen(status, "rb", 0), *pipes)


def run(words, *, capture_output=False, timeout=None, check=False, **options):
    """Start it, as `start` does, and wait for its end, as `subprocess.run` does."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(words, **options) as program:
        try:
            out, err = program.communicate(timeout=timeout)
        except BaseException:
            program.kill()
            raise
    done = subprocess.CompletedProcess(program.args, program.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _stream(given, inherited, closed_later):
    """The descriptor that the program gets, and our end of it where it is a pipe."""
    if given is None:
        return inherited, None
    if given == subprocess.PIPE:
        ours, theirs = os.pipe()
        closed_later.callback(os.close, theirs)
        return theirs, ours
    if given == subprocess.DEVNULL:
        nothing = os.open(os.devnull, os.O_RDWR)
        closed_later.callback(os.close, nothing)
        return nothing, None
    return (given if isinstance(given, int) else given.fileno()), None


# The name of a session's servers: pytest's workers share them.
SESSION = os.environ.get("PYTEST_WARM_SESSION") or uuid.uuid4().hex

_connections = {}  # by the pid of who connected, as a forked child has none, and kind


def _ask(request, descriptors, kind):
    """Hand a request to the server of that kind."""
    connection = _connections.get((os.getpid(), kind))
    if connection is None:
        connection = _connections[os.getpid(), kind] = _connect(kind)
    sent = json.dumps(request).encode()
    socket.send_fds(connection, [len(sent).to_bytes(4, "big")], descriptors)
    connection.sendall(sent)


def _connect(kind):
    """A connection to this session's server, which the first one starts and the last one ends."""
    address = f"\0penstock-tests-{SESSION}-{kind}"
    while not any(server.poll() for server in _servers):  # one that fails has said why
        with socket.socket(socket.AF_UNIX) as listener, contextlib.suppress(OSError):
            listener.bind(address)
            listener.listen()
            _start_server(listener, kind)
        connection = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):  # bound, and not listening yet; or about to end
            connection.connect(address)
            if connection.recv(1):
                return connection
        connection.close()
        time.sleep(0.01)
    raise RuntimeError("the process that starts programs has failed")


def _start_server(listener, kind):
    # One thread, since it forks; its own streams stay empty.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    environment.pop("PYTHONPATH", None)
    _servers.append(
        subprocess.Popen(
            [sys.executable, "-m", "tests.warm_server", str(listener.fileno()), kind],
            cwd=ROOT,
            env=environment,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    )


def _leave_servers():
    # Others of the session may still use them; each ends with the last one. Python would warn.
    for (pid, _), connection in _connections.items():
        if pid == os.getpid():
            connection.close()
    for server in _servers:
        server.returncode = server.poll() or 0


_servers = []
atexit.register(_leave_servers)
