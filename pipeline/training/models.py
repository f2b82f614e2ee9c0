"""Small networks that train on a CPU in under a minute, and any torchvision classifier by name.

`num_landmarks`, `num_outputs` and `num_features` are facts of the dataset; the build supplies them.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from penstock.config.messages import nearest
from penstock.files.limits import Count
from penstock.files.pretrained import read_weights_as_tensors
from penstock.training.adapter import require


class LandmarkNet(nn.Module):
    """Landmarks as the centres of attention maps, corrected by a linear model of the face's shape.

    1. Strided convolutions make a map of 1/8 of the image's size; a branch at 1/16 that is added
       to it sees the whole face.
    2. A landmark is the mean position under the spatial softmax of its map (Finn et al. 2016,
       "Deep spatial autoencoders"), which moves with the face, so a thousand images suffice.
    3. A linear layer over all points, initially the identity, learns how they depend on each other.

    Forward: image float[B, 3, H, W] -> float32[B, 2 * num_landmarks], x and y of each landmark in
    turn, -1 to 1 from edge to edge of the image. H and W are 32 or more.
    Cost at 64 x 64 and width 16: 158,000 weights, about 0.6 ms a sample forwards and backwards on
    one core.

    Args:
        width: channels of the first convolution; the others have multiples of it.
        sharpness: factor on the maps before the softmax; 1 takes twice the epochs of 5 on drawn
            faces, as the maps stay flat for long.
    """

    def __init__(self, num_landmarks: int, width: Count = 16, sharpness: float = 5.0) -> None:
        super().__init__()
        self.sharpness = sharpness
        self.features = nn.Sequential(
            _convolution(3, width, stride=2),
            _convolution(width, 2 * width, stride=2),
            _convolution(2 * width, 4 * width, stride=2),
        )
        self.context = nn.Sequential(
            _convolution(4 * width, 4 * width, stride=2), _convolution(4 * width, 4 * width)
        )
        self.merge = _convolution(4 * width, 4 * width)
        self.maps = nn.Conv2d(4 * width, num_landmarks, 1)
        self.shape = nn.Linear(2 * num_landmarks, 2 * num_landmarks)
        # The identity at first: before relations are learned, the maps' own points are best.
        nn.init.eye_(self.shape.weight)
        nn.init.zeros_(self.shape.bias)

    def forward(self, image: Tensor) -> Tensor:
        near = self.features(image)
        far = F.interpolate(self.context(near), size=near.shape[-2:])
        maps = self.sharpness * self.maps(self.merge(near + far))
        # In float32 also under autocast: a bfloat16 coordinate steps by a pixel in 256.
        with torch.autocast(image.device.type, enabled=False):
            return self.shape(_centres(maps.float()).flatten(1))


class SmallConvNet(nn.Module):
    """A classifier of four strided convolutions and a mean over the map.

    Forward: image float[B, channels, H, W], H and W from 16 on -> logits float[B, num_outputs].

    Args:
        width: channels of the first convolution; each following one doubles them.
        dropout: before the last layer.
    """

    def __init__(
        self, num_outputs: int, width: Count = 16, dropout: float = 0.0, channels: Count = 3
    ) -> None:
        super().__init__()
        widths = [channels, width, 2 * width, 4 * width, 8 * width]
        self.features = nn.Sequential(*(_convolution(i, o, stride=2) for i, o in pairwise(widths)))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(widths[-1], num_outputs)

    def forward(self, image: Tensor) -> Tensor:
        pooled = self.features(image).mean((-2, -1))
        return self.head(self.dropout(pooled))


class SequenceNet(nn.Module):
    """A recurrent network over sequences of unequal length; padding changes nothing.

    Forward: sequence float[B, T, num_features], lengths int64[B] (1 to T, in any order, on any
    device) -> float[B, num_outputs].

    Args:
        num_features: numbers a time step has.
        num_outputs: classes, or numbers to predict.
        hidden: size of the GRU's state, in each direction.
        dropout: between layers and before the last one.
    """

    def __init__(
        self,
        num_features: int,
        num_outputs: int,
        hidden: Count = 64,
        layers: Count = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.recurrent = nn.GRU(
            num_features,
            hidden,
            layers,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=dropout if layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * hidden if bidirectional else hidden, num_outputs)

    def forward(self, sequence: Tensor, lengths: Tensor) -> Tensor:
        # Packing wants the lengths on the CPU; torch sorts.
        packed = pack_padded_sequence(
            sequence, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, state = self.recurrent(packed)  # [layers * directions, B, hidden], at each one's end
        directions = 2 if self.recurrent.bidirectional else 1
        last = state[-directions:].transpose(0, 1).flatten(1)
        return self.head(self.dropout(last))


class TextNet(nn.Module):
    """Embedded tokens through a recurrent network; padding changes nothing.

    Forward: tokens int64[B, T] below `num_tokens`, lengths int64[B] (1 to T, in any order, on any
    device) -> float[B, num_outputs].

    Args:
        num_tokens: size of the vocabulary, with 0 for padding.
        width: of an embedding.
        num_outputs, hidden, layers, bidirectional: as in `SequenceNet`.
        dropout: of the embeddings, between layers and before the last one.
    """

    def __init__(
        self,
        num_tokens: int,
        num_outputs: int,
        width: Count = 64,
        hidden: Count = 64,
        layers: Count = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, width, padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        self.sequence = SequenceNet(width, num_outputs, hidden, layers, bidirectional, dropout)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.sequence(self.dropout(self.embedding(tokens)), lengths)


class AudioNet(nn.Module):
    """A classifier of features over time; padding changes nothing, not even in training.

    1. Convolutions over time, with the bands as channels, at 1, 1/2 and 1/4 of the frames. Frames
       are normalised one by one, since batch statistics would include padding, and set to zero
       beyond a recording's end before each.
    2. Mean and deviation of each channel over the frames (Snyder et al. 2018, "X-vectors"), and a
       linear layer.

    Forward: features float[B, num_bands, T], lengths int64[B] (1 to T) -> logits
    float[B, num_outputs].
    Cost at width 64, 40 bands and 45 frames: 76,000 weights, 0.3 ms a sample forwards and backwards
    on one core.

    Args:
        width: channels of the convolutions.
        dropout: before the last layer.
    """

    def __init__(
        self, num_bands: int, num_outputs: int, width: Count = 64, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.strides = (1, 2, 2, 1)
        widths = [num_bands, *[width] * len(self.strides)]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(inputs, outputs, 5, stride, padding=2)
            for inputs, outputs, stride in zip(widths[:-1], widths[1:], self.strides, strict=True)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in self.strides)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * width, num_outputs)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        lengths = lengths.to(features.device)
        values = _blanked(features, lengths)
        layers = zip(self.convolutions, self.norms, self.strides, strict=True)
        for convolution, norm, stride in layers:
            frames = convolution(values).transpose(1, 2)
            lengths = (lengths - 1) // stride + 1
            values = _blanked(F.relu(norm(frames)).transpose(1, 2), lengths)
        counts = lengths[:, None]
        mean = values.sum(-1) / counts
        variance = _blanked(values - mean[..., None], lengths).square().sum(-1) / counts
        # The root has no gradient at 0, where the frames of silence are.
        statistics = torch.cat([mean, (variance + 1e-5).sqrt()], dim=1)
        return self.head(self.dropout(statistics))


def torchvision_model(name: str, num_outputs: int, weights: str | None = None) -> nn.Module:
    """A torchvision classification model, of images or videos, with `num_outputs` outputs.

    Args:
        name: as `torchvision.models.list_models` has it, e.g. "resnet18".
        weights: "DEFAULT" or a name such as "IMAGENET1K_V1" (downloaded on first use into torch's
            cache): all layers but the last start from them. None starts from random weights.

    Raises:
        ConfigError: there is no such classification model, or no such weights for it.
    """
    from torchvision import models

    read_weights_as_tensors()
    # Others below this module detect and segment, and give no logits.
    known = [*models.list_models(module=models), *models.list_models(module=models.video)]
    require(
        name in known,
        "model.name",
        f"{name!r} is no torchvision classifier{nearest(name, known)}",
    )
    choices = ["DEFAULT", *(choice.name for choice in models.get_model_weights(name))]
    require(
        weights in (None, *choices),
        "model.weights",
        f"{name} has no weights {weights!r}; it has {', '.join(choices)}",
    )
    # Otherwise the inception family returns a tuple in training, with auxiliary outputs.
    options = {"aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    if weights is None:
        options |= {"init_weights": True} if options else {}
        return models.get_model(name, num_classes=num_outputs, **options)
    model: nn.Module = models.get_model(name, weights=weights, **options)
    _replace_head(model, num_outputs)
    return model


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def _blanked(values: Tensor, lengths: Tensor) -> Tensor:
    """float[B, C, T] with 0 from each row's length on."""
    beyond = torch.arange(values.shape[-1], device=values.device) >= lengths[:, None]
    return values.masked_fill(beyond[:, None], 0.0)


def _centres(maps: Tensor) -> Tensor:
    """Mean position (x, y) under the softmax of each map; float[B, K, H, W] -> float[B, K, 2]."""
    height, width = maps.shape[-2:]
    share = F.softmax(maps.flatten(2), dim=-1).view(maps.shape)
    x = (torch.arange(width, device=maps.device) + 0.5) * (2 / width) - 1
    y = (torch.arange(height, device=maps.device) + 0.5) * (2 / height) - 1
    return torch.stack([share.sum(-2) @ x, share.sum(-1) @ y], dim=-1)


def _replace_head(model: nn.Module, num_outputs: int) -> None:
    """Replace the layer that makes the class scores by a new one."""
    # Every classifier of torchvision registers its head last.
    heads = (nn.Linear, nn.Conv2d, nn.Conv3d)  # squeezenet's is a 1 x 1 convolution, as is s3d's
    name, head = [(n, m) for n, m in model.named_modules() if isinstance(m, heads)][-1]
    fresh = (
        nn.Linear(head.in_features, num_outputs, bias=head.bias is not None)
        if isinstance(head, nn.Linear)
        else type(head)(head.in_channels, num_outputs, head.kernel_size)  # type: ignore[arg-type]
    )
    model.set_submodule(name, fresh)
