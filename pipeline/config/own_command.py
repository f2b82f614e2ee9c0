"""The command of this very job, as a message offers it for pasting.

A run folder, which may come from anybody, adds overrides at most
(`pipeline/addons/reports/values.py` checks them), and never an option that trusts something: those
are taken from this process only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.core.hydra_config import HydraConfig

from penstock import program
from penstock.config.hydra import overrides
from penstock.config.schema import TASK_KEYS

_OF_A_START = ("task", "run_dir", "resume", "resume_despite", "hydra", *TASK_KEYS)


def is_job() -> bool:
    """Whether this is a job of a sweep, which keeps a folder for each."""
    return HydraConfig.initialized() and str(HydraConfig.get().mode) == "RunMode.MULTIRUN"


def command_line(*words: str) -> str:
    """This job's command with other words for what its task is asked."""
    return program.text(*of_run(overrides()), *words)


def of_run(words: Sequence[str]) -> list[str]:
    """Overrides without those of a task, of where it writes, and of how it is started."""
    return [word for word in words if re.split(r"[=./@]", word.lstrip("+~"))[0] not in _OF_A_START]
