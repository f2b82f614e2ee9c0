"""Metrics that ranks have counted apart, as one.

torchmetrics can do so by itself, with a collective for each state of each metric, and waits for
ever where a rank's list of predictions is empty and the others' are not. Here all states travel as
one object, and every rank adds them up in the order of the ranks, so all get the same number.

What is not public in torchmetrics is used in this file only; tested with torchmetrics 1.9.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipeline.distributed.group import Group

if TYPE_CHECKING:
    from torchmetrics import Metric

_PRIVATE = ("_computed", "_reductions", "_to_sync", "_update_count")  # attributes of a metric


def merge(metrics: Mapping[str, Metric], group: Group) -> None:
    """Let every metric hold what all ranks have counted; to be called by all of them."""
    if group.alone:
        return
    every = [part for metric in metrics.values() for part in _parts(metric)]
    for part in every:
        _check(part)
    ranks = group.gather([(part.update_count, _on_cpu(part)) for part in every])
    for place, part in enumerate(every):
        counted = [rank[place] for rank in ranks if rank[place][0]]
        _take(part, sum(count for count, _ in counted), [state for _, state in counted])


def _parts(metric: Metric) -> Iterator[Metric]:
    """The metric, and those that it is made of."""
    from torchmetrics import Metric

    return (part for part in metric.modules() if isinstance(part, Metric))


def _check(metric: Metric) -> None:
    lacking = [name for name in _PRIVATE if not hasattr(metric, name)]
    if lacking:
        import torchmetrics

        raise ImportError(
            f"torchmetrics {torchmetrics.__version__} is other inside than 1.9.0, with which "
            f"Penstock was tested: {type(metric).__name__} has no {', '.join(lacking)}. Install "
            "that version, or a newer Penstock"
        )


def _on_cpu(metric: Metric) -> dict[str, Any]:
    return {name: _moved(getattr(metric, name), "cpu") for name in metric._reductions}


def _moved(value: Any, device: Any) -> Any:
    return [one.to(device) for one in value] if isinstance(value, list) else value.to(device)


def _take(metric: Metric, count: int, states: list[dict[str, Any]]) -> None:
    # What was gathered here must not be gathered again by the metric itself.
    metric.sync_on_compute = metric._to_sync = False
    metric._update_count, metric._computed = count, None
    for name, reduction in metric._reductions.items() if states else ():
        values = [_moved(state[name], metric.device) for state in states]
        setattr(metric, name, _reduced(values, reduction))


def _reduced(values: list[Any], reduction: Any) -> Any:
    if isinstance(values[0], list):
        return list(chain.from_iterable(values))
    stacked: Tensor = torch.stack(values)
    return stacked if reduction is None else reduction(stacked)
