"""Keeps a loader, and its position, with frameworks that would otherwise lose them.

None of them passes itself on to a loader, so the caller's frame says who asks.

    Accelerate  `prepare` puts a DataLoader of torch's instead of any that does not say that it
                is prepared. Ours prepares itself when it is asked.
    Lightning   resumes from a checkpoint behind the last batch of an epoch with the next epoch, and
                does not ask for the end of the one before; so do scripts for Fabric that count.
    Fabric      counts epochs from 0 in every process, and tells a sampler so.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

_ACCELERATOR = "accelerate.accelerator"
_LIGHTNING = (
    "lightning.pytorch.utilities.combined_loader",
    "pytorch_lightning.utilities.combined_loader",
)
_FABRIC = "lightning.fabric.wrappers", "lightning_fabric.wrappers"
_NOTHING = object()  # a batch may be None


class KeptByAccelerate:
    """A DataLoader that `Accelerator.prepare` keeps."""

    @property
    def _is_accelerate_prepared(self) -> bool:
        frame = sys._getframe(1)
        if frame.f_globals.get("__name__") != _ACCELERATOR:
            return False
        try:
            prepare = import_module("penstock.addons.frameworks.accelerate").prepare_in_place
        except ImportError as error:
            return lost(str(error))
        prepared: bool = prepare(self, frame.f_locals.get("self"))
        return prepared


def lost(why: str) -> bool:
    """Warn that Accelerate takes torch's loader; False."""
    log.warning(
        "Accelerate replaces penstock's DataLoader by torch's: %s. Keyed draws, workers that "
        "restart and exact states are lost; to keep them, do not prepare the loader",
        why,
    )
    return False


def is_lightning(frame: FrameType) -> bool:
    """Whether a loader is asked for an iterator by Lightning's loop, or by Fabric's."""
    return frame.f_globals.get("__name__") in _LIGHTNING + _FABRIC


def is_fabric(frame: FrameType) -> bool:
    """Whether a loader is asked for an iterator by Fabric's."""
    return frame.f_globals.get("__name__") in _FABRIC


def or_next(rest: Iterator[Any], epoch: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """The rest of an epoch, or the next one where nothing is left of it."""
    first = next(rest, _NOTHING)
    if first is _NOTHING:
        rest = epoch()
    else:
        yield first
    yield from rest
