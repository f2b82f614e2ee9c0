"""`experiment=video`, small: it trains, its report has strips, it resumes, and gives one digest."""

import json

import pytest

from tests.support.program import run

pytest.importorskip("av")
SMALL = ["dataset.root=data", "dataset.count=12", "dataset.frames=4", "dataset.pixels=32"]
SMALL += ["transform.train.crop.size=[32,32]", "batch.size=4", "tracker=none", "cache_dir=cache"]
SMALL += ["experiment=video", "data.split.val=0.34"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.thorough
def test_it_trains_and_clips_are_shown_as_strips(capsys, folder, reports):
    done = run(capsys, *SMALL, "loader=debug", "run_dir=run", "trainer.max_steps=2")
    assert done.code == 0, done.err
    assert "lack a part" not in done.err
    assert "class frequencies" in done.out
    page = (folder / "run" / "report.html").read_text()
    assert page.count('class="tiles strips"') >= 3
    from PIL import Image

    with Image.open(folder / "run" / "predictions.jpg") as sheet:
        assert sheet.width > 500  # a strip of eight frames
    facts = json.loads((folder / "run" / "report" / "facts.json").read_text())
    assert {batch["kind"] for batch in facts["batches"]} == {"clips"}
