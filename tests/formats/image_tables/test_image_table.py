"""Images and a table of what is known of each."""

import csv

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from penstock.addons.image_tables.image_table import DrawnScenes, ImageTable
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError
from penstock.files.limits import Limits
from penstock.loading.encoded import EncodedImage

HEAD = ["path", "label", "age", "text", "patient", "part", "tags", "flag"]


def rows():
    return [
        [
            f"im/{row:02}.jpg",
            "cat" if row % 4 else "dog",
            row / 2,
            f"caption {row}",
            f"p{row // 3}",
            "train" if row % 5 else "validation",
            "cat| dog" if row % 3 else "owl",
            row % 2,
        ]
        for row in range(40)
    ]


def write(path, rows, head=HEAD, encoding="utf-8", delimiter=","):
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows([head, *rows])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "im").mkdir()
    random = np.random.default_rng(0)
    for row in range(40):
        pixels = random.integers(0, 255, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"im/{row:02}.jpg")
    write(folder / "t.csv", rows())
    return folder


def table(folder, split="train", file="t.csv", **columns):
    return ImageTable(str(folder), file, split, **columns)


def test_columns_become_fields(folder):
    data = table(folder, label="label", numbers=["age", "flag"], caption="text")
    row = rows()[data.rows[3]]
    sample = data[3]
    assert data.classes == ["cat", "dog"]
    assert data.facts == {"num_classes": 2, "num_outputs": 2}
    assert sample["image"].shape == (3, 20, 24)
    assert data.classes[sample["label"]] == row[1]
    assert sample["numbers"].tolist() == [row[2], row[7]]
    assert sample["caption"] == row[3]
    assert table(folder, numbers=["age"]).facts == {"num_outputs": 1}
    assert isinstance(table(folder, lazy=True)[0]["image"], EncodedImage)


def test_several_labels_by_names_or_by_columns(folder):
    data = table(folder, label="label", labels="tags")  # several classes, and not one beside
    assert data.facts["num_classes"] == 3
    assert not data.fields.keys() - {"labels"}
    assert data.classes == ["cat", "dog", "owl"]
    expected = [1.0, 1.0, 0.0] if data.rows[0] % 3 else [0.0, 0.0, 1.0]
    assert torch.equal(data[0]["labels"], torch.tensor(expected))
    val = table(folder, "val", labels="tags")
    assert val.fields["labels"][:, 2].sum() == 3  # of 14 owls a fifth, as of all
    data = table(folder, labels=["flag"])
    assert data.classes == ["flag"]
    assert data[0]["labels"].tolist() == [float(data.rows[0] % 2)]


def test_metadata_has_all_columns(folder):
    data = table(folder, label="label")
    metadata = data.metadata
    assert {*HEAD, "class"} == {*metadata.columns}
    assert metadata["path"][0] == data.path(0)
    assert metadata["age"].dtype == np.float64
    assert metadata["class"].tolist() == [data.classes[code] for code in metadata["label"]]


def test_splits_keep_classes_and_what_a_column_says(folder):
    val = table(folder, "val", label="label")
    assert val.metadata["class"].value_counts().to_dict() == {"cat": 6, "dog": 2}
    assert len(table(folder, "val", split_column="part")) == 8
    splits = [
        table(folder, split, shares=Shares(test=0.1), label="label")
        for split in ("train", "val", "test")
    ]
    assert [len(split) for split in splits] == [28, 8, 4]
    assert {*splits[1].names} == {*val.names}
    assert len({name for split in splits for name in split.names}) == 40


def test_neither_order_nor_format_of_the_table_matters(folder):
    columns = {"label": "label", "numbers": ["age"], "caption": "text"}
    known = table(folder, **columns).fingerprint
    write(folder / "other.csv", rows()[::-1])
    write(folder / "other.tsv", rows(), delimiter="\t")
    write(folder / "wide.csv", rows(), encoding="utf-16")
    frame = pd.read_csv(folder / "t.csv")
    frame.to_parquet(folder / "t.parquet")
    assert table(folder, file="other.csv", **columns).fingerprint == known
    assert table(folder, file="other.tsv", **columns).fingerprint == known
    assert table(folder, file="wide.csv", encoding="utf-16", **columns).fingerprint == known
    assert table(folder, file="t.parquet", **columns).fingerprint == known


def test_a_file_in_several_rows_is_in_one_split(folder):
    write(folder / "twice.csv", [*rows(), *rows()])
    with pytest.raises(DataError, match=r"row 40, column 'path': 'im/00.jpg' is in an earlier row"):
        table(folder, file="twice.csv")
    parts = [table(folder, split, "twice.csv", repeated=True) for split in ("train", "val")]
    assert [len(part) for part in parts] == [64, 16]
    assert not {*parts[0].names} & {*parts[1].names}


@pytest.mark.parametrize(
    ("column", "value", "columns", "message"),
    [
        (0, "im/zz.jpg", {}, r"row 3, column 'path': 'im/zz.jpg' is missing"),
        (0, "", {}, r"row 3, column 'path': a missing value"),
        (
            1,
            "rat",
            {"label": "label", "classes": ["cat", "dog"]},
            r"'rat' is none of the classes cat, dog",
        ),
        (1, "", {"label": "label"}, r"column 'label': a missing value"),
        (2, "nan", {"numbers": ["age"]}, r"row 3, column 'age': a missing value is not a number"),
        (2, "1e39", {"numbers": ["age"]}, r"row 3, column 'age': '1e\+39' is beyond float32"),
        (2, "1,5", {"numbers": ["age"]}, r"'1,5' is not a number"),
        (3, "", {"caption": "text"}, r"column 'text': a missing value"),
        (5, "trian", {"split_column": "part"}, r"none of train, val, test"),
        (7, "2", {"labels": ["flag"]}, r"neither 0 nor 1"),
    ],
)
def test_a_wrong_cell_is_named(folder, column, value, columns, message):
    changed = rows()
    changed[3][column] = value
    write(folder / "wrong.csv", changed)
    with pytest.raises(DataError, match=message):
        table(folder, file="wrong.csv", **columns)


def test_wrong_arguments(folder, tmp_path):
    write(folder / "german.csv", rows(), delimiter=";")
    for arguments, message in (
        ({"label": "lable"}, r"no column 'lable'; did you mean 'label'\?"),
        ({"file": "german.csv"}, r"is dataset.delimiter another one"),
    ):
        with pytest.raises(ConfigError, match=message):
            table(folder, **arguments)
    with pytest.raises(DataError, match=r"dataset\.table: .*t\.csv' is missing"):
        table(tmp_path)
    with pytest.raises(DataError, match=r"limits.classes"):
        table(folder, label="text", limits=Limits(classes=20))


def test_drawn_scenes_say_what_is_in_them(tmp_path):
    data = DrawnScenes(str(tmp_path), count=6, labels="labels", label=None, caption="caption")
    assert data.classes == sorted(data.classes)
    caption, words = data[0]["caption"], data.fields["labels"][0].nonzero()[0]
    assert all(data.classes[word] in caption for word in words)
    # A larger number begins with the same pictures.
    more = DrawnScenes(str(tmp_path), count=8, shares=Shares(0.0))
    names = {*data.names}
    for name in names:
        first, second = (next(tmp_path.glob(f"{n}x64*")) / name.decode() for n in (6, 8))
        assert first.read_bytes() == second.read_bytes()
    assert names < {*more.names}
