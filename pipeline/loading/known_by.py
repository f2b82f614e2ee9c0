"""Compares the marks of datasets: in fingerprints, and in manifests of runs.

Names are those of `pipeline/runs/identity/dataset.py`; one in a fingerprint begins with PREFIX.
Data is known to be the same by a fingerprint of its own alone. The marks of a dataset without one
(`sampled_rows.py`) can differ, and then it is another one; where it agrees, the data is not known
to be the same. This imports no torch.
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
_SEEN = frozenset(PREFIX + name for name in ("rows", "table", "files", KNOWN_BY))
_NO_SOURCE = "unknown"  # of code, `sources.UNKNOWN`
_MOST_ROWS = 1000  # of a text from anybody


def written(rows: Mapping[int, str]) -> str:
    """Hashes by row, as a fingerprint has them."""
    return " ".join(f"{row}:{digest}" for row, digest in rows.items())


def parsed(text: str) -> dict[str, str]:
    """The same read again, from a file that may come from anybody."""
    pairs = (word.partition(":") for word in text.split()[:_MOST_ROWS])
    return {row: digest for row, _, digest in pairs}


def other_rows(first: str, second: str) -> list[str]:
    """The rows that both texts have a hash of, and not the same one."""
    digests, other = parsed(first), parsed(second)
    return [row for row, digest in digests.items() if other.get(row, digest) != digest]


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
    if name == f"{PREFIX}rows":
        return not other_rows(str(first[name]), str(second[name]))
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
    compared = compared_rows(*map(in_fingerprint, known))
    return Relation(
        None, f"the data is not known to be the same ({compared}); {ADVICE}", alike=True
    )


def compared_rows(first: Mapping[str, object], second: Mapping[str, object]) -> str:
    """How many rows two fingerprints have in common, of which none differs."""
    both = [parsed(str(facts.get(f"{PREFIX}rows", ""))) for facts in (first, second)]
    rows = both[0].keys() & both[1].keys()
    return f"{len(rows)} of its rows were compared" if rows else "none of its rows was compared"


def named(keys: Sequence[str], first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Facts that differ, in words."""
    said = []
    for key in keys:
        value, other = str(first.get(key, "none")), str(second.get(key, "none"))
        if key == "rows":
            rows = other_rows(value, other)
            said.append(f"rows {', '.join(rows[:5])}{', ...' if len(rows) > 5 else ''}")
        elif key.startswith("arguments."):
            said.append(f"{key.removeprefix('arguments.')} {value[:60]} and {other[:60]}")
        else:
            said.append(key.replace("code.", "code of "))
    return "; ".join(said)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
