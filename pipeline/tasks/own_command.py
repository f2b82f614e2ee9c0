"""The command that started this job, in words that can be pasted: for hints and manifests."""

from __future__ import annotations

import os
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from pipeline import program
from pipeline.config import command_line_keys, disclosure, hydra_output, project
from pipeline.config.allowances import OPTIONS
from pipeline.config.schema import TASK_KEYS
from pipeline.order.skipped import Skipped


def how_to_resume(folder: Path) -> str:
    """The hint for a run that was stopped."""
    words = [*_started_words(), f"resume={folder}", *_typed_again()]
    return f"To resume:\n  {disclosure.command(words)}"


def how_to_skip(folder: Path, skipped: Skipped) -> str:
    """The hint for a run that failed on a batch: `skipped` has its address and those before."""
    words = [*_started_words(), f"resume={folder}", *_typed_again(), f"trainer.skip={skipped}"]
    return f"To go on without it:\n  {disclosure.command(words)}"


def command_line(*given: str) -> str:
    """This job's command with its task's overrides replaced by `given`."""
    mine = ("task", "run_dir", "resume", "resume_despite", *TASK_KEYS)
    own = [word for word in overrides() if word.split("=")[0] not in mine]
    return disclosure.command([*_started_words(), *own, *given])


def _typed_again() -> list[str]:
    """This job's overrides that its folder does not give when it is resumed."""
    return [word for word in overrides() if command_line_keys.named(word)]


def _started_words() -> list[str]:
    """The program, with this job's options for allowances and configuration folders."""
    words, said = program.words(), project.current()
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
