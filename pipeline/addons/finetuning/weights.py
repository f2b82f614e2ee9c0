"""Weights of a run or a file, and what of them fits a model. Nothing but tensors is read.

a run's folder        its best checkpoint; or a checkpoint of a run
NAME.safetensors      tensors by name
NAME.pt, .pth, .bin   as torch.save writes a state_dict, by torch's reader of tensors alone
"""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from penstock.addons.finetuning import groups
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.runs import checkpoint
from penstock.runs.checkpoint_file import check_size
from penstock.terminal import one_line

_SHOWN = 6  # names of a kind
_NESTED = ("state_dict", "model_state_dict", "model", "module")
_OF_TORCH = (".pt", ".pth", ".bin", ".ckpt")


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

    @property
    def odd(self) -> bool:
        """Whether something does not fit."""
        return bool(self.missing or self.unexpected or self.other)


def match(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    without: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    key: str = "trainer.warm_start",
) -> Matched:
    """The part of `tensors` that fits a model; copies nothing.

    Args:
        without: patterns of names of the model that keep their values.
        rename: how names of the file begin, and how they do in the model.
        key: of the section, for messages.

    Raises:
        ConfigError: a pattern names nothing in the model, or `rename` nothing in the file.
    """
    own = model.state_dict()
    groups.check_used(f"{key}.without", without, list(own), f"tensor of {type(model).__name__}")
    named = _renamed(tensors, own, rename or {}, f"{key}.rename")
    matched = Matched({}, len(own))
    for name, tensor in own.items():
        value = named.get(name)
        if any(groups.matches(pattern, name) for pattern in without):
            matched.left.append(name)
        elif value is None:
            matched.missing.append(name)
        elif is_lazy(tensor):
            matched.other.append(f"{name}, which gets its shape from the first batch")
        elif value.shape != tensor.shape or _kind(value) != _kind(tensor):
            matched.other.append(f"{name} {_of(value)} in the file, {_of(tensor)} in the model")
        else:
            matched.tensors[name] = value
    matched.unexpected = [name for name in named if name not in own]
    if without:  # a head of the file's that the model has not, as the pattern says
        matched.unexpected = [
            name for name in matched.unexpected if not any(groups.matches(p, name) for p in without)
        ]
    return matched


@torch.no_grad()
def load(model: nn.Module, matched: Matched) -> None:
    """Copy what fits into a model, in the model's own dtypes."""
    own = model.state_dict()
    for name, value in matched.tensors.items():
        own[name].copy_(value)


def _renamed(
    tensors: Mapping[str, Tensor], own: Mapping[str, object], rename: Mapping[str, str], key: str
) -> dict[str, Tensor]:
    wrapped = all(name.startswith("module.") for name in tensors)  # as for DDP's wrapper
    if tensors and wrapped and not rename and not own.keys() & tensors.keys():
        rename = {"module.": ""}
    for before in rename:
        if not any(name.startswith(before) for name in tensors):
            reason = f"no name of the file begins with {before!r}; they are {_few(list(tensors))}"
            raise ConfigError(Problem(key, reason))
    named = {}
    for name, tensor in tensors.items():
        before = next((each for each in rename if name.startswith(each)), "")
        named[rename.get(before, "") + name[len(before) :]] = tensor
    return named


def read(path: Path, key: str = "trainer.warm_start.path") -> dict[str, Tensor]:
    """The tensors of a run's best weights, or of a file, by name; on the CPU.

    Raises:
        ConfigError: nothing is there, or it is no file of weights.
        PenstockError: it cannot be read.
    """
    if not path.exists():
        raise ConfigError(Problem(key, f"{str(path)!r} does not exist; name a run or a file"))
    if path.is_dir():
        return _of_checkpoint(checkpoint.find(path))
    try:
        with path.open("rb") as file:
            check_size(path, os.fstat(file.fileno()))
        if path.suffix in _OF_TORCH:
            return _of_torch(path, key)
        with safe_open(path, framework="pt") as file:
            if "state" in (file.metadata() or {}):
                return _of_checkpoint(path)
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        names = ", ".join([".safetensors", *_OF_TORCH])
        reason = f"{str(path)!r} is no whole file of tensors ({one_line(error)[:100]}); {names} are"
        raise ConfigError(Problem(key, f"{reason} read")) from error
    except OSError as error:
        raise PenstockError(f"{path} cannot be read: {error.strerror or error}") from error


def _of_checkpoint(path: Path) -> dict[str, Tensor]:
    state = checkpoint.load(path)
    tensors = state["averaged" if "averaged" in state else "model"]
    return {str(name): value for name, value in tensors.items() if isinstance(value, Tensor)}


def _of_torch(path: Path, key: str) -> dict[str, Tensor]:
    """A state_dict as torch.save wrote it, by torch's reader that makes tensors and nothing else.

    It takes memory as an archive claims, so parts that are compressed are refused: those have the
    size that the file has.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                reason = f"{str(path)!r} is compressed, which torch.save never does"
                raise ConfigError(Problem(key, reason))
    try:
        with warnings.catch_warnings(action="ignore"):  # of pickles that it then refuses
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = (
            f"{str(path)!r} holds more than tensors, and reading that could run any code; save its "
            "model.state_dict() alone, at best with safetensors.torch.save_file"
        )
        raise ConfigError(Problem(key, reason)) from error
    except (RuntimeError, OSError, EOFError, ValueError, LookupError, TypeError) as error:
        reason = f"{str(path)!r} is no whole file of torch.save: {one_line(error)[:100]}"
        raise ConfigError(Problem(key, reason)) from error
    for name in _NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not isinstance(content, Mapping):
        reason = f"{str(path)!r} holds a {type(content).__name__}, and no tensors by name"
        raise ConfigError(Problem(key, reason))
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def _kind(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point


def _of(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(one_line(name)[:120] for name in names[:_SHOWN]) + more
