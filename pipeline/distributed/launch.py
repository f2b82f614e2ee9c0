"""Starting all ranks of a run on this machine, through torch's own elastic launcher.

Every rank is a process that runs this same command line and finds its place in the environment, as
under torchrun. Ranks report their errors themselves on stderr; here the exit codes are merged.
Signals are handed on to all ranks, and where the launcher is gone, however it ended, they are asked
to stop. No process listens where another machine could reach it
(meeting.py). torch.distributed is not imported before a run needs it.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from penstock.distributed import preemption, world
from penstock.errors import PREEMPTED, ConfigError, DataError, PenstockError

_GRACE_SECONDS = 120  # for a checkpoint once ranks were asked to stop; then they are killed
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_RESULT = "PENSTOCK_RESULT"  # names the file that rank 0 leaves its result in
_LAUNCHER = "PENSTOCK_LAUNCHER"  # its process
_PR_SET_PDEATHSIG = 1


class RanksError(PenstockError):
    """A rank failed; the message is empty where it has said why itself."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def processes(distributed: Any) -> int:
    """How many ranks the section `distributed` starts; 0 if this process is (one of) them."""
    if distributed.strategy == "none" or world.is_launched():
        return 0
    count = world.default_processes() if distributed.nproc == "auto" else distributed.nproc
    return 0 if count == 1 and distributed.strategy == "ddp" else int(count)


def run(command: Sequence[str], processes: int, max_restarts: int = 0) -> Any:
    """Run `command` in that many ranks of one world; the result that rank 0 left.

    Args:
        command: program and arguments of every rank.
        max_restarts: how often all are started again when one was killed.

    Raises:
        RanksError: a rank failed; the exit code tells configuration, data and preemption apart.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    from penstock.distributed.meeting import announced

    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.startswith("torch.distributed.elastic") and isinstance(logger, logging.Logger):
            logger.setLevel(logging.CRITICAL)  # each of them has a level of its own
    # torch's launcher takes the signals, and hands them on to the ranks.
    others = preemption.others()
    with others, _own_signals(), _result_file() as result, announced(result.parent) as meeting:
        launched = elastic_launch(
            _config(processes, max_restarts, result.parent, meeting), command[0]
        )
        try:
            launched(*command[1:])
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            killed = [
                f"rank {rank} was ended by {signal.Signals(-code).name}"
                for rank, code in sorted(codes.items())
                # The launcher sends SIGTERM to those it ends. A rank that waited in vain for
                # another has said so, and killed it.
                if code < 0 and -code != signal.SIGTERM and PREEMPTED not in codes.values()
            ]
            raise RanksError("; ".join(killed), exit_code(codes.values())) from None
        except SignalException:
            # The launcher drops the ranks' results. They have been asked to save, and each said
            # itself whether it could.
            raise RanksError("", PREEMPTED) from None
        return json.loads(result.read_text(encoding="utf-8")) if result.exists() else None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Put back the signal handlers that torch's launcher replaces for good."""
    kept = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def is_of_ours() -> bool:
    """Whether our launcher started this process, and has printed what it will do."""
    return world.is_launched() and bool(os.environ.get(_RESULT))


def end_with_launcher() -> None:
    """Have a rank that our launcher started asked to stop, as by SIGTERM, once that one has ended.

    A launcher that is killed (SIGKILL, out of memory) can tell nobody. Its ranks would train on,
    beside those of the run that continues. Linux only.
    """
    launcher = os.environ.get(_LAUNCHER)
    if launcher == str(os.getppid()) and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if launcher != str(os.getppid()):  # it ended in the meantime
            os._exit(PREEMPTED)


def leave_result(value: object) -> None:
    """Give rank 0's result (plain JSON) to the launcher, if that is ours."""
    if os.environ.get(_RESULT) and world.launched_rank()[0] == 0:
        Path(os.environ[_RESULT]).write_text(json.dumps(value), encoding="utf-8")


@contextmanager
def _result_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:  # of mode 0700
        os.environ[_RESULT] = str(Path(folder) / "result.json")
        os.environ[_LAUNCHER] = str(os.getpid())
        try:
            yield Path(os.environ[_RESULT])
        finally:
            del os.environ[_RESULT], os.environ[_LAUNCHER]


def _config(processes: int, max_restarts: int, folder: Path, meeting: str) -> Any:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    options: dict[str, Any] = {
        "min_nodes": 1,
        "max_nodes": 1,
        "nproc_per_node": processes,
        "max_restarts": max_restarts,
        "run_id": "penstock",
        "rdzv_backend": meeting,
        "rdzv_endpoint": "",
        "local_addr": "127.0.0.1",
        "logs_specs": DefaultLogsSpecs(log_dir=str(folder)),
        "monitor_interval": 0.1,
        "signals_to_handle": ",".join(number.name for number in _SIGNALS),
        "shutdown_timeout": _GRACE_SECONDS,
    }
    known = {field.name for field in fields(LaunchConfig)}  # newer versions of torch have more
    return LaunchConfig(**{name: value for name, value in options.items() if name in known})


def exit_code(codes: Iterable[int]) -> int:
    """The exit code of a run whose ranks ended with `codes`; the most telling one wins.

    After one rank has failed, the launcher asks the others to stop.
    """
    ended = set(codes)
    ordered = (ConfigError.exit_code, DataError.exit_code, PenstockError.exit_code, PREEMPTED)
    return next((code for code in ordered if code in ended), 1)


def this_program(arguments: Sequence[str], script: str | None) -> list[str]:
    """The command that runs this program again; no `script` means `python -m penstock.command`."""
    return [sys.executable, *([script] if script else ["-m", "penstock.command"]), *arguments]
