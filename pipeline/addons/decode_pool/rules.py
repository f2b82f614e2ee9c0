"""Which keys of a loader contradict batches that runs hand each other."""

from __future__ import annotations

import os
from collections.abc import Iterator

from penstock.config.nodes import Parts
from penstock.config.schema import Config


def share(config: Config, parts: Parts) -> Iterator[str]:
    loader = config.loader
    if loader.option("share") is None:
        if loader.option("share_size") is not None:
            yield "loader.share_size: nothing is shared; set loader.share=auto, or this to null"
        return
    if not hasattr(os, "geteuid"):
        yield "loader.share: needs locks that only Linux and macOS have; set it to null"
    if loader.worker_init_fn is not None:
        yield (
            f"loader.share: {loader.option('share')} hands batches to other runs, but what "
            f"loader.worker_init_fn={loader.worker_init_fn} does to them is not known; set one of "
            "the two to null"
        )
