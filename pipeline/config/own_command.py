"""Commands that this program suggests, and the overrides that started this job.

Whatever a message, a table or a report offers for pasting is made by `program.text`: this
program, the options that the person typed for this very command, and overrides. A run folder,
which may come from anybody, adds overrides at most (`pipeline/addons/reports/values.py` checks
them), and never an option that trusts something: those are taken from this process only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from penstock import program
from penstock.config.hydra import overrides
from penstock.config.schema import TASK_KEYS
from penstock.order.skipped import Skipped

_OF_A_START = ("task", "run_dir", "resume", "resume_despite", "hydra", *TASK_KEYS)


def is_job() -> bool:
    """Whether this is a job of a sweep, which keeps a folder for each."""
    return bool(HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN)


def how_to_resume(folder: Path) -> str:
    """The hint for a run that was stopped."""
    return f"To resume:\n  {program.text(program.override('resume', folder))}"


def how_to_skip(folder: Path, skipped: Skipped) -> str:
    """The hint for a run that failed on a batch: `skipped` has its address and those before."""
    words = [program.override("resume", folder), f"trainer.skip={skipped}"]
    return f"To continue without it:\n  {program.text(*words)}"


def command_line(*words: str) -> str:
    """This job's command with its task's overrides replaced by `given`."""
    return program.text(*of_run(overrides()), *words)


def of_run(words: Sequence[str]) -> list[str]:
    """Overrides without those of a task, of where it writes, and of how it is started."""
    return [word for word in words if re.split(r"[=./@]", word.lstrip("+~"))[0] not in _OF_A_START]
