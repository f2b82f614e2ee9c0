"""Checks of a fit's checkpoint before it is used: it may come from anybody."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from penstock.files.plain_json import JsonError, mapping, name, shown
from penstock.runs.state_tree import State

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
