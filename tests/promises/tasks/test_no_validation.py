"""`data.validate=false`: training without validation, and who is told so."""

import json
from pathlib import Path

import pytest

from tests.support.few_rows import Records, Rows, words
from tests.support.program import run


@pytest.fixture(autouse=True)
def trusted(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    monkeypatch.chdir(tmp_path)


def fit(capsys, kind=Rows, *more):
    given = [word for word in words(kind, val_rows=0) if not word.startswith(SAID)]
    return run(capsys, *given, "data.validate=false", *more)


SAID = ("trainer.report", "trainer.pictures", "trainer.progress")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", [Rows, Records])
def test_a_run_without_validation_ends_with_its_last_checkpoint(kind, capsys, reports):
    done = fit(capsys, kind)
    assert done.code == 0, done.err
    assert "none to validate" in done.err
    assert "no validation, as data.validate is false" in done.out
    assert "nan" not in done.out
    assert "accuracy" not in done.out
    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert not [key for one in records for key in one if key.startswith("val/")]
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert (manifest["monitor"], manifest["best"]) == (None, None)
    assert "val" not in manifest["data"]
    names = {path.name for path in Path("run/checkpoints").iterdir()}
    assert names, "the last"
    assert not [name for name in names if "best" in name]
    assert "could not be made" not in done.err, done.err
    assert "It had no validation" in Path("run/report.html").read_text()


@pytest.mark.parametrize(
    ("more", "key"),
    [
        (["trainer.monitor=accuracy"], "trainer.monitor"),
        (["trainer.patience=2"], "trainer.patience"),
        (["scheduler={_target_: torch.optim.lr_scheduler.ReduceLROnPlateau}"], "scheduler"),
    ],
)
def test_what_follows_a_metric_is_refused_with_the_way(more, key, capsys):
    done = fit(capsys, Rows, *more)
    assert done.code == 2, done.err
    assert f"{key}: " in done.err
    assert "there is no validation, as data.validate is false; set" in done.err
    assert not Path("run").exists()


def test_other_tasks_read_what_there_is(capsys):
    given = [*words(), "data.validate=false", "split=both"]
    done = run(capsys, "task=check", *given)
    assert done.code == 0, done.err
    first, *others = done.out.splitlines()
    assert first == "8 samples, nothing wrong with them"
    assert not others or others[0].startswith(
        "overlap    4 of test are in train, too (4 with 8 of train"
    )
