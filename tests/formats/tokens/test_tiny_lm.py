"""`experiment=tiny_lm`, small: it trains, resumes, and gives the same batches to all loaders."""

import json
import re

import pytest

from tests.support.program import run

TINY = ["experiment=tiny_lm", "transform.train.tokenize.size=300", "sampler.tokens=32"]
TINY += ["model.width=16", "model.layers=1", "model.heads=2", "batch.size=4", "loader=debug"]
TINY += ["data.split.val=0.2", "dataset.root=text", "tracker=none", "cache_dir=cache"]


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    for number in range(12):
        words = " ".join(f"the {one} of {number * one}" for one in range(60))
        (tmp_path / "text" / f"{number}.txt").write_text(f"{words}\n\fanother page {number}\n")
    return tmp_path


@pytest.mark.thorough
def test_it_learns_drawn_stories_and_is_compared(text, capsys, reports):
    words = [*TINY, "dataset.root=null", "sampler.tokens=64", "model.width=32", "optimizer.lr=1e-2"]
    done = run(capsys, *words, "run_dir=run", "trainer.max_steps=60", "trainer.max_epochs=1")
    assert done.code == 0, done.err
    assert "lack a part" not in done.err
    own, tokens = map(float, re.search(r"^bits_per_byte +(.*)$", done.out, re.MULTILINE)[1].split())
    assert own < tokens - 0.3
    manifest = json.loads((text / "run" / "manifest.json").read_text())
    assert manifest["baseline"]["bits_per_byte"] == pytest.approx(tokens, abs=1e-4)
    facts = json.loads((text / "run" / "report" / "facts.json").read_text())
    assert facts["examples"][0] == ["row", "document", "continuation", "model"]
    assert len(facts["examples"]) > 2


@pytest.mark.stress
def test_two_ranks_see_and_learn_the_same(text, capfd):
    plain = [*TINY, "trainer.pictures=false", "trainer.baseline=false", "trainer.max_steps=6"]
    ranks = ["distributed=ddp", "distributed.nproc=2", "trainer.device=cpu"]
    for name, more in (("one", []), ("two", ranks)):
        done = run(capfd, *plain, *more, f"run_dir={name}", "trainer.digest=true")
        assert done.code == 0, done.err
    assert (text / "one/digests.jsonl").read_text() == (text / "two/digests.jsonl").read_text()
    told = [json.loads((text / name / "manifest.json").read_text()) for name in ("one", "two")]
    assert told[0]["order"] == told[1]["order"]
    for name in ("train/loss", "val/loss", "val/bits_per_byte"):
        assert told[0]["last"][name] == pytest.approx(told[1]["last"][name], rel=1e-4)


def test_text_that_is_none(text, capsys):
    for path in (text / "text").iterdir():
        path.write_bytes(b"\xff\xfe")
    done = run(capsys, *TINY, "task=digest", "steps=1")
    assert done.code == 3
    assert re.search(r"\.txt' cannot be read: .* position 0: .*; set dataset.encoding", done.err)
