"""Datasets to be packed, importable by worker processes and by programs that tests start."""

import sys
import time

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import tv_tensors

from penstock.addons.packs.packing import Recipe, pack


class Everything(Dataset):
    """A field of every kind that can be packed; `even` gives all pictures one size."""

    columns = ("label", "word")

    def __init__(self, length=20, even=False, salt=0):
        self.length, self.even, self.salt = length, even, salt
        self.classes = ["no", "yes"]
        self.facts = {"num_classes": 2, "num_outputs": 2}
        self.fingerprint = f"everything-{length}-{even}-{salt}"

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        height, width = (12, 16) if self.even else (8 + index % 5, 10 + index % 3)
        random = np.random.default_rng([self.salt, index])
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        points = torch.from_numpy(random.random((4, 2)).astype(np.float32))
        boxes = torch.tensor([[0.0, 1.0, 3.0, 4.0]] * (2 if self.even else 1 + index % 3))
        canvas = (height, width)
        sample = {
            "image": tv_tensors.Image(torch.from_numpy(pixels).permute(2, 0, 1)),
            "mask": tv_tensors.Mask(torch.from_numpy(pixels[:, :, 0] > 100)),
            "points": tv_tensors.KeyPoints(points, canvas_size=canvas),
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYWH", canvas_size=canvas),
            "label": index % 2,
            "weight": index / 3,
            "flag": index % 3 == 0,
            "array": random.random(3),
        }
        if not self.even:
            sample |= {
                "word": "é" * (index % 4),
                "raw": bytes(range(index % 256)),
                "16/bit": np.int16(-index),
                "number": torch.tensor(index),
                "empty": torch.zeros(index % 2, 3),
            }
        return sample

    @property
    def metadata(self):
        import pandas as pd

        label = [index % 2 for index in range(self.length)]
        return pd.DataFrame(
            {
                "label": label,
                "length": [1 + index % 7 for index in range(self.length)],
                "class": pd.Categorical.from_codes(label, ["no", "yes"]),
                "path": [f"folder/é{index}.jpg" for index in range(self.length)],
                "note": [None if index % 2 else f"n{index}" for index in range(self.length)],
                "when": pd.date_range("2026-01-01", periods=self.length),
                "share": np.linspace(0, 1, self.length),
            }
        )


class Slow(Everything):
    """Takes a while a sample, so that there is time to interrupt."""

    def __getitem__(self, index):
        time.sleep(0.02)
        return super().__getitem__(index)


class Large(Dataset):
    """Pictures of 1 MiB each."""

    fingerprint = "large"

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"image": torch.full((1 << 20,), index % 251, dtype=torch.uint8)}


class Drawing(Everything):
    """Draws at random while it reads."""

    def __getitem__(self, index):
        return {**super().__getitem__(index), "draw": torch.rand(())}


class Changing(Everything):
    """One sample has another type of number."""

    def __getitem__(self, index):
        dtype = torch.int32 if index == 5 else torch.int64
        return {"x": torch.zeros(2, dtype=dtype)}


def write_images(root, count=12, seed=0):
    """Two folders of JPEGs of different sizes."""
    random = np.random.default_rng(seed)
    for number in range(count):
        height, width = (int(side) for side in random.integers(30, 70, 2))
        pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        folder = root / ("ants", "bees")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((width, height)).save(folder / f"{number}.jpg")
    return root


if __name__ == "__main__":  # kind, length, cache_dir: pack, and say where
    made = {"slow": Slow, "large": Large}[sys.argv[1]](int(sys.argv[2]))
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("packing", flush=True)
    print(pack(made, "train", Recipe(), sys.argv[3]))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
