"""Classifiers of pictures that timm has, by name: `model=timm model.name=...`.

Not `_target_: timm.create_model`, as that fetches models by their names and unpickles files.
"""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from penstock.config.messages import nearest
from penstock.errors import ConfigError, Problem


def timm_model(
    name: str, num_outputs: int, channels: int = 3, arguments: dict[str, Any] | None = None
) -> nn.Module:
    """A model of timm's with random weights; `trainer.warm_start` gives it others.

    Forward: image float[B, channels, H, W] -> logits float[B, num_outputs].

    Args:
        name: as `timm.list_models()` has it, e.g. "resnet18".
        arguments: further ones of the model's, e.g. {drop_path_rate: 0.1}.

    Raises:
        ConfigError: timm is not installed, there is no such model, or it refuses its arguments.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    files = {"cache_dir", "checkpoint_path"} | {
        key for key in arguments or () if key.startswith("pretrained")
    }
    try:
        import timm

        # Names with a tag, of a hub or of a folder are fetched, or read from there.
        if name not in (known := timm.list_models()):
            raise ValueError(f"no model of timm's{nearest(name, known)}")
        if refused := ", ".join(files & {*(arguments or ())}):
            raise ValueError(f"{refused}: names files or downloads")
        made: nn.Module = timm.create_model(
            name, num_classes=num_outputs, in_chans=channels, **(arguments or {})
        )
    except Exception as error:  # models raise any of them
        way = "Nothing is fetched: weights of a file are trainer.warm_start.path"
        reason = f"{name}: {type(error).__name__}: {str(error)[:200]}. {way}"
        raise ConfigError(Problem("model", reason)) from error
    made.register_forward_pre_hook(_check_size)
    return made


def _check_size(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Refuse pictures of another size than a transformer of patches is made for."""
    patches: Any = getattr(model, "patch_embed", None)
    size, shape = getattr(patches, "img_size", None), tuple(inputs[0].shape[-2:])
    if size and patches.strict_img_size and tuple(size) != shape:
        reason = f"{tuple(size)}, and pictures have {shape}; set it to their height and width"
        raise ConfigError(Problem("model.arguments.img_size", reason))
