"""Everything that a run's batches and weights depend on, by key, so that two runs can be compared.

The effect of each key stands beside it in the schema (`schema.Effect`). Arguments of parts have the
effect of their section, and a key that this version does not know counts as one that changes
batches. No identity depends on who loads the data, on the machine or on the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from penstock.config.schema import BATCHES, OF_ARGUMENTS, Changes, Config, Effect
from penstock.loading.known_by import agree

LENGTH = ("trainer.max_epochs", "trainer.max_steps")  # a run may become longer
NOT_SET = "not set"


@cache
def effects() -> Mapping[str, Effect]:
    """The effect of each field of the schema, by key; of a field in sections, theirs."""
    return {**dict(_effects(Config, "", BATCHES)), **OF_ARGUMENTS}


def _effects(
    section: type[BaseModel], above: str, inherited: Effect
) -> Iterator[tuple[str, Effect]]:
    for name, field in section.model_fields.items():
        effect = next((one for one in field.metadata if isinstance(one, Effect)), inherited)
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        inner = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
        if inner is None:
            yield above + name, effect
        else:
            yield from _effects(inner, f"{above}{name}.", effect)


def effect_of(key: str) -> Effect:
    """The effect of a key, for any two values of it; of a section, the strongest of its keys."""
    known, above = effects(), key
    while above and above not in known:
        above = above.rpartition(".")[0]
    if above:
        return known[above]
    inside = [effect for name, effect in known.items() if name.startswith(f"{key}.")]
    return max(inside, key=lambda effect: effect.changes, default=BATCHES)


def identity(config: Config, split: str | None = None) -> dict[str, str]:
    """The keys that must be the same for one run to continue another, with their values.

    What the data is read by is not among them: its fingerprint stands for it.

    Args:
        split: only the keys that make its batches.
    """
    schedule = str((config.scheduler or {}).get("_target_", "torch.optim."))
    # Validation decides what is learned where a run stops by it, or its rate follows it; a schedule
    # of somebody's own may.
    follows = schedule.endswith("ReduceLROnPlateau") or not schedule.startswith("torch.optim.")
    steers = follows or config.trainer.patience is not None
    least = Changes.RESULTS if steers else Changes.WEIGHTS
    plain, values = config.plain(), {}
    for key, value in leaves(plain):
        effect = effect_of(key)
        counts = split in effect.makes if split else effect.changes >= least and key not in LENGTH
        if counts and effect.changes != Changes.DATA:
            values[key] = str(value)
    for name, steps in plain["transform"].items():
        if any(key.startswith(f"transform.{name}.") for key in values):  # steps have an order
            values[f"transform.{name}"] = ", ".join(step for step, node in steps.items() if node)
    return values


def differences(saved: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
    """The keys by which two identities are of different runs; marks of data as `agree` says."""
    return [key for key in sorted({**saved, **own}) if not agree(key, saved, own)]


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in nested mappings."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from leaves(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
