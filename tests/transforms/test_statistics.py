"""Image statistics of the training split."""

import json

import pytest
import torch
from torchvision import tv_tensors

from penstock.errors import DataError
from penstock.transforms.statistics import statistics_of


class Images:
    fingerprint = "abc"

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.images = [
            torch.randint(0, 256, (3, 4 + i, 9), dtype=torch.uint8, generator=generator)
            for i in range(20)
        ]
        self.reads = 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        self.reads += 1
        return {"image": tv_tensors.Image(self.images[row]), "label": 0}


def test_statistics_are_those_of_all_pixels_and_are_computed_once(tmp_path):
    dataset = Images()
    got = statistics_of(dataset, tmp_path)
    pixels = torch.cat([image.flatten(1) for image in dataset.images], 1).double() / 255
    torch.testing.assert_close(torch.tensor(got["mean"]).double(), pixels.mean(1))
    expected = pixels.std(1, correction=0)
    torch.testing.assert_close(torch.tensor(got["std"]).double(), expected)
    assert dataset.reads == 20
    assert statistics_of(dataset, tmp_path) == got
    assert dataset.reads == 20
    assert json.loads((tmp_path / "statistics" / "abc.json").read_text()) == got
    assert [path.name for path in (tmp_path / "statistics").iterdir()] == ["abc.json"]


def test_data_without_images_is_refused(tmp_path):
    class Numbers(Images):
        def __getitem__(self, row):
            return {"label": 0}

    with pytest.raises(DataError, match="sample 0 has no image"):
        statistics_of(Numbers(), tmp_path)
