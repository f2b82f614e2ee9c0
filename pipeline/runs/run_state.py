"""A state as text and tensors, which is how a checkpoint holds it, and the errors about one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ConfigError
from penstock.files.disk import DiskError

State = dict[str, Any]


class CheckpointError(DiskError):
    """A checkpoint cannot be used or written; the message names it and says what to do."""


class NoCheckpointError(CheckpointError):
    """There is no checkpoint where the configuration names one."""

    exit_code = ConfigError.exit_code


def encode(state: State) -> tuple[str, dict[str, Tensor]]:
    """The text of `state` and its tensors by name, detached and not copied.

    Raises:
        TypeError: the state holds something that cannot be saved; the message has its path.
    """
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, "", tensors, {})
    return json.dumps(tree, allow_nan=False), tensors


def decode(text: str, tensors: Mapping[str, Tensor]) -> State:
    """The state that `encode` was given; raises ValueError for any other text or tensors."""
    try:
        return {**_decode(json.loads(text), tensors)}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from error


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds only a part of it (a DTensor)."""
    return hasattr(tensor, "placements")


def _encode(
    value: object, path: str, tensors: dict[str, Tensor], seen: dict[object, str]
) -> object:
    """`value` as JSON; adds its tensors to `tensors`, by path."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Tensor):
        return {"$tensor": _name_tensor(value, path, tensors, seen)}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):  # JSON keeps a finite float exactly
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, f"{path}/{i}", tensors, seen) for i, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise TypeError(
                    f"{path or 'the state'} has the key {key!r}, which is neither text nor int"
                )
        pairs = [[k, _encode(v, f"{path}/{k}", tensors, seen)] for k, v in value.items()]
        plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
        return dict(pairs) if plain else {"$dict": pairs}
    raise TypeError(f"{path} is a {type(value).__name__}, which a checkpoint cannot hold")


def _name_tensor(
    tensor: Tensor, path: str, tensors: dict[str, Tensor], seen: dict[Any, str]
) -> str:
    """The name under which a tensor is saved; the same one for the same tensor."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise TypeError(
            f"{path} is a tensor without plain data ({tensor.layout}, {tensor.dtype}, "
            f"{tensor.device}), which a checkpoint cannot hold"
        )
    same: object = path
    # Tensors without data all lie at the same place. Ranks name what is sharded alike, though some
    # hold no data of it.
    if tensor.numel() and not is_sharded(tensor):
        same = (
            tensor.device,
            tensor.data_ptr(),
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.is_conj(),
            tensor.is_neg(),
        )
    if same not in seen:
        name = path.lstrip("/") or "state"
        while name in tensors:  # {"a/b": ...} beside {"a": {"b": ...}}
            name += "'"
        tensors[name] = tensor.detach()
        seen[same] = name
        return name
    return seen[same]


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$tensor": name}:
            return tensors[name]
        case {"$float": "inf" | "-inf" | "nan" as text}:
            return float(text)
        case {"$float": text}:
            raise ValueError(f"{text!r:.60} is not a number that JSON lacks")
        case {"$tuple": items}:
            return tuple(_decode(item, tensors) for item in items)
        case {"$dict": pairs}:
            return {key: _decode(item, tensors) for key, item in pairs}
    return {key: _decode(item, tensors) for key, item in value.items()}
