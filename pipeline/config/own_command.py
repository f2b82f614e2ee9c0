"""Commands that this program suggests, and the overrides that started this job.

Whatever a message, a table or a report offers for pasting is made by `suggested`: this program, the
options that the person typed for this very command, and overrides. A run folder, which may come
from anybody, adds overrides at most (`pipeline/reports/values.py` checks them), and never an option
that trusts something: those are taken from this process only.
"""

from __future__ import annotations

import os
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from pipeline import program
from pipeline.config import command_line_keys, disclosure, hydra_output, project
from pipeline.config.allowances import OPTIONS
from pipeline.config.schema import TASK_KEYS
from pipeline.order.skipped import Skipped


def suggested(*words: str) -> str:
    """A command line of this program with these words, without secrets, for a person to paste."""
    return disclosure.command([*program.words(), *_typed_options(), *words])


def how_to_resume(folder: Path) -> str:
    """The hint for a run that was stopped."""
    return f"To resume:\n  {suggested(program.override('resume', folder), *_typed_again())}"


def how_to_skip(folder: Path, skipped: Skipped) -> str:
    """The hint for a run that failed on a batch: `skipped` has its address and those before."""
    words = [program.override("resume", folder), *_typed_again(), f"trainer.skip={skipped}"]
    return f"To go on without it:\n  {suggested(*words)}"


def command_line(*given: str) -> str:
    """This job's command with its task's overrides replaced by `given`."""
    mine = ("task", "run_dir", "resume", "resume_despite", *TASK_KEYS)
    own = [word for word in overrides() if word.split("=")[0] not in mine]
    return suggested(*own, *given)


def _typed_again() -> list[str]:
    """This job's overrides that its folder does not give when it is resumed."""
    return [word for word in overrides() if command_line_keys.named(word)]


def _typed_options() -> list[str]:
    """This job's options for allowances and folders of configurations, as the person typed them."""
    words: list[str] = []
    said = project.current()
    for option, variable in OPTIONS.items():
        allowed = os.environ.get(variable)
        if allowed and not (option == "--trust" and said and allowed == ",".join(said.trust)):
            words += [option, allowed]
    if HydraConfig.initialized():
        for source in HydraConfig.get().runtime.config_sources:
            known = said is not None and said.config_dir == source.path
            if source.provider == "command-line" and not known:
                words += ["--config-dir", source.path]
    return words


def overrides() -> list[str]:
    """The overrides of this job without secrets, also if a launcher started it."""
    return disclosure.words(hydra_output.overrides())
