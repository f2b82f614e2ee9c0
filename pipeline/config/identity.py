"""Everything that a run's batches and weights depend on, by key, so that two runs can be compared.

The effect of each key stands beside it in the schema (`schema.Effect`). Arguments of parts have the
effect of their section, and a key that this version does not know counts as one that changes
batches. No identity depends on who loads the data, on the machine or on the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from penstock.config.schema import (
    BATCHES,
    DATA,
    OF_ARGUMENTS,
    RESULTS,
    TRAINING,
    VALIDATION,
    WEIGHTS,
    Config,
    Effect,
)

LENGTH = ("trainer.max_epochs", "trainer.max_steps")  # a run may become longer
_MAKE = {"train": (TRAINING, BATCHES), "val": (VALIDATION, BATCHES)}  # the batches of a split


@cache
def effects(
    section: Any = Config, above: str = "", inherited: Effect = BATCHES
) -> Mapping[str, Effect]:
    """The effect of each field of a section by key, and the strongest below each that has fields.

    Args:
        above: the key of the section, with a dot behind it.
        inherited: the effect of a field that has none of its own.
    """
    by_key = {key: effect for key, effect in OF_ARGUMENTS.items() if key.startswith(above)}
    for field_name, field in section.model_fields.items():
        name = field.alias or field_name
        effect = next((one for one in field.metadata if isinstance(one, Effect)), inherited)
        inner = [
            kind
            for kind in (field.annotation, *get_args(field.annotation))
            if hasattr(kind, "model_fields")
        ]
        below = effects(inner[0], f"{above}{name}.", effect) if inner else {}
        by_key |= {**below, above + name: max(below.values(), default=effect)}
    return by_key


def effect_of(key: str) -> Effect:
    """The effect of a key, for any two values of it; of an unknown one, that of what it is in."""
    while key and key not in effects():
        key = key.rpartition(".")[0]
    return effects().get(key, BATCHES)


def identity(config: Config, split: str | None = None) -> dict[str, str]:
    """The keys that must be the same for one run to continue another, with their values.

    Keys that say how data is read are not among them: its fingerprint replaces them.

    Args:
        split: only the keys that make its batches.
    """
    schedule = str((config.scheduler or {}).get("_target_", "torch.optim."))
    # Validation decides what is learned where a run stops by it, or its rate follows it; a schedule
    # of somebody's own may.
    least = (
        RESULTS
        if config.trainer.patience is not None
        or schedule.endswith("ReduceLROnPlateau")
        or not schedule.startswith("torch.optim.")
        else WEIGHTS
    )
    return {
        key: str(value)
        for key, value in leaves(config.model_dump())
        if effect_of(key) in (_MAKE[split] if split else range(least, DATA)) and key not in LENGTH
    }


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in nested mappings, and the order of steps."""
    if isinstance(value, Mapping) and value:
        if key.startswith("transform.") and key.count(".") == 1:
            yield key, ", ".join(step for step, node in value.items() if node)
        for name, item in value.items():
            yield from leaves(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
