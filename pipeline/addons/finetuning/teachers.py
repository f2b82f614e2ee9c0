"""Models that teach others and do not learn: the teachers of a distillation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from penstock.addons.finetuning import weights
from penstock.errors import ConfigError, Problem


class Teacher(nn.Module):
    """A model with the weights of a run or a file, which gives its outputs and never learns.

    It stays in evaluation mode whatever the model around it is set to, its outputs carry no
    gradient, and its weights stand in no optimizer. Held by an objective, it is in no checkpoint.

    Args:
        model: the same as that of the weights.
        path: a run's folder, a checkpoint, or a file of weights.
        rename: how names of the file begin, and how they do in the model.

    Raises:
        ConfigError: the weights do not fit the model.
    """

    def __init__(self, model: nn.Module, path: str, rename: dict[str, str] | None = None) -> None:
        super().__init__()
        matched = weights.match(
            model, weights.read(Path(path).expanduser(), "path"), (), rename, ""
        )
        if matched.odd or not matched.tensors:
            reason = f"{path!r} does not fit {type(model).__name__}: {matched}"
            raise ConfigError(Problem("path", reason))
        weights.load(model, matched)
        self.model = model
        self.requires_grad_(False).train(False)

    def train(self, mode: bool = True) -> Teacher:
        return super().train(False)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        import torch

        with torch.no_grad():
            return self.model(*inputs, **options)
