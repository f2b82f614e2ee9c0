"""The identity of a dataset, and whether two runs had the same one.

    fingerprint      what the dataset tells (`fingerprints.py`), or else its number of rows
    code.MODULE      a hash of each module of a person's own that its classes are defined in
    arguments.NAME   as configured
    labels           a hash of its labels, as torch's `targets` have them, if it says nothing

Penstock's own datasets have nothing but a fingerprint, which covers all of it. One of a person's
own that has a fingerprint has its code and arguments beside it; those that name a file or folder
are left out, as data may move. One without a fingerprint is known by all of the rest, which is less
than its content: where everything agrees, it is not known to be the same.

A run's manifest has the facts of each split under `data.identity`, and its fingerprint those of the
training split, as `dataset.identity.NAME`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.config.targets import SUPPLIED, arguments, resolve, walk
from penstock.loading.facts import SomeRows, columns_of, unfiltered
from penstock.loading.fields import Fields
from penstock.loading.fingerprint import PLACE
from penstock.runs.identity.sources import modules_of

_OURS = "penstock."
_MOST_TEXT = 200  # characters of an argument

Facts = dict[str, str]


def tells_all(dataset: object) -> bool:
    """Whether a dataset, and each that it is made of, has a fingerprint."""
    if isinstance(dataset, SomeRows):
        return tells_all(dataset.dataset)
    sources = getattr(dataset, "sources", None)
    if type(dataset).__module__.startswith(_OURS) and isinstance(sources, Mapping):
        return all(map(tells_all, sources.values()))
    return getattr(dataset, "fingerprint", None) is not None


def marks_of(node: object, dataset: Any, has_fingerprint: bool, fields: Fields) -> Facts:
    """What a dataset is known by beside its fingerprint; nothing for Penstock's own."""
    facts = code_and_arguments(node, dataset, has_fingerprint)
    if not has_fingerprint:
        facts |= labels_of(columns_of(dataset, fields))
    return facts | ({"fields": ", ".join(fields.given)} if facts and fields.given else {})


def code_and_arguments(node: object, dataset: object, has_fingerprint: bool) -> Facts:
    """The code and the arguments of a dataset; none where all of it is ours.

    Args:
        node: that it was built of, without secrets.
        has_fingerprint: whether it has one.
    """
    targets = {key: resolve(one["_target_"], key) for key, one in walk(node, "")}
    kinds = [*targets.values(), type(unfiltered(dataset))]
    code = dict(one for kind in kinds for one in modules_of(kind))
    own = {
        key: not str(getattr(target, "__module__", "")).startswith(_OURS)
        for key, target in targets.items()
    }
    if has_fingerprint and not any(own.values()):
        return {}
    facts: dict[str, str] = {}
    # What ours takes is in its fingerprint, unless it stands in something that has none.
    whole_tree = not has_fingerprint and own.get("", True)
    for key, one in walk(node, ""):
        if own[key] or whole_tree:
            whole = {**_defaults(targets[key]), **one}
            for name, value in _leaves(whole, key.lstrip(".")):
                moves = has_fingerprint and _names_a_place(value)
                facts[f"arguments.{name}"] = PLACE if moves else _text(value)
    return {**{f"code.{name}": digest for name, digest in sorted(code.items())}, **facts}


def labels_of(columns: Mapping[str, Any]) -> Facts:
    """A hash of the columns that tell of a dataset; nothing where it has none."""
    digest = hashlib.blake2b(digest_size=8)
    for name, column in columns.items():
        values = np.asarray(column)
        digest.update(f"{name} {values.dtype} {values.shape}".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return {"labels": digest.hexdigest()} if columns else {}


def _defaults(target: object) -> dict[str, object]:
    """The arguments that a target has by default, but for what the build supplies."""
    plain = (str, int, float, bool, list, tuple, type(None))
    return {
        name: one.default
        for name, one in arguments(target).items()
        if isinstance(one.default, plain) and name not in SUPPLIED["dataset"]
    }


def _text(value: Any) -> str:
    text = str(value)
    if len(text) <= _MOST_TEXT:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[: _MOST_TEXT // 2]}... {digest}"


def _leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Key and value of each argument of a node, without those of nodes inside; `_target_` too."""
    for name, value in node.items() if isinstance(node, Mapping) else enumerate(node):
        inner = f"{key}.{name}".lstrip(".") if isinstance(node, Mapping) else f"{key}[{name}]"
        if isinstance(value, (Mapping, list)) and any(True for _ in walk(value, "")):
            if not (isinstance(value, Mapping) and "_target_" in value):
                yield from _leaves(value, inner)
        elif isinstance(value, Mapping) and value:
            yield from _leaves(value, inner)
        else:
            yield inner, value


def _names_a_place(value: object) -> bool:
    if not isinstance(value, str) or not value:
        return False
    try:
        return "://" in value or Path(value).exists()
    except (OSError, ValueError):
        return False
