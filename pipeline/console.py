"""The command `penstock` of an installation, and what a project's own run.py calls."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import NoReturn

from penstock.distributed import stop


def main(trust: Sequence[str] = (), config_dir: str | None = None) -> NoReturn:
    """Run this process's command line, and end it with its exit code.

    Args:
        trust: packages whose code a configuration may call, as with `--trust`.
        config_dir: a folder of groups, as with `--config-dir`.
    """
    with stop.requests("leave"):  # the imports below take seconds
        gc.disable()  # it took a tenth of their time; a job turns it on again
        from penstock import command

    sys.exit(command.main(sys.argv[1:], sys.argv[0], trust, config_dir))
