"""Compares the marks of datasets: in fingerprints, and in manifests of runs.

Names are those of `pipeline/runs/identity/dataset.py`; one in a fingerprint begins with PREFIX.
Data is known to be the same by a fingerprint of its own alone. The marks of a dataset without one
(its code, arguments, length and labels) can differ, and then it is another one; where they agree,
the data is not known to be the same. This imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "dataset.identity."
KNOWN_BY = "known_by"  # in a manifest: FINGERPRINT or CONTENT
FINGERPRINT, CONTENT = "its fingerprint", "what is seen of it"
ADVICE = "give it a `fingerprint` (docs/own_dataset.md)"
PLACE = "(a file or folder)"  # an argument for which a fingerprint stands
_SEEN = frozenset(PREFIX + name for name in ("labels", KNOWN_BY))
_NO_SOURCE = "unknown"  # of code, `sources.UNKNOWN`


def in_fingerprint(facts: Mapping[str, str]) -> dict[str, str]:
    """The marks of a dataset, as entries of a run's fingerprint."""
    return {PREFIX + name: value for name, value in facts.items()}


def agree(name: str, first: Mapping[str, object], second: Mapping[str, object]) -> bool:
    """Whether an entry of two fingerprints is no difference.

    The marks of a dataset count only where both are of a version that notes it; what is seen
    of it where both have it, since a run may have ended before, and of rows those that both have.
    """
    if name.startswith(PREFIX):
        lacking = name not in first or name not in second
        if lacking and name in _SEEN:
            return True
        if lacking and not all(any(map(_is_known_by, facts)) for facts in (first, second)):
            return True
        if PLACE in (first.get(name), second.get(name)):
            return True
    return bool(first.get(name) == second.get(name))


def _is_known_by(name: object) -> bool:
    return str(name).startswith(PREFIX) and name not in _SEEN


def tells(fingerprint: object) -> bool:
    """Whether it says more than a number of samples, as for a dataset that offers none."""
    own = fingerprint.partition(" kept=")[0] if isinstance(fingerprint, str) else "None"
    return own != "None" and not own.isdigit()


@dataclass(frozen=True)
class Relation:
    """How the data of two runs compares.

    Attributes:
        same: None: it is not known.
        why: in words; empty if it is the same.
        keys: the facts that differ.
        alike: whether all that was compared agrees, which is not all of the data.
    """

    same: bool | None
    why: str = ""
    keys: tuple[str, ...] = ()
    alike: bool = False


def other_facts(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """The names of facts that two fingerprints have, and that differ."""
    names = [name for name in {**first, **second} if name.startswith(PREFIX)]
    return [
        name.removeprefix(PREFIX)
        for name in names
        if name != PREFIX + KNOWN_BY and not agree(name, first, second)
    ]


def relation(first: object, second: object, split: str = "train") -> Relation:
    """How a split of two runs compares.

    Args:
        first, second: `data` of their manifests, which may come from anybody.
    """
    runs = [_mapping(manifest) for manifest in (first, second)]
    if all(run.get("train") and split not in run for run in runs):  # neither validates
        return Relation(True)
    if not all(run.get(split) for run in runs):
        return Relation(None, "the data of a run is not known")
    ways = [run.get("fingerprint") for run in runs]
    if ways[0] != ways[1]:
        return Relation(None, f"the data was fingerprinted in different ways: {ways[0]}, {ways[1]}")
    known = [_mapping(_mapping(run.get("identity")).get(split)) for run in runs]
    keys = other_facts(*map(in_fingerprint, known))
    if runs[0][split] != runs[1][split]:
        keys = ["fingerprint" if tells(runs[0][split]) else "length", *keys]
    if keys:
        return Relation(False, f"other data: {named(keys, *known)}", tuple(keys))
    by = [
        facts.get(KNOWN_BY) or (FINGERPRINT if tells(run[split]) else CONTENT)
        for facts, run in zip(known, runs, strict=True)
    ]
    lacks_source = any(_NO_SOURCE in facts.values() for facts in known)
    if by == [FINGERPRINT] * 2 and not lacks_source:
        return Relation(True)
    return Relation(None, f"the data is not known to be the same; {ADVICE}", alike=True)


def named(keys: Sequence[str], first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Facts that differ, in words."""
    said = []
    for key in keys:
        value, other = str(first.get(key, "none")), str(second.get(key, "none"))
        if key.startswith("arguments."):
            said.append(f"{key.removeprefix('arguments.')} {value[:60]} and {other[:60]}")
        else:
            said.append(key.replace("code.", "code of "))
    return "; ".join(said)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
