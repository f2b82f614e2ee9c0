"""Folders that Hugging Face's `datasets` has saved."""

import numpy as np
import pytest
import torch

from tests.support.table_files import picture

hugging = pytest.importorskip("datasets")

from penstock.addons.tables.table import MappedTable, StreamedTable  # noqa: E402
from penstock.datasets.reading.base import Shares  # noqa: E402


@pytest.fixture(autouse=True)
def quiet():
    hugging.disable_progress_bars()


def rows(count):
    features = hugging.Features(
        {
            "whole": hugging.Value("int32"),
            "real": hugging.Value("float64"),
            "text": hugging.Value("string"),
            "kind": hugging.ClassLabel(names=["b", "a"]),
            "list": hugging.List(hugging.Value("int64")),
            "matrix": hugging.Array2D((2, 3), "float32"),
            "open": hugging.Array3D((None, 2, 2), "int64"),
            "image": hugging.Image(),
        }
    )
    made = {
        "whole": range(count),
        "real": [row / 3 for row in range(count)],
        "text": [f"row {row} é" for row in range(count)],
        "kind": [row % 2 for row in range(count)],
        "list": [[row] * (row % 3) for row in range(count)],
        "matrix": [np.full((2, 3), row, np.float32) for row in range(count)],
        "open": [np.full((1 + row % 2, 2, 2), row) for row in range(count)],
        "image": [{"bytes": picture(row), "path": None} for row in range(count)],
    }
    return hugging.Dataset.from_dict(made, features=features)


def test_every_feature_has_the_value_that_datasets_gives(tmp_path):
    saved = rows(10)
    saved.save_to_disk(tmp_path / "one")
    data = MappedTable(str(tmp_path / "one"), shares=Shares(0.0))
    assert (len(data), data.classes) == (10, ["b", "a"])
    assert data.facts == {"num_classes": 2, "num_outputs": 2, "num_features": 3}
    for row in (0, 3, 9):
        sample, expected = data[row], saved[row]
        for name in ("whole", "text", "kind"):
            assert sample[name] == expected[name]
        for name in ("real", "list", "matrix", "open"):
            assert np.array_equal(sample[name].numpy(), np.array(expected[name], np.float32))
        assert torch.equal(sample["image"], torch.full((3, 8, 8), row, dtype=torch.uint8))
    stream = StreamedTable(str(tmp_path / "one"), shares=Shares(0.0))
    assert [stream.decode(record)["kind"] for record in stream] == list(saved["kind"])


@pytest.mark.parametrize(
    ("parts", "sizes"),
    [
        ({"train": 10, "validation": 4, "test": 3}, (10, 4, 3)),
        ({"train": 10, "unsupervised": 4}, (8, 2)),
        ({None: 10}, (8, 2)),
    ],
)
def test_splits_by_their_names(tmp_path, parts, sizes):
    saved = {name: rows(count) for name, count in parts.items()}
    whole = saved[None] if None in saved else hugging.DatasetDict(saved)
    whole.save_to_disk(tmp_path / "x")
    hugging.load_from_disk(tmp_path / "x").map(lambda row: {"whole": 0})  # leaves cache-*.arrow
    for split, size in zip(("train", "val", "test"), sizes, strict=False):
        assert len(MappedTable(str(tmp_path / "x"), split)) == size
