"""Pretrained weights of torchvision, read without unpickling anything but tensors."""

from __future__ import annotations

import pickle
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlparse

import torch

from penstock.errors import ConfigError, PenstockError, Problem, UnreachableError
from penstock.terminal import one_line


def read_weights_as_tensors() -> None:
    """Let torchvision read weights with `weights_only`, from now on in this process.

    By default it unpickles them, which can run any code, and checks a hash only when it downloads,
    not for a file that is in torch's cache (TORCH_HOME) already.
    """
    from torchvision.models import WeightsEnum

    WeightsEnum.get_state_dict = _tensors_of


def _tensors_of(weights: Any, *args: Any, **options: Any) -> dict[str, Any]:
    url = urlparse(weights.url)
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    path = folder / Path(url.path).name
    try:
        state: dict[str, Any] = torch.hub.load_state_dict_from_url(
            weights.url, *args, **{**options, "weights_only": True}
        )
    except pickle.UnpicklingError as error:
        raise ConfigError(
            Problem(
                "weights",
                f"{path} holds more than tensors, so it is not read; "
                "delete it to download it again",
            )
        ) from error
    except (URLError, HTTPException, ConnectionError, TimeoutError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        reason = one_line(cause or type(error).__name__)
        raise UnreachableError(
            f"the pretrained weights {path.name} cannot be fetched from {url.hostname}: {reason}. "
            f"Download {weights.url} where that host can be reached, and put it into {folder}; or "
            "set weights to null to start from random ones"
        ) from error
    except OSError as error:
        raise PenstockError(
            f"the pretrained weights {path.name} cannot be kept in {folder}: "
            f"{error.strerror or error}. TORCH_HOME names another folder"
        ) from error
    except (RuntimeError, EOFError) as error:  # a wrong hash, or half a file
        raise PenstockError(
            f"the pretrained weights in {path} are damaged: {one_line(error)[:200]}. Delete the "
            "file to download it again"
        ) from error
    return state
