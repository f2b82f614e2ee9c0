"""The `_target_` nodes of a configuration: where they are, what they call, what the build supplies.

A section such as `model` or `transform.train` is a tree of plain values in which some mappings have
a `_target_`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.config import targets
from penstock.config.familiar import advice
from penstock.config.messages import not_allowed, show
from penstock.config.schema import Config
from penstock.config.targets import walk
from penstock.errors import ConfigError, Problem

# Facts of a dataset for a model, an objective and its metrics; and torch's names for them.
SAME_FACTS = {
    "in_features": "num_features",
    "out_features": "num_outputs",
    "num_labels": "num_classes",
}
FACTS = ("num_classes", "num_features", "num_landmarks", "num_outputs", "classes", *SAME_FACTS)
SUPPLIED = ("split", "train", "lazy", "limits", "files")  # arguments of a dataset
_SAMPLER = (
    "length",
    "seed",
    "metadata",
    "batch_size",
    "tail",
    "dataset",
    "data_source",
    "long_tail",
    "mixing",
)
_SCHEDULER = ("optimizer", "total_steps", "T_max", "total_iters")

# Importing torchmetrics takes 1.3 s; tasks that measure nothing check only the names below it.
_DATA_ONLY = ("digest", "replay")
_SLOW = ("torchmetrics.", "penstock.training.metrics.")


@dataclass(frozen=True)
class Part:
    """A section that holds nodes.

    Attributes:
        key: its full key, e.g. "transform.train".
        node: its plain values.
        supplied: arguments that the build adds where the callable takes them.
        nested: whether they go into the nodes inside as well.
        is_map: whether it is a mapping of nodes by name and not a node itself.
        measured: whether the task makes metrics.
    """

    key: str
    node: Any
    supplied: tuple[str, ...] = ()
    nested: bool = False
    is_map: bool = False
    measured: bool = True


def parts(config: Config) -> list[Part]:
    """Every part of a configuration; those whose section is wrong are left out."""
    sections = vars(config)
    data = sections.get("data")
    result = [Part(key, node, SUPPLIED, nested=True) for key, node in datasets(config)]
    # A function that filters is called with the table.
    result += [
        Part(key, {**node, "_partial_": True})
        for name in ("filter", "val_filter")
        for key, node in filters(getattr(data, name, None), f"data.{name}")
        if isinstance(node, Mapping)
    ]
    for split in ("train", "val"):
        steps = getattr(sections.get("transform"), split, None)
        result.append(Part(f"transform.{split}", steps, is_map=True))
        steps = getattr(sections.get("transform"), f"{split}_batch", None)
        result.append(Part(f"transform.{split}_batch", steps, FACTS, nested=True, is_map=True))
    measured = sections.get("task") not in _DATA_ONLY
    result += [
        Part("sampler", sections.get("sampler"), _SAMPLER, nested=True),
        Part("collate", collate_of(sections.get("collate"))),
        Part("model", sections.get("model"), FACTS),
        Part("objective", sections.get("objective"), FACTS, nested=True, measured=measured),
        *(
            Part(key, node, ("params", "model", "total_steps"))
            for key, node in by_name(sections.get("optimizer") or None, "optimizer").items()
        ),
        Part("scheduler", sections.get("scheduler"), _SCHEDULER),
        *(
            Part(key, node, ("folder", "run"))
            for key, node in by_name(sections.get("tracker"), "tracker").items()
        ),
    ]
    return [part for part in result if part.node is not None]


def datasets(config: Config) -> list[tuple[str, Any]]:
    """Key and node of each dataset: one for all splits, and those that a split has for itself."""
    data = getattr(config, "data", None)
    nodes = {
        "dataset": getattr(config, "dataset", None),
        "data.val_dataset": getattr(data, "val_dataset", None),
        "data.test_dataset": getattr(data, "test_dataset", None),
    }
    return [(key, node) for key, node in nodes.items() if node is not None]


def filters(value: Any, key: str) -> list[tuple[str, Any]]:
    """Key and value of each filter of `data.filter`, one or a list."""
    if isinstance(value, list):
        return [(f"{key}[{number}]", item) for number, item in enumerate(value)]
    return [] if value is None else [(key, value)]


def by_name(node: object, section: str) -> dict[str, object]:
    """Nodes by key, of a section that is a node or has several by name."""
    if not isinstance(node, Mapping) or "_target_" in node:
        return {section: node}
    return {f"{section}.{name}": inner for name, inner in node.items()}


def collate_of(node: object) -> object:
    """The node of a collate function, as the build makes it.

    A function that still needs an argument is the collate function itself, not a factory of one.
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        return node
    target = called(node)
    if target is None or isinstance(target, type) or "_partial_" in node:
        return node
    known = targets.arguments(target).values()
    lacking = {p.name for p in known if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
    lacking -= set(node)
    return {**node, "_partial_": True} if lacking and not node.get("_args_") else node


def called(node: Any) -> Any:
    """The callable of a node; None where it is not a node, or names nothing that may be called."""
    try:
        return targets.resolve(node["_target_"], "")
    except (ConfigError, KeyError, TypeError):
        return None


def check(part: Part) -> tuple[Any, list[Problem]]:
    """The callable at the root of a part, if it has one, and all problems in the part."""
    problems = _shape_problems(part)
    root = None
    for key, node in walk(part.node, part.key):
        problems += _key_problems(node, key)
        try:
            targets.check_name(node["_target_"], f"{key}._target_")
            if not part.measured and node["_target_"].startswith(_SLOW):
                continue
            target = targets.resolve(node["_target_"], f"{key}._target_")
        except ConfigError as error:
            problems += error.problems
            continue
        is_root = key == part.key
        root = target if is_root else root
        supplied = part.supplied if is_root or part.nested else ()
        known, name_of = targets.arguments(target), getattr(target, "__name__", "it")
        moved = _moved(node, key, list(known))
        problems += moved.values()
        given = [name for name in node if name not in (*targets.SPECIAL, *moved)]
        for name in given:
            where, text = f"{key}.{name}", targets.wrong_argument(target, name, node[name])
            if text:
                problems.append(Problem(where, advice(where, "").lstrip("; ") or text))
        if node.get("_partial_") or not known.keys() >= set(given):
            continue
        positional = len(node["_args_"]) if isinstance(node.get("_args_"), list) else 0
        problems += [
            Problem(f"{key}.{one.name}", f"is missing; {name_of} needs it")
            for one in [*known.values()][positional:]
            if one.default is one.empty and one.kind is not one.VAR_KEYWORD
            if one.name not in {*given, *supplied}
        ]
    return root, problems


def _moved(node: Mapping[str, Any], key: str, known: Sequence[str]) -> dict[str, Problem]:
    """Keys of a node that are no arguments and stand elsewhere now, each with where."""
    moved = {}
    for name, value in node.items():
        # The build supplies a text or an object; a mapping is of the section that a key has now.
        section = name in SUPPLIED and isinstance(value, Mapping) and "_target_" not in value
        if (name not in known or section) and (
            sentence := advice(f"{key}.{name}", "").lstrip("; ")
        ):
            moved[name] = Problem(f"{key}.{name}", sentence)
    return moved


def _shape_problems(part: Part) -> list[Problem]:
    """A part, or each of its entries, has to be a node."""
    if part.is_map:
        entries = {f"{part.key}.{name}": value for name, value in part.node.items()}
        entries = {key: value for key, value in entries.items() if value is not None}
    else:
        entries = {part.key: part.node}
    problems = []
    for key, value in entries.items():
        if not isinstance(value, Mapping):
            problems.append(Problem(key, not_allowed(value, "a mapping with _target_")))
        elif "_target_" not in value:
            keys = ", ".join(map(str, value)) or "nothing"
            problems.append(Problem(key, f"has no _target_, only {keys}; it names what is called"))
            problems += _moved(value, key, ()).values()
    return problems


def _key_problems(node: Mapping[str, object], key: str) -> list[Problem]:
    reason = "is not for configurations: parts always get plain values, built inside out"
    problems = [
        Problem(f"{key}.{name}", reason) for name in ("_convert_", "_recursive_") if name in node
    ]
    if not isinstance(node.get("_partial_", False), bool):
        problems.append(Problem(f"{key}._partial_", not_allowed(node["_partial_"], "true | false")))
    if not isinstance(node.get("_args_", []), list):
        problems.append(Problem(f"{key}._args_", f"got {show(node['_args_'])}, expected a list"))
    return problems
