"""Weights of a run or a file: `trainer.warm_start`, teachers, and patterns of weights' names.

A pattern names a weight, or a module with all that is in it: `*` is any text, `?` a character, and
`%` a number. Nothing but tensors is read of a file.
"""

from __future__ import annotations

import fnmatch
import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, distributed, nn
from torch.nn.parameter import is_lazy

from penstock.config.messages import nearest
from penstock.errors import ConfigError, Problem
from penstock.runs import checkpoint
from penstock.terminal import one_line, say
from penstock.training.objective_base import in_shape

START = "trainer.warm_start"
_SHOWN = 6  # names in a message
_NESTED = ("state_dict", "model_state_dict", "model", "module")  # where files have the tensors
_OF_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_UNREADABLE = (
    *(SafetensorError, pickle.UnpicklingError, OSError, EOFError),
    *(RuntimeError, ValueError, LookupError, TypeError),
)

# What was found of each warm start, for the manifest.
started: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()


def listed(patterns: Sequence[str] | str | None) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns or ())


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern).replace("%", r"(\d++)"))


def numbers(pattern: str, name: str) -> tuple[int, ...] | None:
    """The numbers in the places of `%`, where a pattern names this or a module that it is in."""
    expression = _compiled(pattern)
    for end in (len(name), *(dot.start() for dot in re.finditer(r"\.", name))):
        if found := expression.match(name[:end]):
            return tuple(map(int, found.groups()))
    return None


def named_by(patterns: Sequence[str], name: str) -> bool:
    return any(numbers(pattern, name) is not None for pattern in patterns)


def check_used(key: str, patterns: Sequence[str], names: Sequence[str], what: str) -> None:
    """Raise ConfigError where a pattern names none of `names`, each of which is a `what`."""
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ConfigError(Problem(key, f"{str(pattern)!r} is no pattern of names, a text"))
        if not any(numbers(pattern, name) is not None for name in names):
            modules = dict.fromkeys(
                name.rsplit(".", up)[0] for name in names for up in range(name.count(".") + 1)
            )
            reason = f"{pattern!r} names no {what}{nearest(pattern, modules)}; there is"
            raise ConfigError(Problem(key, f"{reason} {_few(names)}"))


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(one_line(name)[:120] for name in names[:_SHOWN]) + more


@dataclass
class Matched:
    """The part of a file that fits a model.

    Attributes:
        tensors: by the model's names, those that it takes.
        total: tensors that the model has.
        left: the model's that keep their values because `without` names them.
        missing: the model's that the file has not.
        unexpected: the file's that the model has not.
        other: those of both in another shape or kind, in words.
    """

    tensors: dict[str, Tensor]
    total: int
    left: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        count = f"{len(self.tensors)} of {self.total} tensors"
        kinds = {
            "left out": self.left,
            "missing": self.missing,
            "unexpected": self.unexpected,
            "of another shape": self.other,
        }
        return "; ".join([count, *(f"{kind}: {_few(n)}" for kind, n in kinds.items() if n)])


def start(
    model: nn.Module,
    /,
    path: str,
    strict: bool = True,
    without: Sequence[str] | str = (),
    rename: dict[str, str] | None = None,
) -> None:
    """Give a model the weights of a file, and say what matched; the section `trainer.warm_start`.

    Args:
        path: a run's folder, a checkpoint, or a file.
        strict: whether all of them must fit.
        without: patterns of names that keep their new weights.
        rename: beginnings of names in the file, and those in the model.

    Raises:
        ConfigError: some do not fit, and `strict` is true; or none do.
    """
    matched = _load(model, path, f"{START}.", strict, listed(without), rename or {})
    found = {name: value for name, value in vars(matched).items() if name != "tensors"}
    at = str(Path(path).expanduser().absolute())
    started[model] = {"path": at, "matched": len(matched.tensors), **found}
    if not distributed.is_initialized() or distributed.get_rank() == 0:
        say(f"{'start':<9} {matched} from {path}")


@torch.no_grad()
def _load(
    model: nn.Module,
    path: str,
    section: str,
    strict: bool,
    without: Sequence[str],
    rename: Mapping[str, str],
) -> Matched:
    """Copy what fits of a file into a model, in the model's own dtypes."""
    name, own = type(model).__name__, model.state_dict()
    check_used(f"{section}without", without, list(own), f"tensor of {name}")
    tensors = _renamed(read(Path(path).expanduser(), f"{section}path"), own, rename, section)
    matched = Matched({}, len(own))
    for name_of, tensor in own.items():
        value = tensors.get(name_of)
        if named_by(without, name_of):
            matched.left.append(name_of)
        elif value is None:
            matched.missing.append(name_of)
        elif is_lazy(tensor):
            matched.other.append(f"{name_of}, which gets its shape from the first batch")
        elif value.shape != tensor.shape or value.is_floating_point() != tensor.is_floating_point():
            shapes = f"{in_shape(value)} in the file, {in_shape(tensor)} in the model"
            matched.other.append(f"{name_of} {shapes}")
        else:
            matched.tensors[name_of] = value
    # A head of the file's may be left out, too, that the model has not.
    matched.unexpected = [n for n in tensors if n not in own and not named_by(without, n)]
    odd = matched.missing or matched.unexpected or matched.other
    if not matched.tensors or (strict and odd):
        ways = f"is it another model? {section}rename may help"
        if matched.tensors:
            ways = (
                f"{section}without=[NAMES] keeps the new weights of some; {section}strict=false "
                "takes what fits"
                if section
                else "a teacher needs all of its weights"
            )
        reason = f"{path!r} does not fit {name}: {matched}. {ways}"
        raise ConfigError(Problem(f"{section}path", reason))
    for name_of, value in matched.tensors.items():
        own[name_of].copy_(value)
    return matched


def _renamed(
    tensors: Mapping[str, Tensor],
    own: Mapping[str, object],
    rename: Mapping[str, str],
    section: str,
) -> dict[str, Tensor]:
    """The tensors of a file by the names of a model, whose names are those of `own`."""
    wrapped = all(name.startswith("module.") for name in tensors)  # as DDP's wrapper names them
    if tensors and wrapped and not rename and not own.keys() & tensors.keys():
        rename = {"module.": ""}
    for before in rename:
        if not any(name.startswith(before) for name in tensors):
            reason = f"no name of the file begins with {before!r}; they are {_few(list(tensors))}"
            raise ConfigError(Problem(f"{section}rename", reason))
    named = {}
    for name, tensor in tensors.items():
        before = next((each for each in rename if name.startswith(each)), "")
        named[rename.get(before, "") + name[len(before) :]] = tensor
    return named


def read(path: Path, key: str = f"{START}.path") -> dict[str, Tensor]:
    """The tensors of a run's best weights, or of a file, by name; on the CPU.

    Only tensors are read: of a run's folder its best checkpoint; NAME.safetensors; NAME.pt, .pth,
    .bin or .ckpt as torch.save writes a state_dict.

    Raises:
        ConfigError: nothing is there, or it is no file of weights.
        CheckpointError: it is a checkpoint that cannot be read.
    """
    if not path.exists():
        raise ConfigError(Problem(key, f"{str(path)!r} does not exist; name a run or a file"))
    content: Any = None
    try:
        if path.is_file() and path.suffix in _OF_TORCH:
            with warnings.catch_warnings(action="ignore"):  # of pickles that it then refuses
                content = torch.load(path, map_location="cpu", weights_only=True)
        elif path.is_file():
            with safe_open(path, framework="pt") as file:
                if "state" not in (file.metadata() or {}):  # which checkpoints have
                    content = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if content is None:
            state = checkpoint.load(checkpoint.find(path))
            content = state["averaged" if "averaged" in state else "model"]
    except _UNREADABLE as error:
        reason = f"{str(path)!r} is no whole file of tensors ({one_line(error)[:100]})"
        if isinstance(error, pickle.UnpicklingError):
            reason = (
                f"{str(path)!r} holds more than tensors, and reading that could run any code; save "
                "its model.state_dict() alone, at best with safetensors.torch.save_file"
            )
        raise ConfigError(Problem(key, reason)) from error
    for name in _NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not isinstance(content, Mapping):
        reason = f"{str(path)!r} holds a {type(content).__name__}, and no tensors by name"
        raise ConfigError(Problem(key, reason))
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


class Teacher(nn.Module):
    """A model with the weights of a run or a file, which gives its outputs and never learns.

    It stays in evaluation mode whatever the model around it is set to, its outputs carry no
    gradient, and its weights stand in no optimizer. Held by an objective, it is in no checkpoint.

    Args:
        model: the same as that of the weights.
        path: a run's folder, a checkpoint, or a file of weights.
        rename: how names of the file begin, and how they do in the model.

    Raises:
        ConfigError: the weights do not fit the model.
    """

    def __init__(self, model: nn.Module, path: str, rename: dict[str, str] | None = None) -> None:
        super().__init__()
        _load(model, path, "", True, (), rename or {})
        self.model = model
        self.requires_grad_(False).train(False)

    def train(self, mode: bool = True) -> Teacher:
        return super().train(False)

    @torch.no_grad()
    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.model(*inputs, **options)
