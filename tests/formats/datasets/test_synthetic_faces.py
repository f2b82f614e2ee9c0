"""The drawn faces: the same bytes for the same seed, and landmarks that are where they are said."""

from hashlib import sha256
from random import Random

import pytest

from penstock import compose
from penstock.datasets.files import generated_folder
from penstock.datasets.reading.base import Shares
from penstock.datasets.sequences import SyntheticSequences
from penstock.datasets.synthetic_faces import SyntheticFaces, draw_face
from penstock.errors import ConfigError, DataError


def hashes(folder):
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.*")}


def test_the_same_bytes_for_the_same_seed(tmp_path):
    SyntheticFaces(str(tmp_path / "a"), count=6, size=48)
    SyntheticFaces(str(tmp_path / "b"), count=6, size=48)
    SyntheticFaces(str(tmp_path / "c"), count=6, size=48, seed=1)
    one, same, other = (hashes(tmp_path / name) for name in "abc")
    assert len(one) == 7
    assert one == same
    assert not set(one.values()) & set(other.values())


def test_it_is_drawn_once(tmp_path, caplog):
    with caplog.at_level("INFO"):
        SyntheticFaces(str(tmp_path), count=2, size=32)
        SyntheticFaces(str(tmp_path), "val", count=2, size=32)
    folder = tmp_path / "2x32-seed0-v2"
    assert [record.getMessage() for record in caplog.records] == [
        f"writing {folder}, once; later runs read it"
    ]


def test_the_bytes_are_pinned(tmp_path):
    """On every processor; a change of the drawings raises VERSION."""
    SyntheticFaces(str(tmp_path), count=3, size=64)
    folder = next(tmp_path.iterdir())
    assert hashes(folder)["face_landmarks.csv"][:16] == "3c8f0c8e39b75766"
    pixels = b"".join(draw_face(Random(face), 64)[0].tobytes() for face in range(3))
    assert sha256(pixels).hexdigest()[:16] == "6d4dc8ce38a067b1"


def test_a_face_is_mirrored_by_its_pairs(tmp_path):
    """The mean of many faces is its own mirror, as transforms that flip landmarks take it."""
    marks = SyntheticFaces(str(tmp_path), count=400, size=32, shares=Shares(0.0)).landmarks
    middle = marks.mean(0)
    pairs = [(0, 16), (17, 26), (21, 22), (36, 45), (39, 42), (37, 44), (41, 46), (31, 35)]
    for left, right in [*pairs, (48, 54), (50, 52), (59, 55), (60, 64), (67, 65)]:
        across = (middle[left, 0] + middle[right, 0]) / 2
        assert abs(across - middle[[8, 30, 57], 0].mean()) < 0.5
        assert abs(middle[left, 1] - middle[right, 1]) < 0.5


def test_drawn_data_goes_to_the_cache_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "named"))
    SyntheticFaces(count=2, size=32)
    monkeypatch.delenv("PENSTOCK_CACHE")
    SyntheticSequences(count=8)
    made = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*.[cn][sp][vy]")}
    assert made == {
        "named/synthetic_faces/2x32-seed0-v2",
        "xdg/penstock/synthetic_sequences/8x5-120-seed0-v1",
    }


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(DataError, match=r"file.* Set dataset\.root \(or PENSTOCK_CACHE\) to"):
        SyntheticFaces(count=2, size=32)
    with pytest.raises(DataError, match=r"cannot write the data .*Set dataset\.root"):
        SyntheticFaces(str(tmp_path / "file"), count=2, size=32)


def test_a_crash_leaves_nothing(tmp_path):
    def write(folder):
        (folder / "part").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generated_folder(tmp_path / "made", write, "x")
    assert [path.name for path in tmp_path.iterdir()] == [".made.lock"]
    generated_folder(tmp_path / "made", lambda folder: None, "x")
    assert (tmp_path / "made").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_lost_image_can_be_made_again(tmp_path):
    data = SyntheticFaces(str(tmp_path), count=2, size=32)
    next(tmp_path.rglob("*.jpg")).unlink()
    with pytest.raises(DataError, match=r"is missing\. .* Or delete .*2x32-seed0-v2', and it is"):
        SyntheticFaces(str(tmp_path), count=2, size=32)
    assert len(data) == 1


@pytest.mark.parametrize("word", ["count=0", "size=16", "size=1025"])
def test_wrong_arguments(word):
    with pytest.raises(ConfigError, match=rf"dataset\.{word.partition('=')[0]}: "):
        compose(f"dataset.{word}")
