"""The process whose forks are the programs of `tests.support.warm`; it has imported what they need.

It ends with the process that holds its stdin. It is a module, and not `__main__`, because
`inspect.stack`, which torch's launcher calls all the time, looks for the module of each frame.
"""

import atexit
import contextlib
import os
import pickle
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
from pathlib import Path

import numpy as np

from tests.support import preload  # noqa: F401
from tests.support.warm import NUMBER, ROOT


def serve(descriptor):
    """Fork for each request to the socket of this descriptor, until stdin is closed.

    A request is its length, three descriptors, and the arguments of `become`; the answers are the
    pid of the fork and, once it has ended, its exit code.
    """
    listener = socket.socket(fileno=descriptor)
    ended, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running = {}
    ready = selectors.DefaultSelector()
    for source in (0, ended, listener):
        ready.register(source, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj == 0:
                os._exit(0)  # as its forks end
            if key.fileobj == ended:
                os.read(ended, 4096)
                _report(running)
                continue
            connection, _ = listener.accept()
            given, streams = _request(connection)
            if pid := os.fork():
                running[pid] = connection
                _send(connection, pid)
                for stream in streams:
                    os.close(stream)
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (ready, listener, connection, *running.values()):
                inherited.close()
            os.close(ended)
            os.close(wakes)
            become(*given, streams)


def _request(connection):
    length, streams, _, _ = socket.recv_fds(connection, NUMBER, 3)
    with connection.makefile("rb") as file:
        return pickle.loads(file.read(int(length))), streams


def _report(running):
    """Tell those who wait for a program that has ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as connection:
            _send(connection, os.waitstatus_to_exitcode(status))


def _send(connection, number):
    with contextlib.suppress(OSError):  # it has ended
        connection.sendall(b"%*d" % (NUMBER, number))


def become(words, folder, environment, start_new_session, streams):
    """Take on what a program finds when it starts, run it, and end as the interpreter does.

    Nothing is taken apart: to free the objects of all modules, which a fork has to copy for that,
    takes a second.
    """
    if start_new_session:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
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
    if option == "-u":
        option, *rest = rest
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
