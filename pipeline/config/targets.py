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
from functools import cache, lru_cache, partial, reduce
from pkgutil import iter_modules, resolve_name
from typing import Any, ForwardRef

from pydantic import ConfigDict, TypeAdapter, ValidationError

from penstock.config.familiar import advice
from penstock.config.messages import nearest, of_schema, show
from penstock.errors import ConfigError, DataError, PenstockError, Problem

VARIABLE = "PENSTOCK_TRUST"
# Keys of a node that are no arguments of its callable.
SPECIAL = {
    name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
    for name, kind in (("_target_", "str"), ("_args_", "list"), ("_partial_", "bool"))
}
# Facts of a dataset for a model, an objective and its metrics; and torch's names for them.
SAME_FACTS = {
    "in_features": "num_features",
    "out_features": "num_outputs",
    "num_labels": "num_classes",
}
FACTS = (
    *("num_classes", "num_features", "num_landmarks", "num_outputs", "classes", *SAME_FACTS),
    *("num_numbers", "cardinalities", "target_mean", "target_scale"),  # of tables
    *("past", "horizon", "season", "num_values", "num_known"),  # of windows of series
)
# What the build gives the nodes of a section, by name, where they take it.
SUPPLIED: dict[str, tuple[str, ...]] = {
    "dataset": ("split", "train", "shares", "lazy", "limits", "files"),
    "data": ("split", "train", "shares", "lazy", "limits", "files"),
    "transform": FACTS,
    "sampler": (
        *("length", "seed", "metadata", "batch_size", "tail", "dataset", "data_source"),
        "long_tail",
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
    "loader.ray": "penstock.addons.ray.actors.RayOptions",
    "lr_find": "penstock.addons.profiling.rates_and_losses",
    "pack": "penstock.addons.packs.packing.packed",
    "sweep.optuna": "penstock.addons.sweeps.optuna_sweeper.OptunaSweeper.run",
    "trainer.checkpoint": "penstock.runs.checkpoint.Checkpoints",
    "trainer.freeze": "penstock.training.finetuning.ends_of",
    "trainer.warm_start": "penstock.training.finetuning.start",
}
# They read pickles, load native code or run any command, so none is trusted as a whole.
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
        (
            "penstock",
            "torch.utils.data.Dataset penstock.datasets.files.Files "
            "penstock.datasets.reading.base.Shares",
            """datasets addons.audio addons.forecasting addons.image_tables addons.mixtures
            addons.packs addons.tables addons.tabular addons.tars addons.tokens addons.video
            addons.vision""",
        ),
        (
            "penstock",
            "class function",
            "training.models addons.filters.rows addons.transformers.models",
        ),
        ("penstock", "penstock.addons.trackers.tracker.Tracker", "addons.trackers"),
        (
            "penstock",
            "class",
            """loading.collate order.plan order.samplers training.metrics
            training.objective training.finetuning transforms addons.albumentations
            addons.audio.transforms addons.forecasting.objective addons.mixtures.order
            addons.pairs addons.storage.order
            addons.tabular.table addons.tokens.byte_pairs addons.tokens.flatten
            addons.tokens.language_model addons.tokens.sequence_packing addons.video
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


def is_below(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a dotted name is one of some others, or leads into one."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def resolve(name: Any, key: str) -> Any:
    """The object that a written name stands for, checked before it is imported and once found.

    Args:
        name: dotted name, as written after `_target_`.
        key: full key of the node, for the message.

    Raises:
        ConfigError: the name may not be called, or doesn't exist; with the nearest that does.
    """
    allowed, own = dict.fromkeys(prefix for prefix, *_ in RULES), is_below(str(name), trusted())
    if not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", str(name), re.ASCII) or not (
        own or is_below(name, allowed)
    ):
        first = str(name).partition(".")[0]
        raise ConfigError(
            Problem(
                key,
                f"{name} may not be called from a configuration"
                f"{nearest(first, [prefix.partition('.')[0] for prefix in allowed])}; what is in "
                f"{', '.join(allowed)} may. A package that is yours, or that you have read, is "
                f"trusted by --trust {'mypackage' if first in NEVER else first} (or by {VARIABLE})",
            )
        )
    module, _, attribute = name.rpartition(".")
    try:
        target = resolve_name(f"{module}:{attribute}")
    except (ImportError, AttributeError) as error:
        above, _, last = (name if module in sys.modules else module).rpartition(".")
        there = sys.modules.get(above)
        known = [*dir(there), *(one.name for one in iter_modules(getattr(there, "__path__", [])))]
        # A library that we know and that is not installed; not a package that somebody misspelled.
        way = (
            f"; pip install {error.name}"
            if isinstance(error, ModuleNotFoundError) and not own and "." not in str(error.name)
            else nearest(last, known)
        )
        raise ConfigError(Problem(key, f"{name}: {error}{way}")) from error
    home = str(getattr(target, "__module__", ""))
    kinds = [
        kind
        for prefix, kinds, homes in RULES
        if (own or is_below(name, [prefix])) and is_below(home, homes)
        for kind in kinds  # a package of one's own may have imported them
    ]
    if (own and is_below(home, trusted())) or any(_is(target, kind) for kind in kinds):
        return target
    raise ConfigError(
        Problem(
            key,
            f"{name} is {home}.{getattr(target, '__qualname__', target)}, which is not "
            f"{' or '.join(kinds) or f'of {module}'}, so it is not called",
        )
    )


def called(node: Any, key: str = "") -> Any:
    """What a node at a key calls; None where there is no node."""
    return resolve(node["_target_"], f"{key}._target_") if node and "_target_" in node else None


def _is(target: Any, kind: str) -> bool:
    """Whether an object is of a kind of the table."""
    return (
        inspect.isfunction(target) and not target.__name__.startswith(("_", "register_"))
        if kind == "function"
        else isinstance(target, type)
        and (kind == "class" or issubclass(target, resolve_name(kind)))
    )


@lru_cache(maxsize=512)
def arguments(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The arguments of a callable by name, and those that its **kwargs hand to its base classes.

    The last one is of the kind VAR_KEYWORD where any other name is taken, too.
    """
    known = list(inspect.signature(function).parameters.values())
    # A function hands them to the class of which it makes one, as those of torchvision.models.
    for base in getattr(function, "__mro__", [inspect.signature(function).return_annotation]):
        more = vars(base).get("__init__") if isinstance(base, type) else None
        if more and known and known[-1].kind is known[-1].VAR_KEYWORD:
            known[-1:] = [  # none of them is required, as the class may give it
                one
                if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
                else one.replace(default=...)
                for one in [*inspect.signature(more).parameters.values()][1:]
            ]
    return {
        one.name: one for one in known if one.kind not in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL)
    }


def make(node: Any, key: str, supply: Mapping[str, Any] | None = None, nested: bool = False) -> Any:
    """Build a tree of plain values: mappings with a `_target_` become what it makes.

    Args:
        node: plain values; text such as "torch.float32" becomes the dtype.
        key: full key of the node, for messages.
        supply: arguments for the callable at the root, by name, where it takes them and the node
            doesn't set them. A value that is a `partial` is computed when it is taken.
        nested: supply them to the nodes inside as well.

    Raises:
        ConfigError: a name may not be called, or a part refuses its arguments.
        DataError: a part of a library fails, as by files that are not there.
    """
    if isinstance(node, list):
        return [
            make(value, f"{key}[{number}]", supply if nested else None, nested)
            for number, value in enumerate(node)
        ]
    if not isinstance(node, Mapping):
        target = getattr(sys.modules.get("torch"), str(node).removeprefix("torch."), node)
        return target if repr(target) == node else node
    values = {
        name: make(value, f"{key}.{name}", supply if nested else None, nested)
        for name, value in node.items()
        if name not in ("_target_", "_partial_")
    }
    if "_target_" not in node:
        return values
    function, positional = resolve(node["_target_"], f"{key}._target_"), values.pop("_args_", [])
    free = {*[*arguments(function)][len(positional) :]} - values.keys()
    values |= {
        name: value() if isinstance(value, partial) else value
        for name, value in (supply or {}).items()
        if name in free
    }
    if function.__module__.startswith("torchvision.models."):
        resolve_name("penstock.files.pretrained:read_weights_as_tensors")()
    try:
        return (
            partial(function, *positional, **values)
            if node.get("_partial_")
            else function(*positional, **values)
        )
    except ConfigError as error:  # of a part, which knows the last name of its key
        raise ConfigError(
            one
            if is_below(one.key, [key])
            else Problem(f"{key}.{one.key.rpartition('.')[2]}", one.message)
            for one in error.problems
        ) from error
    except Exception as error:
        error.add_note(f"while building {key} ({node['_target_']})")
        refused = isinstance(error, (TypeError, ValueError))
        own = is_below(function.__module__, trusted() if refused else [*trusted(), "penstock"])
        if own or isinstance(error, (PenstockError, ImportError, MemoryError)):
            raise  # of somebody's own code, the traceback says more
        raise (ConfigError if refused else DataError)(
            Problem(key, f"{node['_target_']} raises {type(error).__name__}: {error}")
        ) from error


def options(config: Any, key: str, *supplied: Any) -> Any:
    """What a class or function makes of its section in OPTIONS, behind what is supplied."""
    return resolve_name(OPTIONS[key])(*supplied, **_arguments_of(config, key))


def _arguments_of(config: Any, key: str) -> dict[str, Any]:
    return {
        name: value
        for name, value in (reduce(getattr, key.split("."), config) or {}).items()
        if value is not None
    }


def nodes(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Full key and value of a value and of everything in it."""
    yield key, value
    items = enumerate(value) if isinstance(value, list) else ()
    for name, inner in value.items() if isinstance(value, Mapping) else items:
        yield from nodes(inner, f"{key}.{name}" if key else str(name))


def walk(node: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping with a `_target_` in a tree, with its full key."""
    return (
        (re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", at), one)
        for at, one in nodes(node, key)
        if isinstance(one, Mapping) and "_target_" in one
    )


def check(config: Any, task: Any) -> Iterator[Problem]:
    """What is wrong with sections of OPTIONS and with nodes, as names and arguments tell it.

    Args:
        task: of `seams.TASKS`; says which nodes it makes.
    """
    for key, name in OPTIONS.items():
        if (key == "find" or not task.reads) and (values := _arguments_of(config, key)):
            yield from _wrong_arguments(resolve_name(name), key, values, key)
    for section, value in config.model_dump(include=set() if task.reads else {*SUPPLIED}).items():
        for key, node in walk(value, section):
            try:
                # Else a program of one's own waits 1.3 s for torchmetrics before its first batch.
                if task.measures or not is_below(
                    node["_target_"], ["torchmetrics", "penstock.training.metrics"]
                ):
                    yield from _wrong_arguments(called(node, key), key, node, section)
            except ConfigError as error:
                yield from error.problems


def _wrong_arguments(
    function: Any, key: str, node: Mapping[str, Any], section: str
) -> Iterator[Problem]:
    """Arguments that a callable does not take, that it lacks, and ours of a wrong type."""
    ours = is_below(function.__module__, ["penstock"])
    known = {  # but for objects of the build, which no plain value stands for
        name: one
        for name, one in arguments(function).items()
        if not (ours and name in ("shares", "limits", "files")) or any(walk(node.get(name), ""))
    } | SPECIAL
    for name, value in node.items():
        if name not in known:
            gone = advice(f"{key}.{name}", show(value).strip("'")).removeprefix("; ")
            if gone or all(one.kind is not one.VAR_KEYWORD for one in known.values()):
                yield Problem(
                    f"{key}.{name}",
                    gone
                    or f"unknown argument of {function.__name__} {name!r}{nearest(name, known)}; "
                    f"allowed: {', '.join(known)}",
                )
        elif (
            isinstance(value, str)  # where a library's argument is a number, and nothing else
            and isinstance(known[name].default, int | float)
            and re.search("float|int|bool", str(known[name].annotation))
            and not re.search("str|Literal|Any", str(known[name].annotation))
            and not ours
        ):
            yield Problem(
                f"{key}.{name}", f"got {value!r}, and not a value like {known[name].default}"
            )
        elif name in SPECIAL or (ours and not any(walk(value, ""))):
            # A field of a dataclass has the type that its base's module names.
            yield from _wrong_value(
                known[name],
                next(
                    (
                        base.__module__
                        for base in getattr(function, "__mro__", ())
                        if name in getattr(base, "__dataclass_fields__", ())
                        and name in vars(base)["__annotations__"]
                    ),
                    function.__module__,
                ),
                f"{key}.{name}",
                value,
            )
    # A partial, and a function that collates or filters, get the rest when they are called.
    if (
        not node.get("_partial_")
        and isinstance(node.get("_args_", []), list)
        and (isinstance(function, type) or section not in ("collate", "data"))
    ):
        yield from (
            Problem(f"{key}.{one.name}", f"is missing; {function.__name__} needs it")
            for one in [*known.values()][len(node.get("_args_", [])) :]
            if one.default is one.empty and one.kind is not one.VAR_KEYWORD
            if one.name not in {*node, *SUPPLIED.get(section, ())}
        )


_adapter = cache(partial(TypeAdapter, config=ConfigDict(arbitrary_types_allowed=True)))


def _wrong_value(
    argument: inspect.Parameter, module: str, key: str, value: Any
) -> Iterator[Problem]:
    """What the annotation of an argument says of a value: JSON, where lists may become tuples."""
    try:
        _adapter(ForwardRef(argument.annotation, module=module)).validate_json(
            json.dumps(value), strict=True
        )
    except ValidationError as error:
        # A text may stand for an object, such as a dtype.
        if isinstance(value, Mapping) or "needs_python_object" not in str(error):
            yield from of_schema(error, value, key)
    except Exception:  # an annotation for type checkers only
        return
