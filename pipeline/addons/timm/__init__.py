"""Classifiers of pictures that timm has, by name: `model=timm model.name=...`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

from torch import nn

from penstock.errors import ConfigError, Problem

# Those that read files or fetch them, and those that are set here.
_NEVER = {"cache_dir", "checkpoint_path", "exportable", "features_only", "no_jit", "scriptable"}
_OURS = {"in_chans": "model.channels", "num_classes": "data.facts.num_outputs"}


def timm_model(
    name: str, num_outputs: int, channels: int = 3, arguments: dict[str, Any] | None = None
) -> nn.Module:
    """A model of timm's with random weights; `trainer.warm_start` gives it others.

    Forward: image float[B, channels, H, W] -> logits float[B, num_outputs].

    Args:
        name: as `timm.list_models()` has it, e.g. "resnet18".
        arguments: further ones of the model's, e.g. {drop_path_rate: 0.1}: numbers, texts, lists.

    Raises:
        ConfigError: timm is not installed, there is no such model, or it refuses its arguments.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import timm
    except ImportError as error:
        reason = f"timm is not installed ({error}): pip install 'penstock-loader[timm]'"
        raise ConfigError(Problem("model", reason)) from error
    known = timm.list_models()
    if name not in known:
        raise ConfigError(Problem("model.name", f"{name!r} {_reason(name, known)}"))
    arguments = arguments or {}
    for key, value in arguments.items():
        where = f"model.arguments.{key}"
        if key in _OURS:
            raise ConfigError(Problem(where, f"is set by {_OURS[key]}"))
        if key in _NEVER or key.startswith("pretrained"):
            reason = "names files or downloads; weights of a file are trainer.warm_start.path"
            raise ConfigError(Problem(where, reason))
        if isinstance(value, Mapping):
            raise ConfigError(Problem(where, "is a mapping; allowed: numbers, texts and lists"))
    try:
        made: nn.Module = timm.create_model(
            name, pretrained=False, num_classes=num_outputs, in_chans=channels, **arguments
        )
    except (TypeError, ValueError, AssertionError, RuntimeError, KeyError) as error:
        reason = f"{name} refuses its arguments: {str(error)[:200]}"
        raise ConfigError(Problem("model.arguments", reason)) from error
    made.register_forward_pre_hook(_check_size)
    return made


def _check_size(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Refuse pictures of another size than a transformer of patches is made for."""
    patches: Any = getattr(model, "patch_embed", None)
    size = getattr(patches, "img_size", None)
    if size and getattr(patches, "strict_img_size", False):
        own, shape = tuple(size), tuple(inputs[0].shape[-2:])
        if own != shape:
            reason = f"{own}, and pictures have {shape}; set it to their height and width"
            raise ConfigError(Problem("model.arguments.img_size", reason))


def _reason(name: str, known: list[str]) -> str:
    """Why a name is no model."""
    if ":" in name or "/" in name:
        return (
            "would be fetched, and nothing is: give the name of a model of timm's, and its weights "
            "as a file: trainer.warm_start.path"
        )
    model, _, tag = name.partition(".")
    if tag and model in known:
        return (
            f"names weights to be fetched, and nothing is: model.name={model}, and a file of the "
            f"weights {tag} as trainer.warm_start.path"
        )
    near = ", ".join(difflib.get_close_matches(name, known, n=3)) or f"{known[0]}, resnet18"
    return f"is no model of timm's; there is {near} ..."
