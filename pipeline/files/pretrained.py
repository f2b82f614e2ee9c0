"""Pretrained weights of torchvision, read without unpickling anything but tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from penstock.errors import ConfigError, Problem, UnreachableError
from penstock.terminal import one_line


def read_weights_as_tensors() -> None:
    """Let torchvision read weights with `weights_only`, from now on in this process.

    By default it unpickles them, which can run any code, and checks a hash only when it downloads,
    not for a file that is in torch's cache (TORCH_HOME) already.
    """
    from torchvision.models import WeightsEnum

    # torchvision has no option for it; all of its builders go through this method.
    WeightsEnum.get_state_dict = _tensors_of


def _tensors_of(weights: Any, *args: Any, **options: Any) -> dict[str, Any]:
    path = Path(torch.hub.get_dir(), "checkpoints", weights.url.rpartition("/")[2])
    try:
        return torch.hub.load_state_dict_from_url(
            weights.url, *args, **{**options, "weights_only": True}
        )
    except OSError as error:  # urllib's are of that kind
        raise UnreachableError(
            f"the pretrained weights {path.name} cannot be fetched ({one_line(error)}). Download "
            f"{weights.url} where that host can be reached, and put it into {path.parent}; or set "
            "weights to null to start from random ones"
        ) from error
    except Exception as error:
        reason = f"{path} holds more than tensors, or is damaged ({one_line(error)[:200]})"
        raise ConfigError(
            Problem("weights", f"{reason}; delete it to download it again")
        ) from error
