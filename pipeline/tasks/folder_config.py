"""The configuration that a run's folder gives to a task about that run: where, without, validate.

It is the folder's config.yaml, which may come from anybody and is checked like any configuration
(`compose.accept`): it trusts nothing, and names no place to write outside of those allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config import compose
from penstock.config.hydra import overrides
from penstock.config.identity import LENGTH, effect_of
from penstock.config.schema import TASK_KEYS, Changes, Config
from penstock.errors import ConfigError, Problem
from penstock.runs.resumption import is_harmless, key_of, run_of

if TYPE_CHECKING:
    from penstock.runs.record import RunRecord

_OF_THE_TASK = ("task", "run_dir", "hydra", "tracker", *TASK_KEYS)


def asked_of(config: Config, beside: Sequence[str] = ()) -> tuple[Config, RunRecord | None]:
    """The configuration that a question is about: this one, or that of the run in `config.run`.

    Keys that may be typed besides it (`may_be_typed`) have their typed values.

    Args:
        beside: keys that may be typed and that the task uses itself, without an effect here.

    Raises:
        ConfigError: it is not a run's folder, or other keys are given besides it.
    """
    if config.run is None:
        return config, None
    from penstock.runs.record import RunRecord

    path, typed = Path(config.run), config.plain()
    record = RunRecord.read(run_of(path) or path, "run")
    asked: dict[str, Any] = deepcopy(dict(record.config))
    for word in overrides():
        if key_of(word) in beside:
            continue
        if not may_be_typed(word):
            raise ConfigError(
                Problem(
                    "run",
                    f"gives the configuration, that of {config.run}, and {word} would "
                    "make another one of it; leave out one of the two",
                )
            )
        *above, name = key_of(word).split(".")
        if [*above, name][0] not in _OF_THE_TASK:
            section, there = typed, asked
            for part in above:
                section = section[part]
                there[part] = there[part] if isinstance(there.get(part), dict) else {}
                there = there[part]
            there[name] = section[name]
    own = {name: value for name, value in typed.items() if name in _OF_THE_TASK}
    return compose.accept({**asked, **own, "tracker": {}}), record


def may_be_typed(word: str) -> bool:
    """Whether an override may stand beside a folder that gives the configuration: those of the
    task, what a run that is resumed may change, and what validation sees.
    """
    key = key_of(word)
    if key.partition(".")[0] in _OF_THE_TASK or is_harmless(word):
        return True
    continues = effect_of(key).changes in (Changes.ROUNDING, Changes.RESULTS, Changes.DATA)
    measures = key in ("trainer.monitor", "trainer.mode") or key.startswith("objective.metrics")
    return (
        (continues or measures or key in LENGTH) and key != "dataset" and not word.startswith("~")
    )
