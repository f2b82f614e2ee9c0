"""Programs that begin as forks of a process which has imported what they import.

    process = warm.start([sys.executable, "run.py", ...], cwd=ROOT, stdout=subprocess.PIPE)
    done = warm.run([sys.executable, "-m", "tests.support.writers", ...], capture_output=True)

They take what `subprocess.Popen` and `subprocess.run` take, as far as tests need it. To import
torch, Hydra and Penstock costs seconds of CPU; `tests.support.warm_server` has done so once for all
of pytest's workers, which are such programs as well: `python warm.py -u -c CODE` is one that ends
with the fork which it starts. A program has a pid, session, working folder, environment, arguments,
streams and `__main__` of its own; it can be killed, and its exit code is the one that a shell sees.
What a start itself does, as the order of imports, only `subprocess` shows. With
PENSTOCK_TEST_COLD=1 all programs start so.
"""

import atexit
import contextlib
import functools
import io
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLD = bool(os.environ.get("PENSTOCK_TEST_COLD")) or not sys.platform.startswith("linux")
ADDRESS = "PENSTOCK_TEST_SERVER"
SERVE = "import sys; from tests.support import warm_server; warm_server.serve(int(sys.argv[1]))"
NUMBER = 12  # characters of each number that goes to the server or comes from it


@functools.cache
def server():
    """The server's socket, which all processes of a session share, and its pid if it is a child."""
    if ADDRESS in os.environ:
        return os.environ[ADDRESS], None
    folder = tempfile.mkdtemp(prefix="penstock-tests-")
    path = f"{folder}/socket"
    # Its imports may start no thread.
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    quiet["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)  # before it has imported anything
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(listener.fileno())],
            cwd=ROOT,
            env=os.environ | quiet,
            stdin=subprocess.PIPE,  # until this process ends
            pass_fds=[listener.fileno()],
        )

    @atexit.register
    def end():
        process.communicate()
        shutil.rmtree(folder)

    return path, process.pid


class Program:
    """A program that was started, as `subprocess.Popen` shows it."""

    def __init__(self, words, connection, stdout=None, stderr=None):
        self.args, self.stdout, self.stderr = words, stdout, stderr
        self._server, self.returncode = connection, None
        weakref.finalize(self, connection.close)
        self.pid = int(connection.recv(NUMBER))
        self._found, self._readers = {}, []

    def wait(self, timeout=None):
        """The exit code; the number of a signal that ended it is negative."""
        if self.returncode is None:
            if not select.select([self._server], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            # Another thread may wait for it, too.
            self.returncode = int(self._server.recv(NUMBER, socket.MSG_PEEK))
        return self.returncode

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        """What it writes, once all who hold its streams have closed them, and it has ended."""
        if not self._readers:
            pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
            self._readers = [threading.Thread(target=self._read, args=(one,)) for one in pipes]
            for reader in self._readers:
                reader.daemon = True
                reader.start()
        for reader in self._readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(timeout)
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
    stdout=None,
    stderr=None,
    text=False,
    bufsize=-1,
    start_new_session=False,
):
    """Start `python script ...`, `python -m module ...` or `python -c code ...`.

    Args:
        words: the command; its first word is `sys.executable`.
    """
    words = [os.fspath(word) for word in words]
    if COLD:
        return subprocess.Popen(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=text,
            bufsize=bufsize,
            start_new_session=start_new_session,
        )
    with contextlib.ExitStack() as theirs:
        out, ours_out = _stream(stdout, 1, theirs)
        err, ours_err = (out, None) if stderr == subprocess.STDOUT else _stream(stderr, 2, theirs)
        read, _ = _stream(subprocess.DEVNULL, 0, theirs)
        connection = _fork(words, cwd, env, (read, out, err), start_new_session)
    pipes = [None if fd is None else os.fdopen(fd, "rb", bufsize) for fd in (ours_out, ours_err)]
    if text:
        pipes = [None if pipe is None else io.TextIOWrapper(pipe) for pipe in pipes]
    return Program(words, connection, *pipes)


def _fork(words, cwd, env, streams, start_new_session=False):
    """Have the server fork; the connection shows the fork's pid and, in the end, its exit code."""
    environment = {name: os.fspath(value) for name, value in (env or os.environ).items()}
    given = words[1:], str(Path(cwd or ".").absolute()), environment, start_new_session
    request = pickle.dumps(given)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(server()[0])
    socket.send_fds(connection, [b"%*d" % (NUMBER, len(request))], streams)
    connection.sendall(request)
    return connection


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


if __name__ == "__main__":
    command = [sys.executable, *sys.argv[1:]]
    sys.exit(Program(command, _fork(command, None, None, (0, 1, 2))).wait())
