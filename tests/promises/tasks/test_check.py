"""task=check: everything that is wrong with the data, before a run is spent on it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.datasets.image_folder import ImageFolder
from penstock.runs.quarantine import NAME, read
from penstock.tasks.check import not_finite
from tests.support import broken_images
from tests.support.program import SHARED, run

soundfile = pytest.importorskip("soundfile")

CHECK = ["task=check", "dataset=image_folder", "batch.size=4"]
RATE = 8000


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return broken_images.write_images(tmp_path / "images", 45, 32)


def first(outcome):
    """What the core says; an add-on may say more."""
    return outcome.out.splitlines()[0]


def test_nothing_wrong(images, capsys):
    outcome = run(capsys, *CHECK, "loader.num_workers=1", "dataset.root=images")
    assert (outcome.code, first(outcome)) == (0, "45 samples, nothing wrong with them")
    assert not Path("outputs").exists()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("loader", ["debug", "default"])
def test_all_that_is_wrong_is_listed_and_written(images, loader, capsys):
    broken = [images[row] for row in (1, 4, 17, 25, 33)]
    ways = [*broken_images.WAYS, broken_images.zeros]
    for path, way in zip(broken, ways, strict=True):
        way(path)
    outcome = run(capsys, *CHECK, f"loader={loader}", "dataset.root=images", "run_dir=run")
    assert outcome.code == 3
    header, *lines = outcome.out.splitlines()
    assert header.split() == ["split", "index", "path", "cause"]
    found = {line.split()[2]: line for line in lines}
    assert found.keys() == {str(path.relative_to(Path.cwd())) for path in broken}
    causes = [found[str(path.relative_to(Path.cwd()))] for path in broken]
    words = ["truncated", "truncated", "it is empty", "web page", "zeros only"]
    for cause, word in zip(causes, words, strict=True):
        assert word in cause
    assert "5 of 45 samples are bad" in outcome.err
    assert f"bad_samples.quarantine=run/{NAME}" in outcome.err
    assert {one.path for one in read(Path("run", NAME))} == found.keys()
    for one in read(Path("run", NAME)):
        assert ImageFolder("images", one.split).path(one.index) == one.path
    again = run(
        capsys,
        "task=digest",
        "dataset=image_folder",
        "dataset.root=images",
        f"bad_samples.quarantine=run/{NAME}",
        "bad_samples.budget=0",
    )
    assert again.code == 0, again.err


def tone(seconds=1.0):
    times = np.arange(int(RATE * seconds)) / RATE
    return (np.sin(times * 2764) * 0.5 * (1 + 0.1 * np.cos(times * 31))).astype(np.float32)


@pytest.mark.one_in(2)
@pytest.mark.skipif(not SHARED.exists(), reason="the real data is not here")
@pytest.mark.parametrize(
    ("dataset", "folder", "count"),
    [
        ("face_landmarks", "faces", 69),
        ("image_folder", "hymenoptera", 397),
        pytest.param("spoken_digits", "fsdd", 3000, marks=pytest.mark.stress),
    ],
)
def test_real_data_is_not_suspicious(dataset, folder, count, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = run(capsys, "task=check", f"dataset={dataset}", f"dataset.root={SHARED / folder}")
    assert (outcome.code, first(outcome)) == (0, f"{count} samples, nothing wrong with them")


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"x": torch.tensor([1.0, torch.nan, torch.inf])}, "field 'x' has 2 of 3 values that are"),
        ({"x": np.array([[1.0, np.nan]])}, "field 'x' has 1 of 2 values that are not finite"),
        ({"a": 1, "x": float("inf")}, "field 'x' has 1 of 1 values"),
        ({"x": torch.ones(2), "y": np.ones(2), "z": 1.0}, None),
        ({"x": torch.ones(2, dtype=torch.int64), "y": "text", "z": None}, None),
        ([float("nan")], None),
    ],
)
def test_fields_with_numbers_that_are_not_finite(sample, said):
    found = not_finite(sample)
    assert found is None if said is None else found.startswith(said)
