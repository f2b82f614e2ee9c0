"""The allow-list of objects that a configuration may call, by name and by kind of object.

A `_target_` is a name from a file, a command line or an interpolation. It is called only if

1. the written name lies under a rule's prefix, before anything is imported for it;
2. the walk to it leads through no module that the name doesn't spell out (no way from
   `torch.nn.functional.torch` to the whole of torch);
3. the object found is defined (`__module__`) where the rule says, and of the rule's kind: a
   `torch.nn.Module` class, a torchvision model builder, a dataset of Penstock's ...

So loaders of pickles and of native code (`torch.load`, `numpy.load`, `ctypes`) and whatever runs
code or touches files (`builtins`, `os`, `hydra.utils.call`) are refused because nothing allows
them. A person's own package is trusted by name from outside of the configuration only: `--trust
mypackage` or the environment variable PENSTOCK_TRUST.

Cost: a few us a name once it is resolved; the first time imports its module.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from types import FunctionType, ModuleType
from typing import Any

from penstock.config.messages import nearest
from penstock.errors import ConfigError, Problem

VARIABLE = "PENSTOCK_TRUST"

# --trust refuses these: they read pickles, load native code or run what they are told to. A person
# who needs one calls it from a function of their own package.
NEVER = frozenset(sys.stdlib_module_names) | {
    "cloudpickle",
    "datasets",
    "dill",
    "hydra",
    "hydra_plugins",
    "joblib",
    "numpy",
    "omegaconf",
    "pandas",
    "penstock",
    "pkg_resources",
    "pydantic",
    "setuptools",
    "torch",
    "torchvision",
    "yaml",
}

# Albumentations and its fork look for updates and report their use, unless told not to.
_OFFLINE = ("NO_ALBUMENTATIONS_UPDATE", "ALBUMENTATIONS_OFFLINE", "ALBUMENTATIONS_NO_TELEMETRY")

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


@dataclass(frozen=True)
class Rule:
    """One entry of the allow-list.

    Attributes:
        prefix: of the written name.
        kind: of the object, for messages.
        fits: whether an object is of that kind.
        homes: modules (with all below them) where the object may be defined; the prefix if empty.
    """

    prefix: str
    kind: str
    fits: Callable[[Any], bool]
    homes: tuple[str, ...] = ()

    def admits(self, obj: object) -> bool:
        home = getattr(obj, "__module__", None) or ""
        homes = self.homes or (self.prefix,)
        return any(_under(home, module) for module in homes) and self.fits(obj)


def _under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def _subclass(*bases: str) -> Callable[[Any], bool]:
    """Whether an object is a subclass of one of `bases`, which are imported when asked."""

    def named(name: str) -> Any:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)

    def fits(obj: Any) -> bool:
        return isinstance(obj, type) and any(issubclass(obj, named(base)) for base in bases)

    return fits


def _is_model(obj: object) -> bool:
    """A builder that torchvision has registered, or a module class."""
    if isinstance(obj, type):
        return _subclass("torch.nn.Module")(obj)
    from torchvision.models import get_model_builder, list_models

    return any(get_model_builder(name) is obj for name in list_models())


def _is_function(obj: object) -> bool:
    return isinstance(obj, FunctionType) and not obj.__name__.startswith(("_", "register_"))


def _is_class(obj: object) -> bool:
    return isinstance(obj, type) and not issubclass(obj, BaseException)


# Of torch.utils.data besides samplers; its data pipes open files and run what they are given.
_OF_TORCH = frozenset(
    {
        "ChainDataset",
        "ConcatDataset",
        "StackDataset",
        "Subset",
        "TensorDataset",
        "default_collate",
        "default_convert",
    }
)
# Datasets of torchvision that read pictures, tables and archives. CIFAR's pickles are compared
# with hashes of the true ones before they are read. Not here: those that read other pickles (LSUN),
# files of torch's own, or videos.
_OF_TORCHVISION = frozenset(
    {
        "CIFAR10",
        "CIFAR100",
        "CLEVRClassification",
        "Caltech101",
        "Caltech256",
        "CelebA",
        "Cityscapes",
        "CocoCaptions",
        "CocoDetection",
        "Country211",
        "DTD",
        "EMNIST",
        "EuroSAT",
        "FER2013",
        "FGVCAircraft",
        "FakeData",
        "FashionMNIST",
        "Flickr30k",
        "Flickr8k",
        "Flowers102",
        "Food101",
        "GTSRB",
        "INaturalist",
        "ImageFolder",
        "Imagenette",
        "KMNIST",
        "LFWPairs",
        "LFWPeople",
        "MNIST",
        "Omniglot",
        "OxfordIIITPet",
        "PCAM",
        "Places365",
        "QMNIST",
        "RenderedSST2",
        "SEMEION",
        "STL10",
        "SUN397",
        "SVHN",
        "StanfordCars",
        "USPS",
        "VOCDetection",
        "VOCSegmentation",
        "WIDERFace",
    }
)


def _is_of_data(obj: object) -> bool:
    known = getattr(obj, "__name__", "") in _OF_TORCH
    return known or _subclass("torch.utils.data.Sampler")(obj)


def _is_known(obj: object) -> bool:
    return isinstance(obj, type) and obj.__name__ in _OF_TORCHVISION


_METRICS = (
    "aggregation",
    "classification",
    "clustering",
    "nominal",
    "regression",
    "retrieval",
    "segmentation",
    "wrappers",
)
# Functions of arrays. Not its `io` and `data`, which write files and fetch them from the network.
_SKIMAGE = (
    "color",
    "exposure",
    "filters",
    "morphology",
    "restoration",
    "segmentation",
    "transform",
    "util",
)
# Modules of ours whose classes may all be called.
_OURS = {
    "order.samplers": "a sampler",
    "order.composed": "a sampler",
    "loading.collate": "a collate class",
    "transforms.image": "a transform",
    "transforms.arrays": "a transform",
    "transforms.audio": "a transform",
    "transforms.text": "a transform",
    "transforms.batch_geometry": "a batch transform",
    "transforms.batch_colors": "a batch transform",
    "transforms.mixing": "a batch transform",
    "training.objective": "an objective",
    "training.metrics": "a metric",
    "addons.finetuning.teachers": "a teacher",
    "addons.forecasting.objective": "a model, an objective or its metric",
    "addons.mixtures.order": "a sampler",
    "addons.multi_label": "an objective",
    "addons.pairs.models": "a model",
    "addons.pairs.objectives": "an objective or its metric",
    "addons.stores.blocks": "a sampler",
    "addons.tabular.models": "a model or its objective",
    "addons.tokens.byte_pairs": "a transform",
    "addons.tokens.flatten": "a collate class",
    "addons.tokens.language_model": "a model or its objective",
    "addons.tokens.sequence_packing": "a sampler",
    "addons.video.models": "a model",
    "addons.vision.detection": "an objective",
    "addons.vision.detectors": "a model",
    "addons.vision.mean_average_precision": "a metric",
    "addons.vision.mosaic": "a transform of boxes or a collate class",
    "addons.vision.segmentation": "a model or its objective",
}
# Modules and packages of ours whose datasets may be called, and nothing else in them.
_OUR_DATASETS = (
    "datasets",
    "addons.forecasting.drawn_series",
    "addons.forecasting.windows",
    "addons.huggingface",
    "addons.image_tables",
    "addons.mixtures.mixture",
    "addons.mixtures.mixture_stream",
    "addons.packs.packed",
    "addons.shards",
    "addons.tables",
    "addons.tabular",
    "addons.tokens.token_files",
    "addons.video",
    "addons.vision",
)
# Modules of ours whose classes and functions make models.
_OUR_MODELS = ("training.models", "addons.timm", "addons.transformers.models")

RULES = (
    Rule("torch.nn", "a torch.nn.Module", _subclass("torch.nn.Module")),
    Rule(
        "torch.optim",
        "an optimizer or a scheduler",
        _subclass("torch.optim.Optimizer", "torch.optim.lr_scheduler.LRScheduler"),
    ),
    Rule("torch.utils.data", "a sampler, a dataset or a collate function", _is_of_data),
    Rule("torchvision.datasets", "a dataset that reads no pickles", _is_known),
    Rule("torchvision.transforms.v2.functional", "a transform function", _is_function),
    Rule(
        "torchvision.transforms.v2",
        "a v2 transform",
        _subclass("torchvision.transforms.v2.Transform"),
    ),
    Rule("torchvision.models", "a model", _is_model),
    Rule(
        "torchmetrics",
        "a metric",
        _subclass("torchmetrics.Metric"),
        homes=tuple(f"torchmetrics.{name}" for name in _METRICS),
    ),
    Rule(
        "albumentations",
        "a transform of Albumentations",
        _subclass("albumentations.BasicTransform", "albumentations.BaseCompose"),
    ),
    *(
        Rule(f"skimage.{name}", "a function of pictures", _is_function, homes=("skimage",))
        for name in _SKIMAGE
    ),
    *(
        Rule(
            f"penstock.{name}", "a torch.utils.data.Dataset", _subclass("torch.utils.data.Dataset")
        )
        for name in _OUR_DATASETS
    ),
    Rule("penstock.addons.filters.rows", "rows of a dataset", _is_function),
    Rule("penstock.datasets.files", "access to files", _subclass("penstock.datasets.files.Files")),
    Rule(
        "penstock.order.streams",
        "the order of a stream",
        _subclass("penstock.order.streams.StreamOrder"),
    ),
    Rule(
        "penstock.transforms.image_decoding",
        "a decoding transform",
        _subclass("penstock.transforms.image_decoding.Decode"),
    ),
    Rule(
        "penstock.addons.trackers",
        "a tracker",
        _subclass("penstock.addons.trackers.tracker.Tracker"),
    ),
    *(
        Rule(f"penstock.{name}", "a model", lambda obj: _is_class(obj) or _is_function(obj))
        for name in _OUR_MODELS
    ),
    *(Rule(f"penstock.{name}", kind, _is_class) for name, kind in _OURS.items()),
)


def trusted() -> tuple[str, ...]:
    """Packages that the person running this trusts, from the environment.

    Raises:
        ConfigError: one of them cannot be trusted as a whole.
    """
    text = os.environ.get(VARIABLE, "")
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    problems = check_trusted(names, VARIABLE)
    if problems:
        raise ConfigError(problems)
    return names


def is_trusted(name: str) -> bool:
    """Whether a package, or what a name leads to, lies in a package that the person trusts."""
    return any(_under(name, package) for package in trusted())


def check_trusted(names: Iterable[str], key: str = "--trust") -> list[Problem]:
    """The problems with the names of packages to be trusted."""
    problems = []
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            problems.append(Problem(key, f"{name!r} is not the name of a package"))
        elif name.split(".")[0] in NEVER:
            problems.append(
                Problem(
                    key,
                    f"{name!r} cannot be trusted as a whole: it can load pickles or native code, "
                    "or run any program. Call the functions that you need from a package of your "
                    "own, and trust that package",
                )
            )
    return problems


def resolve(name: Any, key: str) -> Any:
    """The object that a written name stands for, checked before import and once found.

    Args:
        name: dotted name, as written after `_target_`.
        key: full key of the node, for the message.

    Raises:
        ConfigError: the name may not be called, or doesn't exist; with the nearest that does.
    """
    try:
        return _resolve(name, trusted())
    except _Refusal as refusal:
        raise ConfigError(Problem(key, str(refusal))) from refusal.__cause__


def check_name(name: object, key: str) -> None:
    """The first half of `resolve`: raise ConfigError unless the written name may be called."""
    try:
        _rules_for(name, trusted())
    except _Refusal as refusal:
        raise ConfigError(Problem(key, str(refusal))) from None


class _Refusal(Exception):
    """Why a name is not resolved."""


@functools.lru_cache(maxsize=1024)
def _resolve(name: str, packages: tuple[str, ...]) -> object:
    rules = _rules_for(name, packages)
    obj = _walk(name, packages)
    if not callable(obj):
        raise _Refusal(f"{name} is {type(obj).__name__}, not something that can be called")
    if not any(rule.admits(obj) for rule in rules) and not _vouched(obj, packages):
        home = f"{getattr(obj, '__module__', '?')}.{getattr(obj, '__qualname__', name)}"
        kinds = " or ".join(rule.kind for rule in rules) or f"defined in {', '.join(packages)}"
        raise _Refusal(f"{name} is {home}, which is not {kinds}, so it is not called. {HOW}")
    return obj


HOW = f"A package of your own is trusted by name: --trust mypackage (or {VARIABLE}=mypackage)"


def _rules_for(name: object, packages: tuple[str, ...]) -> list[Rule]:
    """The rules that cover a written name; empty for a name in a trusted package."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _Refusal(f"{name!r} is not a dotted name such as torch.nn.Linear")
    if any("__" in part for part in name.split(".")):
        raise _Refusal(f"{name} reaches for an internal name, so it is not called")
    if any(_under(name, package) for package in packages):
        return []
    rules = [rule for rule in RULES if name.startswith(rule.prefix + ".")]
    if rules and not any(part.startswith("_") for part in name.split(".")):
        return rules
    package = name.split(".")[0]
    if package == "pipeline" and not rules:
        raise _Refusal(
            f"{name} is called penstock.{name.partition('.')[2]} now, as this program is imported "
            "as penstock"
        )
    if package in NEVER:
        allowed = ", ".join(rule.prefix for rule in RULES if _under(rule.prefix, package))
        inside = f" Of {package}, a configuration may call {allowed}." if allowed else ""
        raise _Refusal(f"{name} may not be called from a configuration.{inside} {HOW}")
    known = {rule.prefix.split(".")[0] for rule in RULES}
    close = get_close_matches(package, known, n=1, cutoff=0.8)
    near = f" (did you mean {close[0]!r}?)" if close else ""
    raise _Refusal(
        f"{name} may not be called from a configuration{near}: {package!r} is not trusted. If it "
        f"is yours, or you have read it: --trust {package} (or {VARIABLE}={package})"
    )


def _walk(name: str, packages: tuple[str, ...]) -> Any:
    """Import and look up `name`, part by part, through modules that it spells out only."""
    first, *parts = name.split(".")
    obj: Any = _import(first)
    path = first
    for part in parts:
        obj, path = _step(obj, part, path), f"{path}.{part}"
        elsewhere = isinstance(obj, ModuleType) and obj.__name__ != path
        if elsewhere and not any(_under(obj.__name__, package) for package in packages):
            raise _Refusal(f"{name} leads through the module {obj.__name__}. {HOW}")
    return obj


def _step(obj: object, part: str, path: str) -> object:
    if hasattr(obj, part):
        return getattr(obj, part)
    if not isinstance(obj, ModuleType):
        raise _Refusal(f"{path} has no {part!r}{nearest(part, dir(obj))}")
    inside = getattr(obj, "__path__", [])
    if inside and importlib.util.find_spec(f"{path}.{part}") is not None:
        return _import(f"{path}.{part}")
    public = [
        name
        for name, value in vars(obj).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and callable(value)
    ]
    public += [entry.name for entry in pkgutil.iter_modules(inside)]
    raise _Refusal(f"there is no {part!r} in {path}{nearest(part, public)}")


def _import(name: str) -> object:
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        raise _Refusal(f"there is no package {name!r} here; is it installed, or on PYTHONPATH?")
    if name == "albumentations":
        for variable in _OFFLINE:
            os.environ.setdefault(variable, "1")
    try:
        return importlib.import_module(name)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f" ({last.filename}:{last.lineno})" if "importlib" not in last.filename else ""
        raise _Refusal(
            f"importing {name} failed: {type(error).__name__}: {error}{where}"
        ) from error


def _vouched(obj: object, packages: tuple[str, ...]) -> bool:
    """Whether an object is defined in a trusted package, or imported there and allowed anyway."""
    while isinstance(obj, functools.partial):
        obj = obj.func
    obj = obj if hasattr(obj, "__module__") else type(obj)
    home = obj.__module__ or ""
    if any(_under(home, package) for package in packages):
        return True
    return bool(packages) and any(rule.admits(obj) for rule in RULES)
