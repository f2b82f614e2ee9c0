"""What a configuration may call, by the name after `_target_`, and the calls themselves.

A name is called only if

1. a row of `RULES` has a prefix of it, or the person who runs this trusts its package, by `--trust
   mypackage` or PENSTOCK_TRUST: nothing is imported for any other name;
2. all before its last dot is a module, so no name walks from one module into another;
3. the object is of the row's kind, and defined (`__module__`) in one of the row's homes.

So loaders of pickles and native code (`torch.load`, `ctypes`), and whatever runs code or touches
files, are refused because no row allows them. `make` builds parts inside out from plain values, and
reads them no second time as YAML or as interpolations. Cost: some us a name that was imported.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from importlib import import_module
from operator import attrgetter
from pkgutil import iter_modules
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from penstock.config.familiar import advice
from penstock.config.messages import nearest, not_allowed, show
from penstock.errors import ConfigError, DataError, PenstockError, Problem

VARIABLE = "PENSTOCK_TRUST"
# Keys of a node that are no arguments of its callable.
SPECIAL = frozenset({"_target_", "_args_", "_partial_", "_convert_", "_recursive_"})
_NOT_HERE = "is not for configurations: parts always get plain values, built inside out"
_FORMS = {"_args_": (list, "a list"), "_partial_": (bool, "true | false"), "_target_": (object, "")}
# Importing torchmetrics takes 1.3 s: tasks that measure nothing check only names below it.
_SLOW, _OF_BATCHES = ("torchmetrics.", "penstock.training.metrics."), ("digest", "replay")
# Facts of a dataset for a model, an objective and its metrics; and torch's names for them.
SAME_FACTS = {
    "in_features": "num_features",
    "out_features": "num_outputs",
    "num_labels": "num_classes",
}
FACTS = ("num_classes", "num_features", "num_landmarks", "num_outputs", "classes", *SAME_FACTS)
# What the build gives the nodes of a section, by name, where they take it.
SUPPLIED: dict[str, tuple[str, ...]] = {
    "dataset": ("split", "train", "lazy", "limits", "files"),
    "data": ("split", "train", "lazy", "limits", "files"),
    "transform": FACTS,
    "sampler": (
        *("length", "seed", "metadata", "batch_size", "tail", "dataset", "data_source"),
        *("long_tail", "mixing"),
    ),
    "collate": (),
    "model": FACTS,
    "objective": FACTS,
    "optimizer": ("params", "model", "total_steps"),
    "scheduler": ("optimizer", "total_steps", "T_max", "total_iters"),
    "tracker": ("folder", "run"),
}
# Sections that are nothing but arguments of a class or function of ours. Null stands for its
# default, and a part is imported only where its section sets something.
OPTIONS = {
    "data.split": "penstock.addons.splits.division.Division",
    "files": "penstock.datasets.files.Files",
    "find": "penstock.addons.reports.runs.put_runs",
    "loader.ray": "penstock.addons.ray.cluster.RayOptions",
    "lr_find": "penstock.addons.tuning.lr_find.rates_and_losses",
    "pack": "penstock.addons.packs.recipe.packed",
    "trainer.freeze": "penstock.addons.finetuning.fitting.ends_of",
    "trainer.warm_start": "penstock.addons.finetuning.fitting.start",
}
_INSIDE = {  # sections that hold nodes among other keys
    "data": ("val_dataset", "test_dataset", "filter", "val_filter"),
    "transform": ("train", "val", "train_batch", "val_batch"),
}
# They read pickles, load native code or run what they are told to: nobody trusts them as a whole.
NEVER = sys.stdlib_module_names | {
    *("cloudpickle", "datasets", "dill", "hydra", "hydra_plugins", "joblib", "numpy", "omegaconf"),
    *(
        "pandas",
        "penstock",
        "pipeline",
        "pkg_resources",
        "pydantic",
        "setuptools",
        "torch",
        "torchvision",
    ),
    "yaml",
}
# Prefix of the written name; kinds: full names of base classes, or "class", "function"; homes:
# modules below the prefix that may define the object, with all below them; all where none is named.
RULES = [
    (prefix, kinds.split(), [f"{prefix}.{home}" for home in homes.split()] or [prefix])
    for prefix, kinds, homes in (
        ("torch.nn", "torch.nn.Module", ""),
        ("torch.optim", "torch.optim.Optimizer torch.optim.lr_scheduler.LRScheduler", ""),
        # Not its data pipes, which open files and run what they are given.
        ("torch.utils.data", "torch.utils.data.Sampler", "sampler distributed"),
        ("torch.utils.data", "torch.utils.data.Dataset", "dataset"),
        ("torch.utils.data", "function", "_utils.collate"),
        # They read pictures, tables and archives; CIFAR's pickles are compared with hashes of the
        # true ones first. Not those that read other pickles (LSUN), files of torch, or videos.
        (
            "torchvision.datasets",
            "torchvision.datasets.VisionDataset",
            """caltech celeba cifar cityscapes clevr coco country211 dtd eurosat fakedata fer2013
            fgvc_aircraft flickr flowers102 folder food101 gtsrb imagenette inaturalist lfw mnist
            omniglot oxford_iiit_pet pcam places365 rendered_sst2 semeion stanford_cars stl10 sun397
            svhn usps voc widerface""",
        ),
        ("torchvision.models", "torch.nn.Module function", ""),
        ("torchvision.transforms.v2", "torchvision.transforms.v2.Transform", ""),
        ("torchvision.transforms.v2.functional", "function", ""),
        # Not those that fetch a model to judge by.
        (
            "torchmetrics",
            "torchmetrics.Metric",
            """aggregation classification clustering nominal regression retrieval segmentation
            wrappers""",
        ),
        ("albumentations", "albumentations.BasicTransform albumentations.BaseCompose", ""),
        # Not its `io` and `data`, which write files and fetch them.
        (
            "skimage",
            "function",
            """color exposure filters morphology restoration segmentation transform util
            _shared.filters""",
        ),
        (
            "penstock",
            "torch.utils.data.Dataset penstock.datasets.files.Files",
            """datasets addons.forecasting addons.huggingface addons.image_tables addons.mixtures
            addons.packs addons.shards addons.tables addons.tabular addons.tokens addons.video
            addons.vision""",
        ),
        (
            "penstock",
            "class function",
            "training.models addons.filters.rows addons.timm addons.transformers.models",
        ),
        ("penstock", "penstock.addons.trackers.tracker.Tracker", "addons.trackers"),
        (
            "penstock",
            "class",
            """loading.collate order.composed order.samplers order.streams training.metrics
            training.objective transforms addons.finetuning.teachers addons.forecasting.objective
            addons.mixtures.order addons.multi_label addons.pairs addons.stores.blocks
            addons.tabular.models addons.tokens.byte_pairs addons.tokens.flatten
            addons.tokens.language_model addons.tokens.sequence_packing addons.video.models
            addons.vision""",
        ),
    )
]


def trusted() -> list[str]:
    """Packages that the person who runs this trusts, from the environment.

    Raises:
        ConfigError: one of them cannot be trusted as a whole.
    """
    packages = os.environ.get(VARIABLE, "").replace(",", " ").split()
    if wide := " and ".join(repr(one) for one in packages if one.split(".")[0] in NEVER):
        raise ConfigError(
            Problem(
                "--trust",
                f"{wide} cannot be trusted as a whole: it can load pickles or native code, or run "
                "any program. Call what you need from a package of your own, and trust that",
            )
        )
    return packages


def is_trusted(name: str) -> bool:
    """Whether a package, or what a name leads to, lies in a package that is trusted."""
    return _under(name, trusted())


def check_name(name: object, key: str) -> None:
    """Raise ConfigError unless a written name may be called; nothing is imported for that."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", name, re.ASCII):
        raise ConfigError(Problem(key, f"{name!r} is not a dotted name such as torch.nn.Linear"))
    prefixes = dict.fromkeys(prefix for prefix, *_ in RULES)
    if not _under(name, prefixes) and not is_trusted(name):
        first = name.split(".")[0]
        raise ConfigError(
            Problem(
                key,
                f"{name} may not be called from a configuration"
                f"{nearest(first, [prefix.split('.')[0] for prefix in prefixes])}; what is in "
                f"{', '.join(prefixes)} may. A package that is yours, or that you have read, is "
                f"trusted by --trust {'mypackage' if first in NEVER else first} (or by {VARIABLE})",
            )
        )


def resolve(name: Any, key: str) -> Any:
    """The object that a written name stands for, checked before it is imported and once found.

    Args:
        name: dotted name, as written after `_target_`.
        key: full key of the node, for the message.

    Raises:
        ConfigError: the name may not be called, or doesn't exist; with the nearest that does.
    """
    check_name(name, key)
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        there = sys.modules.get(module) or sys.modules.get(module.rpartition(".")[0])
        known = [*dir(there), *(one.name for one in iter_modules(getattr(there, "__path__", [])))]
        wrong = attribute if module in sys.modules else module.rpartition(".")[2]
        raise ConfigError(Problem(key, f"{name}: {error}{nearest(wrong, known)}")) from error
    home, own = str(getattr(found, "__module__", "")), is_trusted(name)
    kinds = [
        kind
        for prefix, kinds, homes in RULES
        if (own or _under(name, [prefix])) and _under(home, homes)
        for kind in kinds  # a package of one's own may have imported them
    ]
    if (own and is_trusted(home)) or any(_is(found, kind) for kind in kinds):
        return found
    raise ConfigError(
        Problem(
            key,
            f"{name} is {home}.{getattr(found, '__qualname__', found)}, which is not "
            f"{' or '.join(kinds) or f'of {module}'}, so it is not called",
        )
    )


def called(node: Any) -> Any:
    """What a node calls, which was checked; None where there is no node."""
    return resolve(node["_target_"], "_target_") if node and "_target_" in node else None


def _under(name: str, prefixes: Iterable[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def _is(found: Any, kind: str) -> bool:
    """Whether an object is of a kind of the table."""
    if kind == "function":
        return isinstance(found, FunctionType) and not found.__name__.startswith(("_", "register_"))
    module, _, base = ("builtins.object" if kind == "class" else kind).rpartition(".")
    return isinstance(found, type) and issubclass(found, getattr(import_module(module), base))


@lru_cache(maxsize=512)
def arguments(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The arguments of a callable by name, and those that its **kwargs hand to its base classes.

    The last one is of the kind VAR_KEYWORD where any other name is taken, too.
    """
    try:
        known = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C without a signature
        known = [inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)]
    classes = getattr(function, "__mro__", ())[1:]
    if getattr(function, "__module__", "").startswith("torchvision.models.") and not classes:
        classes = [get_type_hints(function).get("return", object)]  # of which it makes one
    for base in classes:
        if known and known[-1].kind is known[-1].VAR_KEYWORD and "__init__" in vars(base):
            known[-1:] = [  # none of them is required, as the class may give it
                one
                if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
                else one.replace(default=...)
                for one in [*inspect.signature(vars(base)["__init__"]).parameters.values()][1:]
            ]
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    return {one.name: one for one in known if one.kind not in places}


class Lazy(NamedTuple):
    """A supplied argument that is computed only if something takes it."""

    compute: Callable[[], Any]


def make(node: Any, key: str, supply: Mapping[str, Any] | None = None, nested: bool = False) -> Any:
    """Build a tree of plain values: mappings with a `_target_` become what it makes.

    Args:
        node: plain values; text such as "torch.float32" becomes the dtype.
        key: full key of the node, for messages.
        supply: arguments for the callable at the root, by name, where it takes them and the node
            doesn't set them. A value that is a `Lazy` is computed when it is taken.
        nested: supply them to the nodes inside as well.

    Raises:
        ConfigError: a name may not be called, or a part refuses its arguments.
        DataError: a part of a library fails, as by files that are not there.
    """
    below = supply if nested else None
    if isinstance(node, (list, tuple)):
        return [make(value, f"{key}[{i}]", below, nested) for i, value in enumerate(node)]
    if not isinstance(node, Mapping):
        found = getattr(sys.modules.get("torch"), str(node).removeprefix("torch."), node)
        return found if repr(found) == node else node
    values = {
        name: make(value, f"{key}.{name}", below, nested)
        for name, value in node.items()
        if name not in SPECIAL
    }
    if "_target_" not in node:
        return values
    function = resolve(node["_target_"], f"{key}._target_")
    positional = make(node.get("_args_", []), f"{key}._args_", below, nested)
    free = {*[*arguments(function)][len(positional) :]} - values.keys()
    values |= {
        name: value.compute() if isinstance(value, Lazy) else value
        for name, value in (supply or {}).items()
        if name in free
    }
    home = str(function.__module__)
    if home.startswith("torchvision.models."):
        from penstock.files.pretrained import read_weights_as_tensors

        read_weights_as_tensors()
    if node.get("_partial_", False):
        return partial(function, *positional, **values)
    return _call(function, key, node["_target_"], *positional, **values)


def options(config: Any, key: str, *supplied: Any) -> Any:
    """What a class or function makes of its section in OPTIONS, behind what is supplied.

    Raises:
        ConfigError: as `make`; with all that is wrong with the section, of a task without `check`.
    """
    function, values = _class_of(key), _given(config, key)
    if problems := list(_of_call(function, key, values, ())):
        raise ConfigError(problems)
    return _call(function, key, OPTIONS[key], *supplied, **values)


def _given(config: Any, key: str) -> dict[str, Any]:
    section = attrgetter(key)(config) or {}
    return {name: value for name, value in section.items() if value is not None}


def _class_of(section: str) -> Any:
    module, _, name = OPTIONS[section].rpartition(".")
    return getattr(import_module(module), name)


def _call(function: Any, key: str, name: str, /, *positional: Any, **values: Any) -> Any:
    try:
        return function(*positional, **values)
    except ConfigError as error:  # of a part, which knows the last name of its key
        raise ConfigError(
            Problem(
                one.key if _under(one.key, [key]) else f"{key}.{one.key.split('.')[-1]}",
                one.message,
            )
            for one in error.problems
        ) from error
    except PenstockError:
        raise
    except Exception as error:
        refused = isinstance(error, (TypeError, ValueError))
        inside = getattr(error.__traceback__, "tb_next", None) is not None
        home = str(function.__module__)
        own = inside and (is_trusted(home) or (home.startswith("penstock.") and not refused))
        if own or isinstance(error, (ImportError, MemoryError)):
            error.add_note(f"while building {key} ({name})")
            raise  # of somebody's own code, the traceback says more
        problem = Problem(
            key,
            f"{name} "
            f"{'refuses its arguments' if refused else f'fails: {type(error).__name__}'}: {error}",
        )
        raise (ConfigError(problem) if refused else DataError(str(problem))) from error


def walk(node: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping with a `_target_` in a tree, with its full key."""
    if isinstance(node, Mapping) and "_target_" in node:
        yield key, node
    is_list = isinstance(node, (list, tuple))
    for name, value in enumerate(node) if is_list else getattr(node, "items", tuple)():
        yield from walk(value, f"{key}[{name}]" if is_list else f"{key}.{name}".removeprefix("."))


def parts(config: Any) -> dict[str, Any]:
    """What stands in each section that holds nodes, by full key; None where nothing does."""
    result = {key: getattr(config, key) for key in SUPPLIED if key not in _INSIDE}
    for key, names in _INSIDE.items():
        result |= {f"{key}.{name}": getattr(getattr(config, key), name) for name in names}
    return result


def by_name(value: Any, key: str) -> dict[str, Any]:
    """Nodes by key, of a section that is a node, or has several in a list or by name."""
    if isinstance(value, list):
        return {f"{key}[{number}]": item for number, item in enumerate(value)}
    several = isinstance(value, Mapping) and "_target_" not in value
    return {f"{key}.{name}": item for name, item in value.items()} if several else {key: value}


def check(config: Any) -> Iterator[Problem]:
    """What is wrong with the nodes of a configuration, as far as names and arguments tell."""
    for part, value in parts(config).items():
        section = part.split(".")[0]
        several = section in ("transform", "optimizer", "tracker") or isinstance(value, list)
        for key, node in (by_name(value, part) if several else {part: value}).items():
            if isinstance(node, Mapping) and "_target_" not in node:
                only = ", ".join(map(str, node)) or "nothing"
                yield Problem(key, f"has no _target_, only {only}; it names what is called")
                below = {f"{key}.{name}": one for name, one in node.items()}
                gone = {at: advice(at, _written(one))[2:] for at, one in below.items()}
                yield from (Problem(*item) for item in gone.items() if item[1])
            elif not isinstance(node, (Mapping, str if section == "data" else dict, type(None))):
                yield Problem(key, not_allowed(node, "a mapping with _target_"))
        for key, node in walk(value, part):
            try:
                check_name(node["_target_"], f"{key}._target_")
                if config.task in _OF_BATCHES and node["_target_"].startswith(_SLOW):
                    continue
                function = resolve(node["_target_"], f"{key}._target_")
            except ConfigError as error:
                yield from error.problems
                continue
            # A function that collates or filters gets the rest when it is called.
            later = section in ("collate", "data") and not isinstance(function, type)
            yield from _of_call(function, key, node, None if later else SUPPLIED[section])
    for key in OPTIONS:
        if values := _given(config, key):
            yield from _of_call(_class_of(key), key, values, ())


def _of_call(
    function: Any, key: str, node: Mapping[str, Any], supplied: Iterable[str] | None
) -> Iterator[Problem]:
    """What is wrong with the arguments of a call; `supplied` are those that the build gives."""
    wrong = {name: _wrong(function, f"{key}.{name}", node[name]) for name in node}
    yield from (Problem(*one) for one in wrong.values() if one[1])
    bad = any(wrong[name][1] for name in wrong.keys() & _FORMS)
    if supplied is None or bad or node.get("_partial_"):
        return
    for one in [*arguments(function).values()][len(node.get("_args_", ())) :]:
        required = one.default is one.empty and one.kind is not one.VAR_KEYWORD
        if required and one.name not in {*node, *supplied}:
            yield Problem(f"{key}.{one.name}", f"is missing; {function.__name__} needs it")


def _written(value: Any) -> str:
    """A value as a message repeats it; nothing for a mapping."""
    return "" if isinstance(value, Mapping) else show(value).strip("'")


def _wrong(function: Any, key: str, value: Any) -> tuple[str, str]:
    """A key of a node, or one below it, and what is wrong with it, or nothing.

    Values are checked for parts of ours alone; the constructors of others complain themselves.
    """
    name, known, home = key.rpartition(".")[2], arguments(function), function.__module__
    if name in SPECIAL:
        kind, form = _FORMS.get(name, ((), ""))
        said = not_allowed(value, form) if form else _NOT_HERE
        return key, "" if isinstance(value, kind) else said
    # The build supplies a text or an object; a mapping is of the section that a key has now.
    moved = name in SUPPLIED["dataset"] and isinstance(value, Mapping) and "_target_" not in value
    gone = advice(key, _written(value)).removeprefix("; ")
    if name not in known or (moved and gone):
        text = (
            f"unknown argument of {getattr(function, '__name__', 'it')} {name!r}"
            f"{nearest(name, known)}; allowed: {', '.join(known)}"
        )
        return key, gone or ("" if any(p.kind is p.VAR_KEYWORD for p in known.values()) else text)
    if not home.startswith("penstock.") or value is known[name].default or any(walk(value, "")):
        return key, ""
    annotated = SimpleNamespace(__annotations__={name: known[name].annotation})
    try:
        hint = get_type_hints(annotated, vars(sys.modules[home]), include_extras=True)[name]
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
        adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        wrong = {one["type"]: one["msg"].replace("Input should be ", "") for one in error.errors()}
        if "needs_python_object" not in wrong:  # which a text may stand for, such as a dtype
            below = error.errors()[0]["loc"] if isinstance(value, Mapping) else ()
            key = ".".join([key, *(str(one) for one in below if one in value)])
            return key, gone or f"got {show(value)}, expected {' or '.join(wrong.values())}"
    except Exception:  # an annotation for type checkers only
        return key, ""
    return key, ""
