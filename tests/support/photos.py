"""Pictures of classes, and a batch of them without any transform."""

import torch
from torchvision import tv_tensors

from penstock.loading.collate import Stack
from penstock.loading.fetch import Fetch
from penstock.order.plan import Plan
from penstock.order.samplers import Sequential

CLASSES = 5


def photo(number, height=64, width=80):
    """Something with smooth parts, edges and noise, uint8[3, H, W]."""
    drawn = torch.Generator().manual_seed(number)
    coarse = torch.rand(1, 3, 7, 9, generator=drawn) * 255
    image = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")[0]
    image[:, height // 3 : height // 2, width // 4 : width // 2] = (
        torch.rand(3, 1, 1, generator=drawn) * 255
    )
    image[:, :, -10:] += torch.randn(3, height, 10, generator=drawn) * 30
    return image.clamp(0, 255).round().to(torch.uint8)


class Photos:
    """Pictures of classes."""

    def __init__(self, length=40):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"image": tv_tensors.Image(photo(index)), "label": index % CLASSES}


def batch_of(dataset=None, rows=8, start=0, **more):
    """A collated batch without any transform."""
    plan = Plan(Sequential(len(dataset or Photos())), rows)
    return Fetch(dataset or Photos(), None, Stack(), 0, **more)(plan.request(0, start))
