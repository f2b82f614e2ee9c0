"""Image statistics of the training split."""

import json

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from penstock.errors import DataError
from penstock.files.disk import DiskError
from penstock.transforms.image import Normalize
from penstock.transforms.statistics import scales, statistics_of


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


def test_a_kept_file_that_is_damaged_is_made_again(tmp_path):
    got = statistics_of(Images(), tmp_path)
    path = tmp_path / "statistics" / "abc.json"
    path.write_text('{"mean": [0.5')
    assert statistics_of(Images(), tmp_path) == json.loads(path.read_text()) == got


def test_data_without_images_is_refused(tmp_path):
    class Numbers(Images):
        def __getitem__(self, row):
            return {"label": 0}

    with pytest.raises(DataError, match="sample 0 has no image"):
        statistics_of(Numbers(), tmp_path)


def test_a_constant_channel_is_not_scaled(tmp_path):
    dataset = Images()
    for row, image in enumerate(dataset.images):
        image[1], image[2] = 0, 77
        image[2, 0, 0] += row % 2  # as JPEG leaves a constant one
    got = statistics_of(dataset, tmp_path)
    assert got["std"][0] < 1
    assert got["std"][1:] == [1.0, 1.0]
    assert statistics_of(dataset, tmp_path) == got  # kept as it was found
    normalized = Normalize(got)(dataset[0])["image"]
    assert normalized.isfinite().all()
    assert normalized[1:].abs().max() < 0.01


def test_floats_are_as_normalize_takes_them(tmp_path):
    dataset = Images()
    dataset.images = [image.double() / 255 for image in dataset.images]
    own = statistics_of(dataset, tmp_path / "floats")
    bytes_of = statistics_of(Images(), tmp_path / "bytes")
    torch.testing.assert_close(torch.tensor(own["mean"]), torch.tensor(bytes_of["mean"]))
    torch.testing.assert_close(torch.tensor(own["std"]), torch.tensor(bytes_of["std"]))


def test_a_scale_is_never_rounding_noise():
    columns = [[0.3, 0.1 + 0.2], [5.0, 5.0 + 1e-12], [0.0, 0.0], [1e-12, 3e-12], [2e4, 2e4 + 1e-3]]
    values = np.array(columns)
    found = scales(values.std(1), np.abs(values).max(1))
    np.testing.assert_array_equal(found, [1.0, 1.0, 1.0, values[3].std(), values[4].std()])


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        DiskError, match=r"file/statistics cannot be written: a file is among its folders"
    ):
        statistics_of(Images(), tmp_path / "file")
