"""The command `penstock` of an installation: the same as `python run.py`."""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from penstock.distributed import preemption


def main() -> NoReturn:
    """Run this process's command line, and end it with its exit code."""
    preemption.leave_early()  # the imports below take seconds
    gc.disable()  # it took a tenth of their time; a job turns it on again
    from penstock import command

    preemption.leave(command.main(sys.argv[1:], sys.argv[0]))
