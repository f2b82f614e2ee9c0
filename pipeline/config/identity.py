"""The effect of each key: on batches, only on weights, only on measurements, or none.

The schema says it beside each key (`schema.Effect`); this reads it there, for everybody who asks:
comparing runs, resuming, sweeps, sharing, the fingerprints of loaders and of runs.

    effect_of(key)               the careful answer, whatever else is configured
    between(key, first, second)  what it is for two runs, by what is known of them
    recorded(config)             the keys that must be the same for one run to continue another

Arguments of parts have the effect of their section, and a key that this version does not know
counts as one that changes batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from penstock.config.schema import Changes, Config, Effect
from penstock.loading.known_by import PREFIX, agree, relation

ON_ERROR, BALANCE = "bad_samples.on_error", "batch.balance"
NOT_SET = "not set"
_UNKNOWN = Effect(Changes.BATCHES, "unknown to this version")

Answer = tuple[Changes, str]  # with the reason, where it is not plain


@dataclass(frozen=True)
class Field:
    """A field of the schema that is no section of fields.

    Attributes:
        default: as text; None if it has to be given.
    """

    key: str
    effect: Effect | None
    default: str | None


@dataclass(frozen=True)
class Known:
    """The known facts of a run; None for unknown ones.

    Attributes:
        config: keys with their values as text; what is not there has its default.
        data: of its manifest: the kind of fingerprint, and the fingerprint of each split.
        device: on which it trained.
        alone: whether one process did all of it.
        decoder: whether batches depend on who decodes pictures.
        left_out: split and identity of the samples that it left out.
    """

    config: Mapping[str, str]
    data: Mapping[str, Any] | None = None
    device: str | None = None
    alone: bool | None = None
    decoder: bool = False
    left_out: Set[tuple[str, str | int]] | None = None

    def __getitem__(self, key: str) -> str:
        known = fields().get(key)
        return self.config.get(key, (known and known.default) or "None")

    def has(self, section: str) -> bool:
        """Whether a section holds anything that is not null."""
        return any(
            key.startswith(f"{section}.") and value != "None" for key, value in self.config.items()
        )


@cache
def fields() -> Mapping[str, Field]:
    """All fields of the schema, by key."""
    return {field.key: field for field in _fields(Config, "", None)}


def _fields(section: type[BaseModel], above: str, inherited: Effect | None) -> Iterator[Field]:
    for name, field in section.model_fields.items():
        key = f"{above}.{name}" if above else name
        effect = next((part for part in field.metadata if isinstance(part, Effect)), inherited)
        if effect is not None and above:
            effect = effect.below.get(name, effect) if effect is inherited else effect
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        inner = next((part for part in kinds if hasattr(part, "model_fields")), None)
        if inner is not None:
            yield from _fields(inner, key, effect)
        else:
            has_default = not field.is_required() and field.default_factory is None
            yield Field(key, effect, str(field.default) if has_default else None)


def field_of(key: str) -> Field | None:
    """The field that `key` is or lies below of."""
    while key and key not in fields():
        key = key.rpartition(".")[0]
    return fields().get(key)


def effect_of(key: str) -> Effect:
    """The careful answer for a key; that of a section is the strongest of its keys."""
    field = field_of(key)
    if field is None:
        inside = [known.effect for known in fields().values() if known.key.startswith(f"{key}.")]
        return max(filter(None, inside), key=lambda known: known.changes, default=_UNKNOWN)
    effect = field.effect or _UNKNOWN
    rest = key[len(field.key) + 1 :].partition(".")[0]
    return effect.below.get(rest, effect)


def between(key: str, first: Known, second: Known) -> Answer:
    """The effect of a key that differs between two runs, and the reason."""
    effect = effect_of(key)
    if effect.asks:
        return QUESTIONS[effect.asks](first, second)
    return effect.changes, effect.why


def is_config(key: str) -> bool:
    """Whether `recorded` has a key of a fingerprint; others are facts of the data."""
    effect = effect_of(key)
    return effect.changes > effect.resumes and effect is not _UNKNOWN


def recorded(config: Config, split: str | None = None) -> dict[str, str]:
    """The keys that must be the same for a run to continue another one, with their values; without
    those that have the schema's default.

    Args:
        split: only the keys that make its batches.
    """
    # Ranks may be dealt other rows when a run is resumed; the rows of a lane are part of the run.
    in_lanes = config.distributed.lanes is not None
    return {
        key: str(value)
        for key, value in leaves(config.plain())
        if (is_config(key) or (key == BALANCE and in_lanes))
        and (split is None or split in effect_of(key).makes)
        and not is_default(key, value)
    }


def making(config: Config, split: str) -> dict[str, str]:
    """Every key that makes the batches of a split, with its value."""
    values = leaves(config.plain())
    return {key: str(value) for key, value in values if split in effect_of(key).makes}


def is_default(key: str, value: object) -> bool:
    """Whether a key has the value that the schema gives it."""
    field = fields().get(key)
    return field is not None and field.default == str(value)


def differing(saved: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
    """The keys of two runs' fingerprints for which the second cannot continue the first one.

    A field that a fingerprint does not have was at its default, or it is of a version that recorded
    less, of which nothing is known.
    """
    first, second = Known(saved), Known(own)

    def differs(key: str) -> bool:
        if key.startswith(PREFIX):
            return not agree(key, saved, own)
        pair = value_in(saved, key), value_in(own, key)
        return None not in pair and pair[0] != pair[1] and not _may_differ(key, first, second)

    return [key for key in sorted(saved.keys() | own.keys()) if differs(key)]


def value_in(facts: Mapping[str, str], key: str) -> str | None:
    """The value of a key in a run's fingerprint; None if nothing is known of it."""
    if key in facts:
        return facts[key]
    field = field_of(key) if is_config(key) else None
    if field is None or any(f"{name}.".startswith(f"{field.key}.") for name in facts):
        return NOT_SET
    return field.default if field.default is None or key == field.key else NOT_SET


def _may_differ(key: str, first: Known, second: Known) -> bool:
    if not is_config(key):
        return False
    # A run that raises has left nothing out so far, so whatever comes now is as if from its start.
    if key == ON_ERROR and first[ON_ERROR] == "raise":
        return True
    return between(key, first, second)[0] <= effect_of(key).resumes


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in nested mappings."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from leaves(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


# Questions, whose answers may be less than the careful one.


def _data(first: Known, second: Known) -> Answer:
    """Arguments of the dataset, which its fingerprint stands for."""
    if first.data is None or second.data is None:
        return Changes.BATCHES, ""
    own, other = first.data, second.data
    if own.get("fingerprint") != other.get("fingerprint"):
        return Changes.BATCHES, "the data was fingerprinted in different ways"
    train, val = (relation(own, other, split) for split in ("train", "val"))
    if train.same is False:
        return Changes.BATCHES, "the data differs"
    if None in (train.same, val.same):
        return Changes.BATCHES, "the data has no fingerprint of its own"
    if not val.same:
        return _validation(first, second)
    return Changes.NOTHING, "the data has the same fingerprint"


def _packed(first: Known, second: Known) -> Answer:
    if first.decoder or second.decoder:
        why = "pixels of packs and of the transform's decoder differ by rounding"
        return Changes.BATCHES, why
    return _data(first, second)


def _pack(first: Known, second: Known) -> Answer:
    if all(run["dataset.packed"] != "auto" for run in (first, second)):
        return Changes.NOTHING, "neither run made a pack"
    return _packed(first, second)


def _facts(first: Known, second: Known) -> Answer:
    """Facts of a dataset that the model gets, unless they are arguments of the dataset."""
    answer = _data(first, second)
    same = answer[0] != Changes.BATCHES
    return (Changes.WEIGHTS, "the model is made of it") if same else answer


def _validation(first: Known, second: Known) -> Answer:
    """The keys of validation, which only some runs learn from."""
    for run in (first, second):
        if run["trainer.patience"] != "None":
            return Changes.WEIGHTS, "validation decides when to stop: trainer.patience"
        target = run["scheduler._target_"]
        # A schedule of somebody's own may be a kind of it.
        known = target == "None" or target.startswith(("torch.optim.", "penstock."))
        if target.endswith("ReduceLROnPlateau") or not known:
            return Changes.WEIGHTS, "validation moves the learning rate: scheduler"
    return Changes.RESULTS, "validation only; it chooses the best epoch"


def _limits(first: Known, second: Known) -> Answer:
    if all(run[ON_ERROR] == "raise" for run in (first, second)):
        return Changes.NOTHING, "what is beyond a limit ends the run (bad_samples.on_error=raise)"
    return _which_left_out(first, second)


def _which_left_out(first: Known, second: Known) -> Answer:
    """Which samples are left out: limits on what they claim, and those known to be bad."""
    if first.left_out and first.left_out == second.left_out:
        return Changes.NOTHING, "the same samples were left out"
    return _left_out(first, second)


def _left_out(first: Known, second: Known) -> Answer:
    """The fate of samples that are left out."""
    if first.left_out is None or second.left_out is None:
        return Changes.BATCHES, "which samples are left out is not known"
    splits = {split for split, _ in first.left_out | second.left_out}
    if "train" in splits:
        return Changes.BATCHES, "samples were left out"
    return _validation(first, second) if splits else (Changes.NOTHING, "no sample was left out")


def _device(first: Known, second: Known) -> Answer:
    if first.device is not None and first.device == second.device:
        return Changes.NOTHING, f"both trained on {first.device}"
    if first.has("transform.train_batch") or second.has("transform.train_batch"):
        return Changes.BATCHES, "transforms of batches round in another way"
    return Changes.WEIGHTS, "rounding"


def _batch_on(first: Known, second: Known) -> Answer:
    if first.device == second.device == "cpu":
        return Changes.NOTHING, "the same on a CPU"
    if not (first.has("transform.train_batch") or second.has("transform.train_batch")):
        return _validation(first, second)
    return Changes.BATCHES, "rounding, which the digest leaves out"


def _ranks(first: Known, second: Known) -> Answer:
    lanes = first["distributed.lanes"]
    if lanes != "None" and lanes == second["distributed.lanes"]:
        return Changes.NOTHING, f"a step has {lanes} lanes on any number of ranks"
    return _balance(first, second)


def _balance(first: Known, second: Known) -> Answer:
    """The keys that decide which rows a rank, or a lane, gets."""
    if any(run["distributed.lanes"] != "None" for run in (first, second)):
        return Changes.WEIGHTS, "lanes get other rows"
    sharded = any(run["distributed.strategy"] == "fsdp" for run in (first, second))
    if first.alone and second.alone and not sharded:
        return Changes.NOTHING, "one process"
    return Changes.WEIGHTS, "sums, batch norms and dropout depend on the ranks"


QUESTIONS: Mapping[str, Callable[[Known, Known], Answer]] = {
    "data": _data,
    "packed": _packed,
    "pack": _pack,
    "facts": _facts,
    "validation": _validation,
    "limits": _limits,
    "which_left_out": _which_left_out,
    "left_out": _left_out,
    "device": _device,
    "batch_on": _batch_on,
    "ranks": _ranks,
    "balance": _balance,
}
