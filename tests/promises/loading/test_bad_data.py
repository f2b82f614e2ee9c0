"""What is wrong with the data, through the program: one clear message and exit code 3."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.face_folder import read_csv, write_csv, write_faces
from tests.support.program import SHARED, run

ROOT = Path(__file__).parents[3]

FIT = [
    "dataset=face_landmarks",
    "trainer.max_epochs=1",
    "tracker=none",
    "trainer.pictures=false",
    "batch.size=4",
    "trainer.baseline=false",
]


def csv(root):
    return root / "face_landmarks.csv"


def drop_column(root):
    write_csv(root, [row[:-1] for row in read_csv(root)])


def short_row(root):
    rows = read_csv(root)
    write_csv(root, [*rows[:3], rows[3][:-5], *rows[4:]])


def change_cell(value):
    def change(root):
        rows = read_csv(root)
        rows[4][7] = value
        write_csv(root, rows)

    return change


def truncate_image(root):
    path = root / "03.jpg"
    path.write_bytes(path.read_bytes()[:-200])


CASES = {
    "missing column": (drop_column, r"face_landmarks\.csv.*part_67_y"),
    "short row": (short_row, r"face_landmarks\.csv.*line 4.*132 .*137"),
    "NaN": (change_cell("nan"), r"face_landmarks\.csv.*line 5.*part_3_x.*nan"),
    "empty cell": (change_cell(""), r"face_landmarks\.csv.*line 5.*part_3_x"),
    "text": (change_cell("left"), r"face_landmarks\.csv.*line 5.*part_3_x.*'left'"),
    "empty CSV": (lambda root: csv(root).write_text(""), r"face_landmarks\.csv.*needs a header"),
    "no rows": (lambda root: write_csv(root, read_csv(root)[:1]), r"face_landmarks\.csv.*no rows"),
    "no CSV": (lambda root: csv(root).unlink(), r"face_landmarks\.csv"),
    "missing image": (
        lambda root: (root / "03.jpg").unlink(),
        r"face_landmarks\.csv.*line 5.*03\.jpg.*missing",
    ),
    "truncated image": (truncate_image, r"sample \d+ \(epoch 0, step \d+, .*03\.jpg"),
    "no image at all": (
        lambda root: (root / "03.jpg").write_text("hello"),
        r"sample \d+ \(epoch 0, step \d+, .*03\.jpg",
    ),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", CASES)
def test_bad_data(name, tmp_path, monkeypatch, capsys):
    damage, message = CASES[name]
    monkeypatch.chdir(tmp_path)
    root = write_faces(tmp_path / "faces", count=10)
    damage(root)
    outcome = run(capsys, *FIT, f"dataset.root={root}", "data.split.val=0.2")
    assert outcome.code == 3, outcome.err
    assert "Traceback" not in outcome.err
    assert re.search(message, outcome.err), outcome.err
    errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert outcome.out == ""


def test_a_missing_root(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    outcome = run(capsys, *FIT, "dataset.root=nowhere")
    assert outcome.code == 3
    assert re.search(r"nowhere.*dataset\.root", outcome.err), outcome.err
    assert not (tmp_path / "outputs").exists()
    outcome = run(capsys, "dataset=face_landmarks")
    assert outcome.code == 2
    assert re.search(r"dataset\.root", outcome.err)


def test_a_batch_that_cannot_be_stacked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    outcome = run(capsys, "task=digest", "dataset=sequences", "collate=stack", "dataset.count=50")
    assert outcome.code == 3
    assert re.search(
        r"sample \d+ .*field 'sequence': shapes \[\d+, 2\] and \[\d+, 2\]", outcome.err
    )


@pytest.mark.skipif(not SHARED.exists(), reason="the real photographs are not here")
def test_real_photographs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, count in (("face_landmarks", 55), ("image_folder", 244)):
        root = SHARED / {"face_landmarks": "faces", "image_folder": "hymenoptera"}[name]
        outcome = run(capsys, "task=digest", f"dataset={name}", f"dataset.root={root}")
        assert outcome.code == 0, outcome.err
        lines = outcome.hashes
        assert sum(int(line.split()[2]) for line in lines) == count


SPAWNED = ["loader.backend=process", "loader.num_workers=1", "loader.multiprocessing_context=spawn"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", [["loader=debug"], SPAWNED], ids=["main", "spawn"])
def test_no_picture_is_a_program(way, tmp_path):
    """Pillow has Ghostscript run a picture in PostScript, whatever its file is called."""
    canary, program = tmp_path / "canary", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {canary}\n")
    program.chmod(0o755)
    (tmp_path / "data/cat").mkdir(parents=True)
    for name in "abcdefgh":
        text = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
        (tmp_path / f"data/cat/{name}.jpg").write_text(text)
    target = "{_target_: torchvision.datasets.ImageFolder, root: data}"
    (tmp_path / "conf/dataset").mkdir(parents=True)
    (tmp_path / "conf/dataset/theirs.yaml").write_text(
        f"# @package _global_\ndataset: {target}\n"
        "data: {fields: [image, label], validate: false}\n"
    )
    theirs = ["dataset=theirs", "task=digest"]
    done = warm.run(
        [sys.executable, str(ROOT / "run.py"), "--config-dir=conf", *theirs, *way],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, done
    assert "Ghostscript" in done.stderr
    assert not canary.exists()
