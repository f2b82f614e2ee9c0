"""Programs that begin as forks of a process which has imported what they import.

    process = warm.start([sys.executable, "run.py", ...], cwd=ROOT, stdout=subprocess.PIPE)
    done = warm.run([sys.executable, "-m", "tests.support.writers", ...], capture_output=True)

They take what `subprocess.Popen` and `subprocess.run` take, as far as tests need it. To import
torch, Hydra and Penstock costs seconds of CPU; multiprocessing's forkserver has done so once. A
program has a pid, session, working folder, environment, arguments, streams and `__main__` of its
own; it can be killed, and its exit code is the one that a shell sees. What a start itself does, as
the order of imports, only `subprocess` shows. With PENSTOCK_TEST_COLD=1 all programs start so.
"""

import atexit
import contextlib
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import types
from multiprocessing import forkserver, reduction
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLD = bool(os.environ.get("PENSTOCK_TEST_COLD")) or not sys.platform.startswith("linux")
_context = multiprocessing.get_context("forkserver")


class Program:
    """A program that was started, as `subprocess.Popen` shows it."""

    def __init__(self, words, process, stdout, stderr):
        self.args, self.stdout, self.stderr = words, stdout, stderr
        self._process, self.pid = process, process.pid
        self._found, self._readers = {}, []

    @property
    def returncode(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        """The exit code; the number of a signal that ended it is negative."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def poll(self):
        return self.returncode

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
    _ensure_server()
    environment = {name: os.fspath(value) for name, value in (env or os.environ).items()}
    folder = str(Path(cwd or ".").absolute())
    with contextlib.ExitStack() as theirs:
        out, ours_out = _stream(stdout, 1, theirs)
        err, ours_err = (out, None) if stderr == subprocess.STDOUT else _stream(stderr, 2, theirs)
        read, _ = _stream(subprocess.DEVNULL, 0, theirs)
        streams = _Streams(read, out, err)
        given = words[1:], folder, environment, streams, start_new_session
        process = _context.Process(target=_become, args=given)
        process.start()
    pipes = [None if fd is None else os.fdopen(fd, "rb", bufsize) for fd in (ours_out, ours_err)]
    if text:
        pipes = [None if pipe is None else io.TextIOWrapper(pipe) for pipe in pipes]
    return Program(words, process, *pipes)


def _ensure_server():
    """Start the server of this process, whose imports may start no thread, unless it is there."""
    kept = dict(os.environ)
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    _context.set_forkserver_preload(["tests.support.preload"])
    with contextlib.chdir(ROOT):  # it imports from here; a test may be in a project with `tests`
        forkserver.ensure_running()
    os.environ.clear()
    os.environ.update(kept)


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


class _Streams:
    """Descriptors that go to a process with its arguments."""

    def __init__(self, *streams):
        self.streams = streams

    def __reduce__(self):
        return _Streams, tuple(map(reduction.DupFd, self.streams))


def _become(words, folder, environment, streams, start_new_session):
    """Take on what a program finds when it starts, run it, and end as the interpreter does.

    Nothing is taken apart: to free the objects of all modules, which a fork has to copy for that,
    takes a second.
    """
    import numpy as np

    if start_new_session:
        os.setsid()
    for number, stream in enumerate(streams.streams):
        os.dup2(stream.detach(), number)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering, closefd=False)  # noqa: SIM115
        for number, mode, buffering in ((0, "r", -1), (1, "w", -1), (2, "w", 1))
    )
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    np.random.seed()  # a fork has the draws of its parent
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    known = [one for one in sys.path if one not in ("", str(ROOT))]
    sys.path[:] = [*(str(Path(one).absolute()) for one in given if one), *known]
    sys.orig_argv = [sys.executable, *words]
    status = 0
    try:
        _run(*words)
    except SystemExit as error:
        status = _exit_status(error.code)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _run(option, *rest):
    """`sys.argv`, `sys.path` and `__main__` as `python OPTION *rest` has them."""
    if option == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    program.__builtins__ = __builtins__
    if option == "-c":
        first, path, code = "", "<string>", rest[0]
        sys.argv = ["-c", *rest[1:]]
    else:
        path = program.__file__ = str(Path(option).absolute())
        first, code = str(Path(path).resolve().parent), Path(path).read_bytes()
        sys.argv = [option, *rest]
    sys.path.insert(0, first)
    exec(compile(code, path, "exec", dont_inherit=True), program.__dict__)


def _exit_status(given):
    if given is None or isinstance(given, int):
        return (given or 0) & 0xFF
    print(given, file=sys.stderr)
    return 1
