"""Checks of a fit's checkpoint before it is used: it may come from anybody."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from penstock.errors import ConfigError
from penstock.files import data as plain_json
from penstock.files.data import JsonError, mapping, name, shown
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
        state = _decode(plain_json.parse(text), tensors)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from error
    return mapping(state)


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
            raise ValueError(f"{shown(text)} is not a number that JSON lacks")
        case {"$tuple": items}:
            return tuple(_decode(item, tensors) for item in items)
        case {"$dict": pairs}:
            return {key: _decode(item, tensors) for key, item in pairs}
    return {key: _decode(item, tensors) for key, item in value.items()}


_LONGEST_HISTORY = 1_000_000
_MOST_FACTS = 10_000
_LIKE_WEIGHTS = {  # state of torch's optimizers in the shape of a weight
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "momentum_buffer",
    "square_avg",
    "grad_avg",
    "acc_delta",
}

# Epochs, steps and samples: exact in every number that they meet.
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Text = Annotated[str, Field(max_length=1 << 16)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Numbers(_Part):
    """Numbers by name, some of which have to be there."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float]


class _Loader(_Part):
    epoch: _Count
    step: _Count


class _Meter(_Numbers):
    total: float
    samples: _Count
    seconds: float
    window_total: float
    window_samples: _Count
    waited: float
    losses: _Count = 0  # which older checkpoints lack


class _Record(_Numbers):
    epoch: _Count
    step: _Count
    seconds: float
    loss: float = Field(alias="train/loss")
    samples_per_second: float
    wait_share: float


def _check_records(history: list[object]) -> list[object]:
    for record in history:  # here, as pydantic would list what is wrong with all of a million
        _Record.model_validate(record)
    return history


class _Result(_Part):
    model_config = ConfigDict(extra="forbid")

    history: Annotated[
        list[Any], Field(max_length=_LONGEST_HISTORY), AfterValidator(_check_records)
    ]
    best: _Record | None
    reason: Literal["max_epochs", "max_steps", "patience"]
    stale: _Count
    order: str


class _Progress(_Part):
    meter: _Meter
    begun: bool
    result: _Result


class _State(_Part):
    loader: _Loader
    batches: _Count
    updates: _Count
    model: dict[Any, Any]
    optimizer: dict[Any, Any]
    metrics: Annotated[dict[str, float], Field(max_length=_MOST_FACTS)]
    progress: _Progress
    fingerprint: Annotated[dict[_Text, _Text], Field(max_length=_MOST_FACTS)]


def check(state: State) -> None:
    """Refuse a state that no fit saves; raises ValueError with the key."""
    try:
        _State.model_validate(state)
    except ValidationError as error:
        if error.error_count() > _MOST_FACTS:
            raise JsonError(f"it has {error.error_count()} wrong values") from None
        first = error.errors(include_url=False)[0]
        key = "/".join(map(str, first["loc"]))[:200]
        value = "missing" if first["type"] == "missing" else shown(first["input"])
        raise JsonError(f"{key} is {value}: {first['msg'][:200]}") from None


def check_fit(state: State, model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse tensors of other names, shapes or types than this run's, in a state after `check`.

    Raises:
        ValueError: with the name of the tensor and both shapes.
    """
    own, saved = model.state_dict(), state["model"]  # DTensors have the whole's shape
    odd = sorted(map(str, own.keys() ^ saved.keys()))
    if odd:
        raise JsonError(f"its model has missing or unexpected keys: {', '.join(odd[:5])[:200]}")
    parts = {"model": saved}
    if "averaged" in state:
        parts["averaged"] = mapping(state["averaged"])
        if parts["averaged"].keys() != saved.keys():
            raise JsonError("its averaged weights are those of another model")
    for part, tensors in parts.items():
        for key, tensor in own.items():
            if isinstance(tensor, Tensor) and not is_lazy(tensor):  # loading gives it its shape
                _check_like(f"{part}/{key}", tensors[key], tensor)
    kept = state["optimizer"]
    _check_groups(kept.get("param_groups"), optimizer)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    state_of: dict[Any, Any] = mapping(kept.get("state"))
    for number, values in state_of.items():
        if type(number) is not int or not 0 <= number < len(weights):
            raise JsonError(
                f"optimizer/state has {shown(number)}, and there are {len(weights)} weights"
            )
        for key in mapping(values).keys() & _LIKE_WEIGHTS:
            if values[key] is not None:
                where = f"optimizer/state/{number}/{key}"
                _check_like(where, values[key], weights[number], of_type=False)


def _check_groups(groups: Any, optimizer: Optimizer) -> None:
    own = optimizer.param_groups
    if not isinstance(groups, list) or len(groups) != len(own):
        raise JsonError(f"optimizer/param_groups is not a list of {len(own)} groups")
    for saved, group in zip(groups, own, strict=True):
        params = mapping(saved).get("params")
        if not isinstance(params, list) or len(params) != len(group["params"]):
            raise JsonError("optimizer/param_groups has groups of other weights")
        for key in saved.keys() & group.keys() - {"params"}:
            set_here = saved[key] is not None and group[key] is not None
            if set_here and _kind(saved[key]) != _kind(group[key]):
                raise JsonError(f"optimizer/param_groups has {shown(saved[key])} as {key}")


def _kind(value: object) -> str:
    if isinstance(value, bool | Tensor):
        return type(value).__name__
    if isinstance(value, int | float):
        return "number"
    return "sequence" if isinstance(value, list | tuple) else type(value).__name__


def _check_like(where: str, value: Any, own: Tensor, of_type: bool = True) -> None:
    if not isinstance(value, Tensor):
        raise JsonError(f"{where} is {name(value)}, and must be a tensor")
    same_kind = value.dtype.is_floating_point == own.dtype.is_floating_point
    if value.shape != own.shape or (of_type and not same_kind):
        raise JsonError(
            f"{where} is {value.dtype}{list(value.shape)}, and this run's is "
            f"{own.dtype}{list(own.shape)}"
        )
