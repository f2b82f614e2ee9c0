"""Pretrained weights of torchvision, read without unpickling anything but tensors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch

from pipeline.errors import ConfigError, Problem


def read_weights_as_tensors() -> None:
    """Let torchvision read weights with `weights_only`, from now on in this process.

    By default it unpickles them, which can run any code, and checks a hash only when it downloads,
    not for a file that is in torch's cache (TORCH_HOME) already.
    """
    from torchvision.models import WeightsEnum

    WeightsEnum.get_state_dict = _tensors_of


def _tensors_of(weights: Any, *args: Any, **options: Any) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.hub.load_state_dict_from_url(
            weights.url, *args, **{**options, "weights_only": True}
        )
    except pickle.UnpicklingError as error:
        where = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(weights.url).path).name
        raise ConfigError(Problem("weights", f"{where} holds more than tensors, so it is not read; "
                                  "delete it to download it again")) from error  # fmt: skip
    return state
