"""Networks that classify clips [B, T, C, H, W]: torchvision's by name, and a small one."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from penstock.config.messages import nearest
from penstock.errors import ConfigError, Problem


class TorchvisionVideo(nn.Module):
    """A network of torchvision's, such as r3d_18, with another last layer.

    Forward: video float[B, T, 3, H, W] -> logits float[B, num_outputs]. The network decides which
    T, H and W it takes: r3d_18, mc3_18, r2plus1d_18 and s3d (from 14 frames on) take any, mvit_v2_s
    and swin3d_t 16 frames of 224 x 224.

    Args:
        num_outputs: the number of classes; a fact of the dataset.
        name: of `torchvision.models.video`.
        weights: null for random ones; DEFAULT or a name downloads those of Kinetics-400, and all
            but the last layer start from them.

    Raises:
        ConfigError: there is no such network, or no such weights for it.
    """

    def __init__(self, num_outputs: int, name: str = "r3d_18", weights: str | None = None) -> None:
        super().__init__()
        from torchvision import models

        known = models.list_models(module=models.video)
        if name not in known:
            allowed = f"allowed: {', '.join(known)}"
            reason = f"{name!r} is none of torchvision's{nearest(name, known)}; {allowed}"
            raise ConfigError(Problem("model.name", reason))
        choices = [choice.name for choice in models.get_model_weights(name)]
        if weights not in (None, "DEFAULT", *choices):
            reason = f"{name} has no weights {weights!r}; it has DEFAULT, {', '.join(choices)}"
            raise ConfigError(Problem("model.weights", reason))
        if weights is None:
            self.network = models.get_model(name, num_classes=num_outputs)
        else:
            self.network = models.get_model(name, weights=weights)
            _replace_last(self.network, num_outputs)

    def forward(self, video: Tensor) -> Tensor:
        logits: Tensor = self.network(video.transpose(1, 2))
        return logits


def _replace_last(network: nn.Module, num_outputs: int) -> None:
    """Give the last layer another number of outputs."""
    name, last = [
        (n, m) for n, m in network.named_modules() if isinstance(m, (nn.Linear, nn.Conv3d))
    ][-1]
    parent, _, own = name.rpartition(".")
    new: nn.Module
    if isinstance(last, nn.Linear):
        new = nn.Linear(last.in_features, num_outputs)
    else:
        new = nn.Conv3d(last.in_channels, num_outputs, 1)
    setattr(network.get_submodule(parent), own, new)


class SmallVideoNet(nn.Module):
    """A classifier of convolutions over space, each followed by one over time, and a mean over the
    last map (after Tran et al.: "A closer look at spatiotemporal convolutions", 2018).

    Forward: video float[B, T, 3, H, W], H and W from 16 on -> logits float[B, num_outputs].

    Args:
        num_outputs: the number of classes; a fact of the dataset.
        width: channels of the first layer; the others have 2, 4 and 4 times as many.
    """

    def __init__(self, num_outputs: int, width: int = 16) -> None:
        super().__init__()
        widths = [3, width, 2 * width, 4 * width, 4 * width]
        layers: list[nn.Module] = []
        for number, (inputs, outputs) in enumerate(pairwise(widths)):
            layers += [
                nn.Conv3d(inputs, outputs, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False),
                nn.BatchNorm3d(outputs),
                nn.ReLU(),
                nn.Conv3d(
                    outputs, outputs, (3, 1, 1), (1 + number % 2, 1, 1), (1, 0, 0), bias=False
                ),
                nn.BatchNorm3d(outputs),
                nn.ReLU(),
            ]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], num_outputs)

    def forward(self, video: Tensor) -> Tensor:
        features = self.features(video.transpose(1, 2))
        logits: Tensor = self.head(features.mean((-3, -2, -1)))
        return logits
