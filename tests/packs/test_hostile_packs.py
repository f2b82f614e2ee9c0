"""Packs that somebody else has written: refused with a reason, whatever they say of themselves."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torchvision import tv_tensors

from penstock.addons.packs.fields import Encode
from penstock.addons.packs.folder import PackWriter
from penstock.addons.packs.packed import Packed
from penstock.addons.packs.table import write_table
from penstock.errors import DataError
from penstock.files.limits import Limits
from tests.pack_files import NO_ANSWERS


def sample(row):
    return {
        "image": tv_tensors.Image(torch.zeros(3, 4, 5, dtype=torch.uint8)),
        "boxes": tv_tensors.BoundingBoxes(torch.zeros(2, 4), format="XYXY", canvas_size=(4, 5)),
        "label": row % 2,
        "text": "a" * row,
        "odd": torch.zeros(row + 1),
    }


@pytest.fixture
def pack(tmp_path):
    encoded = Encode()([sample(row) for row in range(4)])
    writer = PackWriter(tmp_path, encoded["fields"])
    writer.append(encoded["columns"], encoded["fields"])
    writer.finish({"fingerprint": "x", **NO_ANSWERS})
    return tmp_path


def test_a_sound_one_is_read(pack):
    assert Packed(str(pack))[3]["text"] == "aaa"


def changed(pack, name, **values):
    """Change what the pack says of a field, or of itself."""
    record = json.loads((pack / "pack.json").read_text())
    at = next((one for one in record["fields"] if one["name"] == name), record)
    at |= values
    record["files"] = {name: (pack / name).stat().st_size for name in record["files"]}
    (pack / "pack.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("file", "array"),
    [
        ("image", np.zeros((4, 4, 5), np.uint8)),
        ("image", np.zeros((4, 4, 5, 3), np.float32)),
        ("image", np.array(["x"] * 4)),
        ("boxes", np.zeros((4, 2, 4))),
        ("boxes.canvas", np.zeros((4, 1), np.int32)),
        ("boxes.canvas", np.zeros((4, 2))),
        ("label", np.zeros(4)),
        ("label", np.zeros((4, 2), np.int64)),
        ("text", np.zeros(6, np.int64)),
        ("text.offsets", np.zeros(5)),
        ("text.offsets", np.zeros(4)),
        ("odd", np.zeros((10, 1), np.float32)),
        ("odd.shapes", np.zeros((4, 2), np.int32)),
        ("odd.offsets", np.zeros((5, 1), np.int64)),
    ],
    ids=range(14),
)
def test_numbers_that_are_not_those_of_their_field_are_refused(pack, file, array):
    np.save(pack / f"{file}.npy", array)
    changed(pack, "")
    data = Packed(str(pack))
    with pytest.raises(DataError, match="damaged"):
        data[1]
    with pytest.raises(DataError, match="damaged"):
        data.__getitems__([1, 2])


@pytest.fixture
def tabled(tmp_path):
    """A pack with a table of numbers, texts and categories, and with lengths."""
    table = pd.DataFrame(
        {"n": [1, 2, 3, 4], "t": ["a", None, "ccc", ""], "c": pd.Categorical(["x", "y", "x", "x"])}
    )
    encoded = Encode()([{"label": row} for row in range(4)])
    writer = PackWriter(tmp_path, encoded["fields"])
    writer.append(encoded["columns"], encoded["fields"])
    np.save(tmp_path / "table.lengths.npy", np.arange(4))
    described = write_table(tmp_path, table)
    told = NO_ANSWERS | {"table": described, "lengths": True, "path": described[1]}
    writer.finish({"fingerprint": "x", **told})
    return tmp_path


def test_a_sound_table_is_read(tabled):
    data = Packed(str(tabled))
    assert data.metadata["t"].tolist()[::2] == ["a", "ccc"]
    assert data.path(2) == "ccc"
    assert data.lengths.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("file", "array", "asks"),
    [
        ("table.0", np.zeros(5), "metadata"),
        ("table.0", np.zeros((4, 2)), "metadata"),
        ("table.0", np.array(["x"] * 4), "metadata"),
        ("table.1.offsets", np.array([0, 9, 1, 4, 4]), "metadata"),
        ("table.1.offsets", np.array([0, -1, 1, 4, 4]), "path"),
        ("table.1.offsets", np.array([0, 1, 2**40, 2**41, 4]), "path"),
        ("table.1.offsets", np.zeros(2, np.int64), "path"),
        ("table.1.offsets", np.zeros(5), "path"),
        ("table.1.missing", np.zeros(3, bool), "metadata"),
        ("table.2", np.zeros(4), "metadata"),
        ("table.2", np.full(4, 7, np.int32), "metadata"),
        ("table.lengths", np.arange(3), "lengths"),
        ("table.lengths", np.zeros(4), "lengths"),
    ],
    ids=range(13),
)
def test_a_table_that_is_not_one_is_refused(tabled, file, array, asks):
    np.save(tabled / f"{file}.npy", array)
    changed(tabled, "")
    data = Packed(str(tabled))
    with pytest.raises(DataError, match="damaged"):
        data.path(1) if asks == "path" else getattr(data, asks)


def test_a_table_has_no_more_rows_than_may_be(tabled):
    with pytest.raises(DataError, match=r"a table of 4 rows, more than limits\.files=3"):
        _ = Packed(str(tabled), limits=Limits(files=3)).metadata
