"""A configured loader that `Accelerator.prepare` passes on as it is, since it knows torch's alone.

It says nothing of what it does not know, so the loader says it when it is iterated.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from penstock.loading.loader import Loader

log = logging.getLogger(__name__)

_said = False


def warn(loader: Loader) -> None:
    """Warn, once in a process, where an Accelerator was made: no loader of its own comes here."""
    global _said
    state: Any = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    if _said or not getattr(state, "_shared_state", None):
        return
    _said = True
    log.warning(
        "an Accelerator is set up, and this loader is none that it knows: batches are on %s, "
        "accumulation does not end with an epoch, and save_state leaves out where it stands. "
        "Iterate accelerator.prepare(penstock.TorchLoader(loader)) instead",
        loader.world.device,
    )
