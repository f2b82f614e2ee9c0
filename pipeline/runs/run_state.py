"""Checks of a fit's checkpoint before it is used: it may come from anybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from penstock.files.plain_json import JsonError, integer, mapping, name, shown
from penstock.runs.state_tree import State

_MOST = 2**53  # epochs, steps and samples: exact in every number that they meet
_LONGEST_HISTORY = 1_000_000
_MOST_FACTS = 10_000
_LONGEST_FACT = 1 << 16  # characters
_OF_A_RECORD = ("epoch", "step", "seconds", "train/loss", "samples_per_second", "wait_share")
_OF_A_METER = ("total", "samples", "seconds", "window_total", "window_samples", "waited")
_LIKE_WEIGHTS = {  # state of torch's optimizers in the shape of a weight
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "momentum_buffer",
    "square_avg",
    "grad_avg",
    "acc_delta",
}
_REASONS = ("max_epochs", "max_steps", "patience")


def check(state: State) -> None:
    """Refuse a state that no fit saves; raises ValueError with the key."""
    loader, progress = _part(state, "loader"), _part(state, "progress")
    for values, keys in ((loader, ("epoch", "step")), (state, ("batches", "updates"))):
        for key in keys:
            integer(values, key, most=_MOST)
    for part in ("model", "optimizer"):
        _part(state, part)
    _numbers(_part(state, "metrics"), "metrics")
    epoch_metrics = _part(progress, "meter")
    _numbers(epoch_metrics, "progress/meter", _OF_A_METER)
    integer(epoch_metrics, "samples", most=_MOST)
    integer(epoch_metrics, "window_samples", most=_MOST)
    if "losses" in epoch_metrics:  # which older checkpoints lack
        integer(epoch_metrics, "losses", most=_MOST)
    if not isinstance(progress.get("begun"), bool):
        raise JsonError(f"progress/begun is {shown(progress.get('begun'))}, and must be a boolean")
    _check_result(_part(progress, "result"))
    facts = _part(state, "fingerprint")
    if len(facts) > _MOST_FACTS:
        raise JsonError(f"its fingerprint has {len(facts)} keys, more than {_MOST_FACTS}")
    for key, value in facts.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise JsonError(f"fingerprint/{shown(key)} is {name(value)}, and must be a text")
        if len(key) + len(value) > _LONGEST_FACT:
            raise JsonError(f"fingerprint/{shown(key)} is longer than {_LONGEST_FACT} characters")


def _check_result(result: Mapping[str, Any]) -> None:
    known = {"history", "best", "reason", "stale", "order"}
    if result.keys() != known:
        odd = ", ".join(sorted(map(str, result.keys() ^ known))[:5])
        raise JsonError(f"progress/result has missing or unexpected keys: {odd[:200]}")
    integer(result, "stale", most=_MOST)
    if result["reason"] not in _REASONS or not isinstance(result["order"], str):
        raise JsonError("progress/result has an unknown reason, or an order that is not a text")
    history = result["history"]
    if not isinstance(history, list) or len(history) > _LONGEST_HISTORY:
        raise JsonError(
            f"progress/result/history is {name(history)}, and must be a list of at "
            f"most {_LONGEST_HISTORY} records"
        )
    for record in [*history, *([] if result["best"] is None else [result["best"]])]:
        _numbers(mapping(record), "a record of progress/result", _OF_A_RECORD)
        integer(record, "epoch", most=_MOST)
        integer(record, "step", most=_MOST)


def _part(values: Any, key: str) -> dict[str, Any]:
    found = mapping(values).get(key)
    if not isinstance(found, dict):
        has = name(found) if key in values else "missing"
        raise JsonError(f"{key} is {has}, and must be a mapping")
    return found


def _numbers(values: Mapping[str, Any], where: str, needed: Sequence[str] = ()) -> None:
    missing = [key for key in needed if key not in values]
    if missing:
        raise JsonError(f"{where} lacks {', '.join(missing)}")
    for key, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not isinstance(key, str) or not number:
            raise JsonError(f"{where} has {shown(value)} at {shown(key)}, which is not a number")


def check_fit(state: State, model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse tensors of other names, shapes or types than this run's.

    Raises:
        ValueError: with the name of the tensor and both shapes.
    """
    own, saved = model.state_dict(), _part(state, "model")  # DTensors have the whole's shape
    odd = sorted(map(str, own.keys() ^ saved.keys()))
    if odd:
        raise JsonError(f"its model has missing or unexpected keys: {', '.join(odd[:5])[:200]}")
    parts = {"model": saved}
    if "averaged" in state:
        parts["averaged"] = _part(state, "averaged")
        if parts["averaged"].keys() != saved.keys():
            raise JsonError("its averaged weights are those of another model")
    for part, tensors in parts.items():
        for key, tensor in own.items():
            if isinstance(tensor, Tensor) and not is_lazy(tensor):  # loading gives it its shape
                _check_like(f"{part}/{key}", tensors[key], tensor)
    kept = _part(state, "optimizer")
    _check_groups(kept.get("param_groups"), optimizer)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    state_of: dict[Any, Any] = _part(kept, "state")
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


def _kind(value: Any) -> str:
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
