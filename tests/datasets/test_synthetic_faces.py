"""The drawn faces: the same bytes for the same seed, and landmarks that are where they are said."""

import multiprocessing
from hashlib import sha256

import numpy as np
import pytest
from PIL import Image

from penstock.datasets import synthetic_faces
from penstock.datasets.drawn_faces.drawing import Canvas, disc
from penstock.datasets.drawn_faces.shape import FaceShape, Pose
from penstock.datasets.reading.generated_folder import generated_folder
from penstock.datasets.synthetic_faces import SyntheticFaces
from penstock.datasets.synthetic_sequences import SyntheticSequences
from penstock.errors import ConfigError, DataError
from penstock.files.own_files import NotOwnError


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


def test_a_larger_count_begins_with_the_same_faces(tmp_path):
    SyntheticFaces(str(tmp_path), count=3, size=48)
    SyntheticFaces(str(tmp_path), count=5, size=48)
    few, many = sorted(tmp_path.iterdir())
    few, many = hashes(few), hashes(many)
    del few["face_landmarks.csv"]
    assert few.items() <= many.items()


def test_samples(tmp_path):
    train = SyntheticFaces(str(tmp_path), count=10, size=64)
    val = SyntheticFaces(str(tmp_path), "val", count=10, size=64)
    assert (len(train), len(val)) == (8, 2)
    assert train.facts == {"num_landmarks": 68, "num_outputs": 136}
    for index in range(8):
        sample = train[index]
        assert sample["image"].shape == (3, 64, 64)
        assert sample["image"].float().std() > 5
        assert sample["landmarks"].min() >= 0
        assert sample["landmarks"].max() <= 63


def test_it_is_drawn_once(tmp_path, caplog):
    with caplog.at_level("INFO"):
        SyntheticFaces(str(tmp_path), count=2, size=32)
        SyntheticFaces(str(tmp_path), "val", count=2, size=32)
    assert [record.getMessage() for record in caplog.records] == [
        f"drawing 2 synthetic faces into {tmp_path / '2x32-seed0-v1'}, once; later runs read them"
    ]


def test_one_exact_face():
    """Pinned, so that a change of the drawings is noticed and VERSION is raised."""
    random = np.random.default_rng(0)
    shape = FaceShape.drawn(random)
    marks = shape.landmarks(Pose.drawn(random, shape, 128))
    expected = [[21.644, 30.886], [61.971, 60.813], [49.128, 89.289]]
    np.testing.assert_allclose(marks[[0, 30, 57]], expected, atol=0.01)


@pytest.mark.thorough
def test_the_mean_face_is_a_bad_guess(tmp_path):
    marks = SyntheticFaces(str(tmp_path), count=200, size=32, val_fraction=0.0).landmarks
    error = np.linalg.norm(marks - marks.mean(0), axis=2).mean(1)
    eyes = np.linalg.norm(marks[:, 36] - marks[:, 45], axis=1)
    assert (error / eyes).mean() > 0.3


@pytest.mark.parametrize("yaw", [-0.6, -0.2, 0.0, 0.3, 0.6])
def test_the_jaw_lies_on_the_visible_edge(yaw):
    """No point of a row of the face lies further out than the row's landmark."""
    shape, pose = FaceShape(), Pose(Pose.turned(yaw, 0.0, 0.0), 1.0, np.zeros(2))
    jaw = shape.jaw(pose)
    x, y, z = shape._jaw_rows()
    for t in np.linspace(0, np.pi / 2, 90):
        for side, marks in ((-1, jaw[:8]), (1, jaw[:8:-1])):
            row = np.stack([side * x * np.cos(t), y, z + (0.6 - z) * np.sin(t)], axis=1)[:8]
            assert (side * (pose.project(row) - marks)[:, 0] <= 1e-9).all()


def test_a_mirrored_face_is_its_own_mirror():
    marks = FaceShape(smile=0.5, mouth_open=0.3).landmarks(Pose(np.eye(3), 30.0, np.zeros(2)))
    pairs = [
        (0, 16),
        (8, 8),
        (17, 26),
        (21, 22),
        (36, 45),
        (39, 42),
        (37, 44),
        (41, 46),
        (31, 35),
        (48, 54),
        (50, 52),
        (59, 55),
        (60, 64),
        (67, 65),
        (62, 62),
    ]
    for left, right in pairs:
        np.testing.assert_allclose(marks[left], marks[right] * [-1, 1], atol=1e-9)


def test_shapes_are_drawn_where_they_are_said():
    canvas = Canvas(Image.new("RGB", (64, 64)), 64)
    canvas.fill(disc(np.array([20.3, 40.7]), 9.0, 6.0), (255, 255, 255))
    light = canvas.averaged()[..., 0].astype(np.float64)
    middle = [(light.sum(axis) * np.arange(64)).sum() / light.sum() for axis in (0, 1)]
    np.testing.assert_allclose(middle, [20.3, 40.7], atol=0.12)


def test_two_processes_at_once(tmp_path):
    """One draws, as the ranks of a run have it; the others wait for it."""
    context = multiprocessing.get_context("fork")
    began = context.Barrier(3)
    results = context.SimpleQueue()
    children = [context.Process(target=_made, args=(tmp_path, began, results)) for _ in range(3)]
    for child in children:
        child.start()
    found = [results.get() for _ in children]
    for child in children:
        child.join()
    assert sorted(drew for drew, _ in found) == [0, 0, 1]
    assert len({fingerprint for _, fingerprint in found}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["8x48-seed0-v1"]


def _made(root, began, results):
    draws = []
    write = synthetic_faces._write
    synthetic_faces._write = lambda *arguments: draws.append(1) or write(*arguments)
    began.wait()
    fingerprint = SyntheticFaces(str(root), "train", 8, 48).fingerprint
    results.put((len(draws), fingerprint))


def test_drawn_data_goes_to_the_cache_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "named"))
    SyntheticFaces(count=2, size=32)
    monkeypatch.delenv("PENSTOCK_CACHE")
    SyntheticSequences(count=8)
    made = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*.[cn][sp][vy]")}
    assert made == {
        "named/synthetic_faces/2x32-seed0-v1",
        "xdg/penstock/synthetic_sequences/8x5-120-seed0-v1",
    }
    assert (tmp_path / "named").stat().st_mode & 0o777 == 0o700
    (tmp_path / "named").chmod(0o777)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "named"))
    with pytest.raises(NotOwnError, match="everybody can write"):
        SyntheticFaces(count=2, size=32)


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(DataError, match=r"file.* Set dataset\.root \(or PENSTOCK_CACHE\) to"):
        SyntheticFaces(count=2, size=32)


def test_a_crash_leaves_nothing(tmp_path):
    def write(folder):
        (folder / "part").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generated_folder(tmp_path / "made", write)
    assert [path.name for path in tmp_path.iterdir()] == [".made.lock"]
    assert generated_folder(tmp_path / "made", lambda folder: None).is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_root_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write the data .*Set dataset\.root"):
        SyntheticFaces(str(tmp_path / "file"), count=2, size=32)


def test_a_lost_image_can_be_made_again(tmp_path):
    data = SyntheticFaces(str(tmp_path), count=2, size=32)
    next(tmp_path.rglob("*.jpg")).unlink()
    with pytest.raises(DataError, match=r"is missing\. .* Or delete .*2x32-seed0-v1', and it is"):
        SyntheticFaces(str(tmp_path), count=2, size=32)
    assert len(data) == 1


def test_wrong_arguments(tmp_path):
    with pytest.raises(ConfigError, match=r"dataset\.count: 0 faces; allowed: 1 or more"):
        SyntheticFaces(str(tmp_path), count=0)
    with pytest.raises(ConfigError, match=r"dataset\.size: 16 pixels; allowed: 32 to 1024"):
        SyntheticFaces(str(tmp_path), size=16)
    assert not list(tmp_path.iterdir())
