"""Metrics that ranks have counted apart, merged into one.

torchmetrics can do so by itself, with a collective for each state of each metric, and waits for
ever where a rank's list of predictions is empty and the others' are not. Here all states travel as
one object, and every rank adds them up in the order of the ranks, so all get the same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from pipeline.distributed.group import Group

if TYPE_CHECKING:
    from torchmetrics import Metric


def merge(metrics: Mapping[str, Metric], group: Group) -> None:
    """Let every metric hold what all ranks have counted; to be called by all of them."""
    if group.alone:
        return
    from torchmetrics import Metric

    # The metrics, and those that they are composed of.
    modules = chain.from_iterable(metric.modules() for metric in metrics.values())
    every = [part for part in modules if isinstance(part, Metric)]
    states = [{name: _to(getattr(m, name), "cpu") for name in m._reductions} for m in every]
    ranks = group.gather([(m._update_count, s) for m, s in zip(every, states, strict=True)])
    for place, metric in enumerate(every):
        counted = [rank[place] for rank in ranks if rank[place][0]]
        # What was gathered here must not be gathered again by the metric itself.
        metric.sync_on_compute = metric._to_sync = False
        metric._update_count, metric._computed = sum(count for count, _ in counted), None
        for name, reduction in metric._reductions.items() if counted else ():
            values = [_to(state[name], metric.device) for _, state in counted]
            setattr(metric, name, _reduced(values, reduction))


def _to(value: Any, device: Any) -> Any:
    return [one.to(device) for one in value] if isinstance(value, list) else value.to(device)


def _reduced(values: list[Any], reduction: Any) -> Any:
    if isinstance(values[0], list):
        return list(chain.from_iterable(values))
    stacked = torch.stack(values)
    return stacked if reduction is None else reduction(stacked)
