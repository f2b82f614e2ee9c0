"""Samples with fields of every size, to be packed; importable by processes."""

import torch
from torchvision import tv_tensors

ROWS = 64


class Rows(torch.utils.data.Dataset):
    """Fields of more than 1 MiB, which are fetched row by row, and small ones."""

    fingerprint, draws = "x", False

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        draws = torch.Generator().manual_seed(row)
        pixels = torch.randint(0, 255, (3, 30 + row % 5, 200), dtype=torch.uint8, generator=draws)
        return {
            "image": tv_tensors.Image(pixels),
            "even": torch.rand(6000, generator=draws),
            "little": torch.rand(3, generator=draws),
            "text": "é" * (row % 7),
            "label": row % 2,
        }
