"""Metrics that ranks have counted apart, merged into one.

torchmetrics can do so by itself, with a collective for each state of each metric, and waits for
ever where a rank's list of predictions is empty and the others' are not. Here all states travel as
one object, and every rank adds them up in the order of the ranks, so all get the same number.

Only this file uses names that are not public in torchmetrics; tested with torchmetrics 1.9.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from penstock.distributed.group import Group

if TYPE_CHECKING:
    from torchmetrics import Metric

Counted = list[tuple[int, dict[str, Any]]]  # of each metric: updates, and its state
_PRIVATE = ("_computed", "_reductions", "_to_sync", "_update_count")  # attributes of a metric


def count_apart(metrics: Mapping[str, Metric]) -> None:
    """Keep metrics from gathering what other ranks have counted whenever they are computed.

    A rank may compute alone: before the first step, where the others have no sample; for a picture.
    """
    for metric in _parts(metrics):
        metric.sync_on_compute = metric._to_sync = False


def is_metric(value: object) -> TypeGuard[Metric]:
    """Whether it is a metric of torchmetrics."""
    from torchmetrics import Metric

    return isinstance(value, Metric)


def _parts(metrics: Mapping[str, Metric]) -> list[Metric]:
    """The metrics, and those that they are composed of."""
    modules = chain.from_iterable(metric.modules() for metric in metrics.values())
    return [part for part in modules if is_metric(part)]


def counted(metrics: Mapping[str, Metric]) -> Counted:
    """The states of the metrics since their reset; on the CPU."""
    every = _parts(metrics)
    for metric in every:
        _check(metric)
    states = [{name: _to(getattr(m, name), "cpu") for name in m._reductions} for m in every]
    return [(m.update_count, s) for m, s in zip(every, states, strict=True)]


def merge(metrics: Mapping[str, Metric], group: Group) -> None:
    """Let every metric hold what all ranks have counted; to be called by all of them."""
    if group.alone:
        return
    every = _parts(metrics)
    shares = group.gather(counted(metrics))
    for number, metric in enumerate(every):
        counts = [share[number] for share in shares if share[number][0]]
        metric._update_count, metric._computed = sum(count for count, _ in counts), None
        for name, reduction in metric._reductions.items() if counts else ():
            values = [_to(state[name], metric.device) for _, state in counts]
            setattr(metric, name, _reduced(values, reduction))


def _check(metric: Metric) -> None:
    lacking = [name for name in _PRIVATE if not hasattr(metric, name)]
    if lacking:
        import torchmetrics

        raise ImportError(
            f"torchmetrics {torchmetrics.__version__} is other inside than 1.9.0, with which "
            f"Penstock was tested: {type(metric).__name__} has no {', '.join(lacking)}. Install "
            "that version, or a newer Penstock"
        )


def _to(value: Any, device: Any) -> object:
    return [state.to(device) for state in value] if isinstance(value, list) else value.to(device)


def _reduced(values: list[Any], reduction: Any) -> Any:
    if isinstance(values[0], list):
        return list(chain.from_iterable(values))
    stacked = torch.stack(values)
    return stacked if reduction is None else reduction(stacked)
