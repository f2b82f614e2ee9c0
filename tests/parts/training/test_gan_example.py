"""docs/examples/gan: an objective with steps of its own, run from its folder, and resumed."""

from tests.support.program import ROOT, run

EXAMPLE = ROOT / "docs" / "examples" / "gan"


def test_the_example_runs_and_resumes_to_the_bit(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    words = ["--trust", "gan", "--config-dir", EXAMPLE / "conf", "experiment=gan"]
    words += ["dataset.root=drawn", "dataset.count=24", "batch.size=8", "model.width=8"]
    words += ["model.size=16", "transform.train.resize.size=[16,16]", "loader.num_workers=0"]
    words += ["tracker=none", "trainer.progress=none", "trainer.pictures=false"]
    words += ["trainer.report=false", "trainer.device=cpu", "trainer.max_epochs=2"]
    for more in (
        "run_dir=whole",
        "run_dir=part trainer.max_steps=4",
        "resume=part trainer.max_steps=null",
    ):
        done = run(capsys, *words, "trainer.checkpoint.every_steps=1", *more.split())
        assert done.code == 0, done.err
    assert "distance" in done.out
    ledgers = [(tmp_path / name / "ledger.jsonl").read_text() for name in ("whole", "part")]
    assert ledgers[0] == ledgers[1]
    assert len(ledgers[0].splitlines()) == 6
