"""Networks that classify clips [B, T, C, H, W]: torchvision's by name, and a small one."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torchvision.ops import Conv3dNormActivation

from penstock.training.models import torchvision_model


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
        self.network = torchvision_model(name, num_outputs, weights)

    def forward(self, video: Tensor) -> Tensor:
        return self.network(video.transpose(1, 2))


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
            step = (1 + number % 2, 1, 1)  # every second layer halves the frames
            layers += [
                Conv3dNormActivation(inputs, outputs, (1, 3, 3), (1, 2, 2), (0, 1, 1)),
                Conv3dNormActivation(outputs, outputs, (3, 1, 1), step, (1, 0, 0)),
            ]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], num_outputs)

    def forward(self, video: Tensor) -> Tensor:
        return self.head(self.features(video.transpose(1, 2)).mean((-3, -2, -1)))
