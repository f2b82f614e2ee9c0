"""The `_target_` nodes of a configuration: where they are, what they call, what the build supplies.

A section such as `model` or `transform.train` is a tree of plain values in which some mappings have
a `_target_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.config import allow_list, signatures
from penstock.config.messages import not_allowed, show
from penstock.config.parsing import unknown_key
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem

# Facts of a dataset for a model, an objective and its metrics; and torch's names for them.
SAME_FACTS = {
    "in_features": "num_features",
    "out_features": "num_outputs",
    "num_labels": "num_classes",
}
FACTS = ("num_classes", "num_features", "num_landmarks", "num_outputs", "classes", *SAME_FACTS)
SUPPLIED = ("split", "train", "lazy", "limits")  # arguments of a dataset
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
SCHEDULE_KEYS = ("warmup", "interval")  # of a scheduler node, but ours

# Importing torchmetrics takes 1.3 s; tasks that measure nothing check only the names below it.
_DATA_ONLY = ("digest", "replay")
_SLOW = ("torchmetrics.", "penstock.training.metrics.")
# Methods of a LightningModule beside its forward, and the section used in their place.
_OWN_STEPS = {
    "training_step": "objective",
    "validation_step": "objective",
    "test_step": "objective",
    "configure_optimizers": "optimizer and scheduler",
    "train_dataloader": "dataset",
    "val_dataloader": "dataset",
}
Parts = Mapping[str, Any]  # the callable of each part of a configuration, by key
SPLITS = ("train", "val")
# Keys of any dataset node that choose its rows.
KEPT = ("filter", "unique", "without", "split", "folds", "fold")
# Those of any optimizer's node that are not its arguments.
OF_OPTIMIZERS = ("groups",)
# Keys of `dataset` that are not arguments; all but two may be, where the dataset takes them.
OF_THE_BUILD = ("packed", "fingerprint", "fields", "facts", *KEPT)


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
    data = datasets(sections.get("dataset"))
    result = [Part(key, node, SUPPLIED, nested=True) for key, node in data]
    # A function that filters is called with the table.
    result += [
        Part(key, {**node, "_partial_": True})
        for where, choices in choices_of_rows(sections.get("dataset"))
        for key, node in filters(choices, where)
        if isinstance(node, Mapping)
    ]
    for split in ("train", "val"):
        steps = getattr(sections.get("transform"), split, None)
        result.append(Part(f"transform.{split}", steps, is_map=True))
        steps = getattr(sections.get("transform"), f"{split}_batch", None)
        result.append(Part(f"transform.{split}_batch", steps, FACTS, nested=True, is_map=True))
    scheduler = sections.get("scheduler")
    if isinstance(scheduler, Mapping):
        scheduler = {name: v for name, v in scheduler.items() if name not in SCHEDULE_KEYS}
    measured = sections.get("task") not in _DATA_ONLY
    result += [
        Part("sampler", sections.get("sampler"), _SAMPLER, nested=True),
        Part("collate", collate_of(sections.get("collate"))),
        Part("model", sections.get("model"), FACTS),
        Part("objective", sections.get("objective"), FACTS, nested=True, measured=measured),
        *(
            Part(key, without_own(node, OF_OPTIMIZERS), ("params", "model", "total_steps"))
            for key, node in by_name(sections.get("optimizer") or None, "optimizer").items()
        ),
        Part("scheduler", scheduler, _SCHEDULER),
        *(
            Part(key, node, ("folder", "run"))
            for key, node in by_name(sections.get("tracker"), "tracker").items()
        ),
    ]
    return [part for part in result if part.node is not None]


def datasets(node: object) -> list[tuple[str, object]]:
    """Key and node of each dataset: one for all splits, or one each under `train`, `val`, `test`.

    Without the keys that are not its arguments, see OF_THE_BUILD.
    """
    return [(key, _bare(source)) for key, source in choosing(node)]


def datasets_found(config: Config, parts: Parts) -> list[tuple[str, Callable[..., object]]]:
    """Key and callable of each dataset."""
    keys = [key for key, _ in datasets(config.dataset)]
    return [(key, parts[key]) for key in keys if parts.get(key) is not None]


def choosing(node: Any) -> list[tuple[str, Any]]:
    """The same with the keys of nodes inside that choose rows."""
    if isinstance(node, Mapping):
        splits = {name for name in SPLITS if is_of_a_split(node, name)}
        node = without_own(node, OF_THE_BUILD)
        if "_target_" not in node and not node.keys().isdisjoint((*SPLITS, "test")):
            nodes = {name: without_own(source, KEPT) for name, source in node.items()}
            return [
                (f"dataset.{name}", source) for name, source in nodes.items() if source is not None
            ]
        node = {name: value for name, value in node.items() if name not in splits}
    return [] if node is None else [("dataset", node)]


def is_of_a_split(node: Mapping[str, object], name: str) -> bool:
    """Whether `dataset.train` or `dataset.val`, beside a `_target_`, is about that split: keys that
    choose rows, or null for no validation; and no argument of what is called.
    """
    if "_target_" not in node or name not in node:
        return False
    value = node[name]
    if isinstance(value, Mapping) and "_target_" not in value:
        return not _takes(node, name) or value.keys() <= set(KEPT)
    return name == "val" and value is None and not _takes(node, name)


def validates(dataset: Mapping[str, object]) -> bool:
    """Whether a run has validation; not if `dataset.val` is null."""
    if "val" not in dataset or dataset["val"] is not None:
        return True
    return "_target_" in dataset and not is_of_a_split(dataset, "val")


def without_own(node: object, names: Sequence[str] = KEPT) -> Any:
    """A node without those of the keys `names` that are not its arguments."""
    if not isinstance(node, Mapping):
        return node
    return {
        name: value
        for name, value in node.items()
        if name not in names or (name not in OF_THE_BUILD[:2] and _takes(node, name))
    }


def metrics(objective: Mapping[str, Any]) -> Any:
    """The metrics of an objective's node; one that is null is left out, as steps of transforms."""
    by_name = objective.get("metrics")
    if not isinstance(by_name, Mapping) or "_target_" in by_name:
        return by_name
    return {name: node for name, node in by_name.items() if node is not None}


def _bare(node: object) -> Any:
    """A tree of nodes without the keys that choose rows."""
    if isinstance(node, Mapping):
        bare = without_own(node, KEPT) if "_target_" in node else node
        return {name: _bare(value) for name, value in bare.items()}
    return [_bare(item) for item in node] if isinstance(node, list) else node


def choices_of_rows(node: object) -> Iterator[tuple[str, dict[str, object]]]:
    """The keys of `dataset`, and of every node inside, that choose rows: by the key of the node."""
    if not isinstance(node, Mapping):
        return
    nodes = [
        ("dataset", node),
        *(inner for inner in walk(node, "dataset") if inner[0] != "dataset"),
    ]
    nodes += [(f"dataset.{name}", node[name] or {}) for name in SPLITS if is_of_a_split(node, name)]
    for key, inner in nodes:
        choices = {name: of_the_build(inner, name) for name in KEPT}
        choices = {name: value for name, value in choices.items() if value is not None}
        if choices:
            yield key, choices


def filters(choices: Mapping[str, Any], where: str) -> list[tuple[str, Any]]:
    """Key and value of each filter of a node at `where`, one or a list."""
    value, key = choices.get("filter"), f"{where}.filter"
    if isinstance(value, list):
        return [(f"{key}[{number}]", item) for number, item in enumerate(value)]
    return [] if value is None else [(key, value)]


def by_name(node: object, section: str) -> dict[str, object]:
    """Nodes by key, of a section that is a node or has several by name."""
    if not isinstance(node, Mapping) or "_target_" in node:
        return {section: node}
    return {f"{section}.{name}": inner for name, inner in node.items()}


def of_the_build(node: Mapping[str, object], name: str) -> Any:
    """The value of `fields` (names of positions), `facts` (what a dataset does not tell), or of a
    key that chooses rows.

    None where the node has no such key, or where it is an argument of what the node calls.
    """
    if name not in OF_THE_BUILD[2:] or name not in node:
        return None
    return None if _takes(node, name) else node[name]


def _takes(node: Mapping[str, object], name: str) -> bool:
    """Whether what a node calls has an argument of that name."""
    if name in SUPPLIED and isinstance(node.get(name), Mapping):
        return False  # the build supplies a text: a mapping is about which rows are in it
    target = called(node)
    return target is not None and name in signatures.arguments(target).names


def collate_of(node: object) -> object:
    """The node of a collate function, as the build makes it.

    A function that still needs an argument is the collate function itself, not a factory of one.
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        return node
    if of_the_build(node, "fields") is not None:
        node = {name: value for name, value in node.items() if name != "fields"}
    target = called(node)
    if target is None or isinstance(target, type) or "_partial_" in node:
        return node
    lacking = set(signatures.arguments(target).required) - set(node)
    return {**node, "_partial_": True} if lacking and not node.get("_args_") else node


def called(node: Any) -> Any:
    """The callable of a node; None where it is not a node, or names nothing that may be called."""
    try:
        return allow_list.resolve(node["_target_"], "")
    except (ConfigError, KeyError, TypeError):
        return None


def direction(config: Config, name: str) -> str | None:
    """Whether a metric of the objective should be "min" or "max"; None where it doesn't say."""
    if name == "loss":
        return "min"
    metric = called(config.objective.get("metrics", {}).get(name))
    higher = getattr(metric, "higher_is_better", None)
    return None if higher is None else "max" if higher else "min"


def own_steps(config: Config) -> list[str]:
    """The notice for a model class with a training loop of its own, which is not used."""
    if config.task in (*_DATA_ONLY, "check", "pack", "verify"):
        return []
    if getattr(called(config.objective), "calls_the_models_steps", False):
        return []
    model, own = called(config.model), []
    for name in _OWN_STEPS:
        bases = [base for base in getattr(model, "__mro__", ()) if name in vars(base)]
        empty = ("lightning.", "pytorch_lightning.")  # their methods do nothing
        if bases and not bases[0].__module__.startswith(empty):
            own.append(name)
    if not own:
        return []
    instead = ", ".join(dict.fromkeys(_OWN_STEPS[name] for name in own))
    return [
        f"model: {model.__name__} is used by its forward alone; its {', '.join(own)} are not "
        f"called. In their place are {instead} of the configuration (docs/own_parts.md)"
    ]


def walk(node: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping with a `_target_` in a tree, with its full key."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield key, node
        for name, value in node.items():
            if name != "_target_":
                yield from walk(value, f"{key}.{name}")
    elif isinstance(node, (list, tuple)):
        for number, value in enumerate(node):
            yield from walk(value, f"{key}[{number}]")


def check(part: Part) -> tuple[Any, list[Problem]]:
    """The callable at the root of a part, if it has one, and all problems in the part."""
    problems = _shape_problems(part)
    root = None
    for key, node in walk(part.node, part.key):
        problems += _key_problems(node, key)
        try:
            allow_list.check_name(node["_target_"], f"{key}._target_")
            if not part.measured and node["_target_"].startswith(_SLOW):
                continue
            target = allow_list.resolve(node["_target_"], f"{key}._target_")
        except ConfigError as error:
            problems += error.problems
            continue
        is_root = key == part.key
        root = target if is_root else root
        supplied = part.supplied if is_root or part.nested else ()
        problems += signatures.check(target, node, key, supplied)
    return root, problems


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
    filtering = part.key.partition("[")[0].endswith(".filter")
    known = filtering or part.key in ("dataset.train", "dataset.val", "dataset.test")
    if part.key.startswith("dataset.") and not known:
        name = part.key.removeprefix("dataset.")
        problems = [unknown_key(part.key, name, (*SPLITS, "test"))]
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
