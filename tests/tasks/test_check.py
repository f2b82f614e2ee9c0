"""task=check: everything that is wrong with the data, before a run is spent on it."""

import csv
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock import command, terminal
from penstock.datasets.image_folder import ImageFolder
from penstock.runs.quarantine import NAME, read
from penstock.tasks.check import not_finite
from tests import broken_images
from tests.program import SHARED, run

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


@pytest.mark.thorough
def test_one_split(images, capsys):
    train, val = ImageFolder("images", "train"), ImageFolder("images", "val")
    broken_images.cut(Path(train.path(3)))
    outcome = run(capsys, *CHECK, "dataset.root=images", "split=val")
    assert (outcome.code, first(outcome)) == (0, "9 samples, nothing wrong with them")
    broken_images.cut(Path(val.path(2)))
    outcome = run(capsys, *CHECK, "dataset.root=images", "split=val")
    assert (outcome.code, len(outcome.out.splitlines())) == (3, 2)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.thorough
def test_a_bar_on_a_terminal(images, capsys, monkeypatch):
    broken_images.cut(images[0])
    screen = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", screen)
        patch.setenv("TERM", "xterm")
        patch.setattr(terminal, "REFRESH_SECONDS", 0.0)
        patch.setattr(terminal, "FIRST_BAR_SECONDS", 0.0)
        code = command.main([*CHECK, "dataset.root=images", "split=train", "run_dir=run"])
    assert code == 3
    assert len(capsys.readouterr().out.splitlines()) == 2
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert re.search(r"checking train .*36/36.*1 wrong", shown)


@pytest.mark.thorough
def test_a_table_is_checked_row_by_row(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f"{'ham' if n % 3 else 'spam'}\ttext number {n}" for n in range(50)]
    rows[7], rows[30] = "ham", "ham\ttoo\tmany"
    Path("sms.tsv").write_text("label\ttext\n" + "\n".join(rows) + "\n")
    outcome = run(
        capsys,
        "task=check",
        "dataset=delimited_text",
        "dataset.root=sms.tsv",
        "dataset.classes=[ham,spam]",
        "run_dir=run",
    )
    assert outcome.code == 3, outcome.err
    assert len(outcome.out.splitlines()) == 3
    assert "line 9" in outcome.out
    assert "line 32" in outcome.out
    given = f"bad_samples.quarantine=run/{NAME}"
    digest = run(
        capsys,
        "task=digest",
        "dataset=delimited_text",
        "dataset.root=sms.tsv",
        "dataset.classes=[ham,spam]",
        given,
    )
    assert digest.code == 0, digest.err


@pytest.mark.thorough
def test_a_stream_is_checked_record_by_record(tmp_path, monkeypatch, capsys):
    import gzip

    monkeypatch.chdir(tmp_path)
    rows = [f"{'ham' if n % 3 else 'spam'}\ttext number {n}" for n in range(50)]
    rows[7], rows[30] = "ham", "ham\ttoo\tmany"
    with gzip.open("sms.tsv.gz", "wt") as file:
        file.write("label\ttext\n" + "\n".join(rows) + "\n")
    common = ["dataset=delimited_stream", "dataset.root=sms.tsv.gz", "dataset.classes=[ham,spam]"]
    outcome = run(capsys, "task=check", *common, "run_dir=run")
    assert outcome.code == 3, outcome.err
    assert len(outcome.out.splitlines()) == 3, outcome.out
    digest = run(capsys, "task=digest", *common, f"bad_samples.quarantine=run/{NAME}")
    assert digest.code == 0, digest.err


@pytest.mark.thorough
def test_numbers_that_are_not_finite(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    inputs = np.zeros((20, 3), np.float32)
    inputs[4, 1], inputs[9] = np.nan, np.inf
    np.save("inputs.npy", inputs)
    np.save("targets.npy", np.zeros(20, np.int64))
    outcome = run(capsys, "task=check", "dataset=arrays", "dataset.root=.", "run_dir=run")
    assert outcome.code == 3, outcome.err
    assert len(outcome.out.splitlines()) == 3
    assert outcome.out.count("is not finite") == 2
    assert not_finite({"a": torch.zeros(2), "b": 3, "c": "x", "d": np.zeros(2)}) is None
    assert not_finite({"a": float("nan")}) == "field 'a' has 1 of 1 values that are not finite"


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


@pytest.mark.thorough
def test_the_quarantine_of_a_check_is_a_csv(images, capsys):
    broken_images.cut(images[0])
    run(capsys, *CHECK, "dataset.root=images", "run_dir=run")
    with Path("run", NAME).open(newline="") as file:
        (line,) = csv.DictReader(file)
    assert line["path"] == "images/ant/000.jpg"


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
