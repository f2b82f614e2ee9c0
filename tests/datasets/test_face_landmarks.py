"""Faces with landmarks: the samples, and every mistake that a CSV can have."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from penstock.datasets.face_landmarks import FaceLandmarks
from penstock.errors import ConfigError, DataError
from penstock.loading.encoded import notices
from tests.face_folder import read_csv, write_csv, write_faces

FACES = Path(__file__).parents[2].parent / "shared" / "data" / "faces"


@pytest.fixture
def folder(tmp_path):
    return write_faces(tmp_path / "faces")


def changed(folder, line, column, value):
    """Put `value` into a line (from 1) and a column of the CSV."""
    rows = read_csv(folder)
    rows[line - 1][column] = value
    write_csv(folder, rows)


def refused(folder, match, **arguments):
    with pytest.raises(DataError, match=match):
        FaceLandmarks(str(folder), **arguments)


def test_a_sample(folder):
    data = FaceLandmarks(str(folder), val_fraction=0.0)
    sample = data[3]
    assert isinstance(sample["image"], tv_tensors.Image)
    assert sample["image"].shape == (3, 33, 40)
    assert isinstance(sample["landmarks"], tv_tensors.KeyPoints)
    assert sample["landmarks"].canvas_size == (33, 40)
    assert sample["landmarks"].dtype == torch.float32
    assert sample["landmarks"][2].tolist() == [304.0, 305.0]
    sample["landmarks"] += 1  # a sample is the caller's own
    assert data[3]["landmarks"][2].tolist() == [304.0, 305.0]


def test_length_facts_and_metadata(folder):
    train, val = FaceLandmarks(str(folder)), FaceLandmarks(str(folder), "val")
    assert (len(train), len(val)) == (8, 2)
    assert train.facts == {"num_landmarks": 68, "num_outputs": 136}
    table = val.metadata
    assert tuple(table.columns) == FaceLandmarks.columns
    for row in table.itertuples():
        assert Path(row.path).is_file()
        assert read_csv(folder)[row.line - 1][0] == row.name


def test_the_order_of_rows_changes_nothing(tmp_path):
    one = FaceLandmarks(str(write_faces(tmp_path / "a")))
    other = FaceLandmarks(str(write_faces(tmp_path / "b", order=[7, 2, 9, 0, 1, 8, 3, 6, 5, 4])))
    assert one.names.tolist() == other.names.tolist()
    assert np.array_equal(one.landmarks, other.landmarks)
    assert one.fingerprint == other.fingerprint


def test_the_fingerprint_tells_data_apart(tmp_path):
    folder = write_faces(tmp_path / "a")
    before = FaceLandmarks(str(folder), val_fraction=0.0)
    prints = {before.fingerprint, FaceLandmarks(str(folder)).fingerprint}
    prints.add(FaceLandmarks(str(folder), val_fraction=0.0, reader="pillow").fingerprint)
    changed(folder, 4, 10, "17.5")
    prints.add(FaceLandmarks(str(folder), val_fraction=0.0).fingerprint)
    assert len(prints) == 4


def test_it_travels_to_workers(folder):
    data = FaceLandmarks(str(folder))
    assert len(data.metadata) == len(data)  # and the table does not travel
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy[0]["image"], data[0]["image"])
    assert len(pickle.dumps(data)) < 20_000


def test_columns_in_any_order_and_others_between(folder):
    rows = read_csv(folder)
    write_csv(folder, [[*row[::-1], "note"] for row in rows])
    data = FaceLandmarks(str(folder), val_fraction=0.0)
    assert data[3]["landmarks"][2].tolist() == [304.0, 305.0]


def test_images_in_subfolders(folder):
    (folder / "more").mkdir()
    (folder / "03.jpg").rename(folder / "more" / "03.jpg")
    changed(folder, 5, 0, "more/03.jpg")
    data = FaceLandmarks(str(folder), val_fraction=0.0)
    assert sorted(data.metadata["name"])[-1] == "more/03.jpg"
    assert data[len(data) - 1]["image"].shape == (3, 33, 40)


def test_a_missing_root_names_its_key(tmp_path):
    refused(tmp_path / "none", r"dataset\.root: .*none.* is missing\. Set dataset\.root")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "is not a folder")


def test_a_missing_csv(tmp_path):
    refused(tmp_path, r"face_landmarks\.csv': No such file.*dataset\.csv")


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_csv(folder, text):
    (folder / "face_landmarks.csv").write_text(text)
    refused(folder, r"face_landmarks\.csv' needs a header .* and a row")


def test_a_header_without_rows(folder):
    write_csv(folder, read_csv(folder)[:1])
    refused(folder, r"face_landmarks\.csv' needs a header .* and a row")


def test_a_missing_column(folder):
    rows = read_csv(folder)
    place = rows[0].index("part_5_x")
    write_csv(folder, [row[:place] + row[place + 1 :] for row in rows])
    refused(folder, r"line 1: column 'part_5_x' is missing")


def test_a_missing_name_column(folder):
    changed(folder, 1, 0, "file")
    refused(folder, "line 1: column 'image_name' is missing")


def test_an_odd_number_of_coordinates(folder):
    write_csv(folder, [row[:-1] for row in read_csv(folder)])
    refused(folder, "column 'part_67_y' is missing")


def test_another_number_of_landmarks(tmp_path):
    folder = write_faces(tmp_path / "few", landmarks=5)
    assert FaceLandmarks(str(folder)).facts["num_landmarks"] == 5


def test_a_column_twice(folder):
    changed(folder, 1, 3, "part_0_x")
    refused(folder, "line 1: column 'part_0_x' appears twice")


@pytest.mark.parametrize("count", [90, 138])
def test_a_short_and_a_long_row(folder, count):
    rows = read_csv(folder)
    rows[3] = (rows[3] + ["1"])[:count]
    write_csv(folder, rows)
    refused(folder, f"line 4: {count} values, but the header has 137 columns")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "'' is not a finite number"),
        ("nan", "'nan' is not a finite number"),
        ("inf", "'inf' is not a finite number"),
        ("1e40", "'1e40' is not a finite number"),
        ("left", "'left' is not a finite number"),
        ("1,5", "'1,5' is not a finite number"),
    ],
)
def test_a_value_that_is_no_number(folder, value, said):
    changed(folder, 6, 5, value)
    refused(folder, rf"face_landmarks\.csv', line 6, column 'part_2_x': {said}")


def test_a_name_twice_or_empty(folder):
    changed(folder, 9, 0, "02.jpg")
    refused(folder, "line 9, column 'image_name': '02.jpg' is already in line 4")
    changed(folder, 9, 0, " ")
    refused(folder, "line 9, column 'image_name': the value is empty")


def test_no_text(folder):
    (folder / "face_landmarks.csv").write_bytes(b"\xff\xfe\x00image_name")
    refused(folder, "in UTF-8")


def test_a_missing_image_names_file_and_line(folder):
    (folder / "04.jpg").unlink()
    refused(folder, r"face_landmarks\.csv', line 6: its image .*04\.jpg' is missing")
    refused(folder, r"line 2: its image .*elsewhere.*00\.jpg' is missing", images="elsewhere")


def test_a_truncated_image_is_refused_when_it_is_read(folder):
    (folder / "04.jpg").write_bytes((folder / "04.jpg").read_bytes()[:-200])
    data = FaceLandmarks(str(folder), val_fraction=0.0)
    with pytest.raises(DataError, match=r"04\.jpg' is truncated or damaged"):
        data[4]


def test_an_image_that_vanishes_is_named(folder):
    data = FaceLandmarks(str(folder), val_fraction=0.0)
    (folder / "04.jpg").unlink()
    with pytest.raises(DataError, match=r"04\.jpg' cannot be read: No such file"):
        data[4]
    assert len(data.fingerprint) == 32  # one file that is gone hides nothing of the others


def test_faces_that_exif_turns_are_told_and_can_be_taken_as_stored(folder):
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("02.jpg", "07.jpg"):
        with Image.open(folder / name) as image:
            image.save(folder / name, exif=exif)
    notices.clear()
    upright = FaceLandmarks(str(folder), val_fraction=0.0)
    stored = FaceLandmarks(str(folder), val_fraction=0.0, orientation="ignore")
    assert stored[2]["image"].shape == (3, 32, 40)
    assert not notices
    assert upright[2]["image"].shape == (3, 40, 32)
    assert "is turned as its EXIF says" in notices.pop("turned")
    assert upright.fingerprint != stored.fingerprint


def test_wrong_arguments(folder):
    with pytest.raises(ConfigError, match=r"data\.split"):
        FaceLandmarks(str(folder), "validation")
    with pytest.raises(ConfigError, match=r"dataset\.reader"):
        FaceLandmarks(str(folder), reader="opencv")


@pytest.mark.skipif(not FACES.is_dir(), reason="the shared data is not here")
@pytest.mark.parametrize("reader", ["torchvision", "pillow", "skimage"])
def test_the_real_faces(reader):
    train = FaceLandmarks(str(FACES), reader=reader)
    val = FaceLandmarks(str(FACES), "val", reader=reader)
    assert (len(train), len(val)) == (55, 14)
    assert train[0]["image"].shape[-2:] == train[0]["landmarks"].canvas_size
