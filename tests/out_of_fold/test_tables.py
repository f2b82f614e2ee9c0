"""Every sample is predicted once, by the fold that did not train on it; also after a resume."""

import csv
import shutil

import pytest

from penstock import command
from penstock.addons.sweeps.job_result import read_results

pytest.importorskip("penstock.addons.tabular")


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.thorough
def test_each_sample_is_predicted_by_the_model_that_did_not_train_on_it(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    lines = [f"{n % 7},{'abc'[n % 3]},p{n // 2},{'yn'[n % 2]}" for n in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["x,kind,who,left", *lines]))
    words = ["dataset=table", "dataset.root=t.csv", "dataset.target=left"]
    words += ["+dataset.split={group: who, test: 0.2}", "+dataset.folds=3", "sweep.folds=all"]
    words += ["trainer.max_epochs=1", "loader.num_workers=0", "batch.size=8"]
    words += ["trainer.report=false", "trainer.pictures=false", "hydra.sweep.dir=sweep"]
    assert command.main(["-m", *words]) == 0
    assert "out of fold  sweep/out_of_fold.csv" in capsys.readouterr().out
    rows = rows_of(tmp_path / "sweep" / "out_of_fold.csv")
    assert len(rows) == 24, "all but those of the test, once"
    assert len({row["row"] for row in rows}) == 24
    folds = {}
    for row in rows:
        number = int(row["row"])
        assert row["truth"] == "yn"[number % 2]
        assert float(row["score/y"]) + float(row["score/n"]) == pytest.approx(1)
        folds.setdefault(number // 2, set()).add(row["dataset.fold"])
    assert all(len(of) == 1 for of in folds.values()), "a group is in one fold"
    for name, result in read_results(tmp_path / "sweep"):
        own = [row for row in rows if row["dataset.fold"] == name]
        right = sum(row["truth"] == row["predicted"] for row in own)
        assert right / len(own) == pytest.approx(result.value), "the metric of the fold's run"
    before = (tmp_path / "sweep" / "out_of_fold.csv").read_bytes()
    part = tmp_path / "sweep" / "1" / "out_of_fold.jsonl"
    kept = part.read_bytes()
    part.unlink()  # as of a job that ran elsewhere
    (tmp_path / "sweep" / "2" / "out_of_fold.jsonl").write_text('{"weights": "others"}\n')
    shutil.rmtree(tmp_path / "sweep" / "0")  # and one is to be done again
    assert command.main(["-m", "resume=sweep"]) == 0
    assert part.read_bytes() == kept
    assert (tmp_path / "sweep" / "out_of_fold.csv").read_bytes() == before
