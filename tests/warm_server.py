"""The process from which tests/warm.py starts programs, for all of pytest's workers.

test -- socket: command, descriptors --> server, which has imported everything
                        its exit code      | fork
                   <--------------------- program
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import sys
import threading
import types
import warnings
from pathlib import Path

# What runs import when they get there, beside all modules of `penstock`.
LATE = (
    "hydra.main",
    "hydra._internal.core_plugins.basic_launcher",
    "numpy",
    "PIL.ImageFont",
    "pytest",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.fsdp",
    "torch.distributed.launcher.api",
    "torch.nn.parallel",
    "torch.utils.tensorboard",
    "torchmetrics",
    "torchvision.models",
    "multiprocessing.sharedctypes",
    "PIL.JpegImagePlugin",
)
# What the modules of `penstock` import.
USED = (
    "hydra.core.plugins",
    "pydantic",
    "safetensors.torch",
    "torch.utils.data",
    "torchvision.io",
    "torchvision.transforms.v2",
)
# What tests import beside all of `penstock`; each process that collects them would do so.
OF_TESTS = ("_hypothesis_pytestplugin", "av", "moto.core", "pandas", "obstore")
BASE = sys.path[1:]  # without the folder of `-m`, and PYTHONPATH is not set


def main(listener, libraries_only):
    """Fork a program for each request; returns in the program only, with what it asks for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the tests and programs
    import_everything(libraries_only)
    gc.freeze()  # a collection in a program would copy every page
    use_huge_pages()
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, f"a process of {len(threads)} threads cannot be forked safely"
    connections, programs = [], {}  # by a descriptor of its process: its pid, where to report
    while True:
        for ready in select.select([listener, *connections, *programs], [], [])[0]:
            if ready is listener:
                connection, _ = listener.accept()
                if user_of(connection) == os.geteuid():
                    connection.send(b"!")  # from here on this server answers
                    connections.append(connection)
            elif ready in programs:
                report_end(ready, *programs.pop(ready))
            elif (request := receive(ready)) is None:
                connections.remove(ready)
                ready.close()
            else:
                words, *streams, report = request
                # One fork: to copy the page tables of all that is imported takes time.
                if (pid := os.fork()) == 0:
                    for other in (listener, *connections):
                        other.close()
                    for process, (_, other_report) in programs.items():
                        os.close(process)
                        os.close(other_report)
                    become(words, streams, report)
                    return words
                for stream in streams:
                    os.close(stream)
                programs[os.pidfd_open(pid)] = pid, report
        if not connections:
            os._exit(0)


def use_huge_pages():
    """Put what was imported into pages of 2 MiB: a fork takes 15 ms then, and 46 otherwise.

    Nothing is lost where the system has none.
    """
    size, madv_collapse = 2 << 20, 25
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, inode, *name = line.split()
        if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            start, end = (int(address, 16) for address in addresses.split("-"))
            start, end = -(-start // size) * size, end // size * size
            if start < end:
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), madv_collapse)


def user_of(connection):
    """Who is on the other side: the name of an abstract socket keeps nobody out."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", peer)[1]


def receive(connection):
    """What a program asks for, and the descriptors that came with it; None at the end."""
    size, descriptors, _, _ = socket.recv_fds(connection, 4, 4)
    if not size:
        return None
    words = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    return json.loads(words), *descriptors


def report_end(process, pid, report):
    """Say how a program has ended, and what it has cost."""
    _, status, usage = os.wait4(pid, 0)
    said = {"code": os.waitstatus_to_exitcode(status), "cpu": usage.ru_utime + usage.ru_stime}
    with contextlib.suppress(BrokenPipeError):  # the test has ended
        os.write(report, json.dumps(said).encode() + b"\n")
    os.close(report)
    os.close(process)


def import_everything(libraries_only):
    modules = [*LATE, *USED]
    if not libraries_only:
        import penstock
        import penstock.datasets

        for package in (penstock, penstock.datasets):
            walked = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
            modules += [module.name for module in walked]
        modules += OF_TESTS
    for name in modules:
        try:
            importlib.import_module(name)
        except (
            Exception
        ) as error:  # an optional library, which tests skip too; trackers name theirs
            if not isinstance(error, ImportError) and type(error).__name__ != "ConfigError":
                raise
    if not libraries_only:
        read_constants()
    if libraries_only:  # programs have tests of their own
        assert "penstock" not in sys.modules
        del sys.modules["tests"]


def read_constants():
    """Have hypothesis read the constants of all sources, as it would in each worker of pytest."""
    with contextlib.suppress(ImportError, AttributeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that this comes early
        from hypothesis.internal.conjecture import providers

        providers._get_local_constants()  # another version may have none


def become(request, streams, report):
    """Take on what a program finds when it starts."""
    try:
        if request["start_new_session"]:
            os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        said = {"pid": os.getpid()}
    except OSError as error:
        said = {"error": str(error)}
    os.write(report, json.dumps(said).encode() + b"\n")
    for descriptor in {*streams, report} - {0, 1, 2}:
        os.close(descriptor)
    if "error" in said:
        os._exit(1)
    import numpy as np
    import torch

    np.random.seed()  # a fork has the draws of its parent
    torch.set_num_threads(1)  # as it has; makes torch's pool anew before there are two threads


def prepare(words):
    """`sys.argv`, `sys.path` and `__main__` for the words after `python`; the code to run."""
    option, *rest = words
    program = types.ModuleType("__main__")
    program.__builtins__ = __builtins__
    if option == "-c":
        first, path, code = "", "<string>", rest[0]
        sys.argv = ["-c", *rest[1:]]
    elif option == "-m":
        first = str(Path.cwd())
    else:
        path = str(Path(option).absolute())
        first, code = str(Path(path).resolve().parent), Path(path).read_bytes()
        program.__file__ = path
        sys.argv = words
    given = os.environ.get("PYTHONPATH", "")
    folders = [str(Path(folder).absolute()) for folder in given.split(os.pathsep) if folder]
    sys.path[:] = [first, *folders, *BASE]
    importlib.invalidate_caches()
    if option == "-m":
        spec = importlib.util.find_spec(rest[0])
        path, code = spec.origin, spec.loader.get_source(rest[0])
        program.__spec__, program.__package__, program.__file__ = spec, spec.parent, path
        sys.argv = [path, *rest[1:]]
    sys.orig_argv = [sys.executable, *words]
    sys.modules["__main__"] = program
    return compile(code, path, "exec", dont_inherit=True), program.__dict__


def run(code, variables):
    """Run it and end as the interpreter does, except that nothing is taken apart.

    To free some 100,000 objects of modules, which a fork has to copy for that, takes a second.
    """
    status = 0
    try:
        exec(code, variables)
    except SystemExit as error:
        status = exit_status(error.code)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            status = -signal.SIGINT
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = status or 120
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


def exit_status(given):
    if given is None:
        return 0
    if isinstance(given, int):
        return given & 0xFF
    print(given, file=sys.stderr)
    return 1


if __name__ == "__main__":
    listening = socket.socket(fileno=int(sys.argv[1]))
    run(*prepare(main(listening, libraries_only="libraries" in sys.argv)["words"]))
