"""Refuses configurations that cannot train in lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.addons.lanes.lanes import fitting
from penstock.config.schema import Config


def lanes(config: Config, parts: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    """Rules on `distributed.lanes`."""
    shared = config.distributed
    count = shared.lanes
    off = f"distributed.lanes={count}"
    if shared.strategy == "fsdp":
        yield (
            f"distributed.strategy: fsdp adds gradients up in an order that depends on the ranks, "
            f"and {off} needs one order; set distributed=ddp, or distributed.lanes=null"
        )
    if shared.sync_batchnorm:
        yield (
            f"distributed.sync_batchnorm: true measures the batch of all ranks, and with {off} "
            "each lane is measured by itself; set one of them to false or null"
        )
    if isinstance(shared.nproc, int) and count % shared.nproc and shared.strategy != "none":
        yield (
            f"distributed.lanes: {count} cannot be shared out evenly among distributed.nproc="
            f"{shared.nproc} ranks; {fitting(count)} can"
        )
    if not config.loader.in_order:
        yield f"loader.in_order: false mixes the lanes of different batches, and {off}; set true"
