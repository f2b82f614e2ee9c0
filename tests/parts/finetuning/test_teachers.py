"""The distillation of docs/training.md, in a folder of its own."""

import ast
import shlex

import numpy as np
import pytest
from PIL import Image

from penstock.runs import checkpoint
from tests.parts.documents.pages import blocks, commands, write_files
from tests.support.program import run

QUICK = ["trainer=quick", "batch.size=8", "loader.num_workers=0", "tracker=none"]
QUICK += ["trainer.pictures=false", "trainer.report=false"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_files("training.md", tmp_path)
    draw = np.random.default_rng(0)
    for number in range(24):
        place = tmp_path / "insects" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(number % 2 * 100, 156 + number % 2 * 100, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PENSTOCK_TRUST", "small")
    return tmp_path


@pytest.mark.thorough
def test_a_student_learns_from_a_run(folder, capsys, monkeypatch):
    code = next(block for block in blocks("training.md", "python") if "Distillation" in block)
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 20
    ast.parse(code)
    teacher, student = commands("training.md")[-2:]
    for line in (teacher, student):
        words = shlex.split(line.replace("FOLDER", "insects"))[2:]
        more = [] if "run_dir" in line else ["run_dir=outputs/student"]
        done = run(capsys, *words, *QUICK, *more)
        assert done.code == 0, done.err
    assert "model     SmallConvNet: 6," in done.err  # the student's alone
    state = checkpoint.find_newest(folder / "outputs/student").state
    assert all(name.startswith(("features", "head")) for name in state["model"])
    assert len(state["optimizer"]["state"]) == 14
    record = state["progress"]["result"]["history"][-1]
    assert record["train/loss/teacher"] > 0
    assert record["train/loss"] == pytest.approx(
        record["train/loss/teacher"] + record["train/loss/labels"], rel=1e-5
    )
    asked = shlex.split(student.replace("FOLDER", "insects").replace("Net}", "Net, width: 8}"))[2:]
    done = run(capsys, *asked, *QUICK, "run_dir=outputs/other")
    assert done.code == 2
    assert "objective.path: 'outputs/teacher' does not fit SmallConvNet" in done.err
