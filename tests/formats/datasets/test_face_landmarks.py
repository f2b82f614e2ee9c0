"""Faces with landmarks: the samples, and every mistake that a CSV can have."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from penstock.datasets.face_landmarks import FaceLandmarks
from penstock.datasets.reading.base import Shares
from penstock.errors import DataError
from penstock.loading.encoded import notices
from tests.support.face_folder import read_csv, write_csv, write_faces

FACES = Path(__file__).parents[3].parent / "shared" / "data" / "faces"


@pytest.fixture
def folder(tmp_path):
    return write_faces(tmp_path / "faces")


def refused(folder, match, **arguments):
    with pytest.raises(DataError, match=match):
        FaceLandmarks(str(folder), **arguments)


def test_a_sample(folder):
    data = FaceLandmarks(str(folder), shares=Shares(0.0))
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
    before = FaceLandmarks(str(folder), shares=Shares(0.0))
    prints = {before.fingerprint, FaceLandmarks(str(folder)).fingerprint}
    prints.add(FaceLandmarks(str(folder), shares=Shares(0.0), reader="pillow").fingerprint)
    write_csv(folder, put(4, 10, "17.5")(read_csv(folder)))
    prints.add(FaceLandmarks(str(folder), shares=Shares(0.0)).fingerprint)
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
    data = FaceLandmarks(str(folder), shares=Shares(0.0))
    assert data[3]["landmarks"][2].tolist() == [304.0, 305.0]


def test_a_missing_root_names_its_key(tmp_path):
    refused(tmp_path / "none", r"dataset\.root: .*none.* is missing\. Set dataset\.root")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "is not a folder")


def put(line, column, value):
    """What puts a value into a line (from 1) and a column of the CSV."""

    def change(rows):
        rows[line - 1][column] = value
        return rows

    return change


NO_NUMBERS = ["", "nan", "inf", "1e40", "left", "1,5"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [], r"face_landmarks\.csv' needs a header .* and a row"),
        (lambda rows: [[]], r"face_landmarks\.csv' needs a header .* and a row"),
        (lambda rows: rows[:1], r"face_landmarks\.csv' needs a header .* and a row"),
        (lambda rows: [row[:11] + row[12:] for row in rows], "column 'part_5_x' is missing"),
        (lambda rows: [row[:-1] for row in rows], "column 'part_67_y' is missing"),
        (put(1, 0, "file"), "line 1: column 'image_name' is missing"),
        (put(1, 3, "part_0_x"), "line 1: column 'part_0_x' appears twice"),
        (lambda rows: [*rows[:3], rows[3][:90]], "line 4: 90 values, but the header has 137"),
        (lambda rows: [*rows[:3], [*rows[3], "1"]], "line 4: 138 values, but the header has 137"),
        (put(9, 0, "02.jpg"), "line 9, column 'image_name': '02.jpg' is already in line 4"),
        (put(9, 0, " "), "line 9, column 'image_name': the value is empty"),
        *[
            (put(6, 5, text), rf"csv', line 6, column 'part_2_x': '{text}' is not a finite number")
            for text in NO_NUMBERS
        ],
    ],
)
def test_mistakes_of_a_csv(folder, change, message):
    write_csv(folder, change(read_csv(folder)))
    refused(folder, message)


def test_a_csv_that_is_no_text_or_missing(folder):
    (folder / "face_landmarks.csv").write_bytes(b"\xff\xfe\x00image_name")
    refused(folder, "in UTF-8")
    (folder / "face_landmarks.csv").unlink()
    refused(folder, r"face_landmarks\.csv': No such file.*dataset\.csv")


def test_few_landmarks_and_images_in_subfolders(tmp_path):
    folder = write_faces(tmp_path / "few", landmarks=5)
    (folder / "more").mkdir()
    (folder / "03.jpg").rename(folder / "more" / "03.jpg")
    write_csv(folder, put(5, 0, "more/03.jpg")(read_csv(folder)))
    data = FaceLandmarks(str(folder), shares=Shares(0.0))
    assert data.facts["num_landmarks"] == 5
    assert data.path(9).endswith("more/03.jpg")
    assert data[9]["image"].shape == (3, 33, 40)


def test_a_missing_image_names_file_and_line(folder):
    (folder / "04.jpg").unlink()
    refused(folder, r"face_landmarks\.csv', line 6: its image .*04\.jpg' is missing")
    refused(folder, r"line 2: its image .*elsewhere.*00\.jpg' is missing", images="elsewhere")


def test_an_image_that_vanishes_is_named(folder):
    data = FaceLandmarks(str(folder), shares=Shares(0.0))
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
    upright = FaceLandmarks(str(folder), shares=Shares(0.0))
    stored = FaceLandmarks(str(folder), shares=Shares(0.0), orientation="ignore")
    assert stored[2]["image"].shape == (3, 32, 40)
    assert not notices
    assert upright[2]["image"].shape == (3, 40, 32)
    assert "is turned as its EXIF says" in notices.pop("turned")
    assert upright.fingerprint != stored.fingerprint


@pytest.mark.skipif(not FACES.is_dir(), reason="the shared data is not here")
@pytest.mark.parametrize("reader", ["torchvision", "pillow", "skimage"])
def test_the_real_faces(reader):
    train = FaceLandmarks(str(FACES), reader=reader)
    val = FaceLandmarks(str(FACES), "val", reader=reader)
    assert (len(train), len(val)) == (55, 14)
    assert train[0]["image"].shape[-2:] == train[0]["landmarks"].canvas_size
