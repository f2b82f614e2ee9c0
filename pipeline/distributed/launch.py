"""Starting all ranks of a run on this machine, by torch's own launcher.

Every rank is a process that runs this same command line and finds its place in the environment, as
under torchrun. Ranks report their errors themselves on stderr; here the exit codes are merged.
torch.distributed is not imported before a run needs it.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Sequence
from typing import Any

from penstock.distributed import world
from penstock.distributed.stop import SIGNALS
from penstock.errors import PREEMPTED, PenstockError

_LAUNCHER = "PENSTOCK_LAUNCHER"  # its process, which a person may want to signal


class RanksError(PenstockError):
    """A rank failed; the message is empty if the rank has printed it itself."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def processes(distributed: Any) -> int:
    """How many ranks the section `distributed` starts; 0 if this process is (one of) them."""
    if distributed.strategy == "none" or world.is_launched():
        return 0
    count = world.default_processes() if distributed.nproc == "auto" else distributed.nproc
    return 0 if count == 1 and distributed.strategy == "ddp" else int(count)


def run(command: Sequence[str], processes: int, max_restarts: int = 0) -> None:
    """Run `command` in that many ranks of one world.

    Args:
        command: program and arguments of every rank.
        max_restarts: how often all are started again when one was killed.

    Raises:
        RanksError: a rank failed; the exit code tells configuration, data and preemption apart.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.startswith("torch.distributed.elastic") and isinstance(logger, logging.Logger):
            logger.setLevel(logging.CRITICAL)  # each of them has a level of its own
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    os.environ[_LAUNCHER] = str(os.getpid())
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            options = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=processes,
                max_restarts=max_restarts,
                run_id="penstock",
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                logs_specs=DefaultLogsSpecs(log_dir=folder),
                signals_to_handle=",".join(number.name for number in SIGNALS),
                shutdown_timeout=120,  # for a checkpoint; then ranks are killed
            )
            elastic_launch(options, command[0])(*command[1:])
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        killed = [
            f"rank {rank} was ended by {signal.Signals(-code).name}"
            for rank, code in sorted(codes.items())
            if code < 0 and -code != signal.SIGTERM  # by which the launcher ends the others
        ]
        # The most telling one: after one rank has failed, the others are asked to stop.
        exit_code = next((code for code in (2, 3, 1, PREEMPTED) if code in codes.values()), 1)
        raise RanksError("; ".join(killed), exit_code) from None
    except SignalException:
        # The ranks have received the signal, and each reports by itself whether it saved.
        raise RanksError("", PREEMPTED) from None
    finally:
        del os.environ[_LAUNCHER]
        for number, handler in handlers.items():  # torch's launcher replaces them for good
            signal.signal(number, handler)


def is_of_ours() -> bool:
    """Whether our launcher started this process, and has printed what it will do."""
    return world.is_launched() and bool(os.environ.get(_LAUNCHER))
