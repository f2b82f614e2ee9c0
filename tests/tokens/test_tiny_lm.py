"""`experiment=tiny_lm`, small: it trains, resumes, and gives the same batches to all loaders."""

import json
import re

import pytest

from tests.program import run

TINY = [
    "experiment=tiny_lm",
    "transform.train.tokenize.size=300",
    "sampler.tokens=32",
    "model.width=16",
    "model.layers=1",
    "model.heads=2",
    "batch.size=4",
    "loader=debug",
    "dataset.val_fraction=0.2",
    "dataset.root=text",
    "tracker=none",
    "cache_dir=cache",
]


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


@pytest.mark.thorough
def test_a_resumed_run_is_the_same(text, capsys):
    quick = [*TINY, "trainer.pictures=false", "trainer.baseline=false", "scheduler=none"]
    whole = run(capsys, *quick, "run_dir=whole", "trainer.max_steps=9")
    stopped = run(capsys, *quick, "run_dir=part", "trainer.max_steps=5")
    assert (whole.code, stopped.code) == (0, 0), whole.err + stopped.err
    resumed = run(capsys, *quick, "resume=part", "trainer.max_steps=9")
    assert resumed.code == 0, resumed.err
    ledgers = [(text / name / "ledger.jsonl").read_text() for name in ("whole", "part")]
    assert ledgers[0] == ledgers[1]  # rows and the exact loss of each step
    assert len(ledgers[0].splitlines()) == 9


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "options",
    [
        ["loader.num_workers=1", "loader.backend=thread"],
        pytest.param(["loader.num_workers=2", "loader.backend=process"], marks=pytest.mark.stress),
    ],
)
def test_the_digest_is_the_same_for_all_loaders(text, capsys, options):
    plain = run(capsys, *TINY, "task=digest", "steps=6")
    other = run(capsys, *TINY, *options, "task=digest", "steps=6")
    assert (plain.code, other.code) == (0, 0), plain.err + other.err
    assert plain.out == other.out
    assert len(plain.out.splitlines()) >= 6


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


@pytest.mark.thorough
def test_other_text_is_not_resumed_on(text, capsys):
    quick = [*TINY, "trainer.pictures=false", "trainer.baseline=false", "trainer.max_steps=2"]
    assert run(capsys, *quick, "run_dir=run").code == 0
    for path in (text / "text").iterdir():
        path.write_text(path.read_text() + "more")
    done = run(capsys, *quick, "resume=run", "trainer.max_steps=4")
    assert done.code == 2
    assert "dataset" in done.err


def test_text_that_is_none(text, capsys):
    for path in (text / "text").iterdir():
        path.write_bytes(b"\xff\xfe")
    done = run(capsys, *TINY, "task=digest", "steps=1")
    assert done.code == 3
    assert re.search(r"\.txt', byte 0: it is not utf-8", done.err)
