"""`task=validate`: saved weights on a split."""

import json
import re

import pytest
from PIL import Image
from torch import nn
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.regression import MeanSquaredError

import penstock
from penstock.errors import PenstockError
from penstock.runs import checkpoint
from penstock.tasks.summary import print_table
from penstock.tasks.validate import load_weights, monitored
from penstock.training.objective import Regression
from tests.support.program import run

QUICK = "loader=debug trainer=quick trainer.max_steps=3 tracker=none trainer.pictures=false".split()


def test_the_constant_is_the_best_one_for_the_rows_that_are_measured(capsys, tmp_path):
    """Training has more of a, validation more of b: a model that says b has learned nothing."""
    for split, counts in {"train": {"a": 6, "b": 2}, "val": {"a": 1, "b": 3}}.items():
        for name, count in counts.items():
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for number in range(count):
                picture = Image.new("RGB", (16, 16), (number, 99, 0))
                picture.save(tmp_path / "photos" / split / name / f"{number}.png")
    words = ["dataset=image_folder", f"dataset.root={tmp_path}/photos", *QUICK]
    only_here = "optimizer.eps"  # in the run alone, and taken away from it below
    done = run(capsys, *words, f"+{only_here}=0.001", f"run_dir={tmp_path}/run")
    assert done.code == 0, done.err
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["baseline"]["accuracy"] == 0.75
    assert manifest["baseline_name"] == "class frequencies"
    for split, accuracy in (("val", 0.75), ("train", 0.75)):
        done = run(
            capsys, "task=validate", f"run={tmp_path}/run", f"split={split}", f"~{only_here}"
        )
        (row,) = [line.split() for line in done.out.splitlines() if line.startswith("accuracy ")]
        assert float(row[2]) == accuracy


def test_a_folder_gives_the_configuration(faces, capsys, tmp_path):
    words = [*faces, *QUICK, "model.width=6", "trainer.limit_batches.val=1"]
    fitted = run(capsys, *words, "run_dir=run")
    assert fitted.code == 0, fitted.err
    row = next(line.split() for line in fitted.out.splitlines() if line.startswith("nme "))
    best = "run/checkpoints/best.safetensors"
    for given in (
        ["run=run"],
        ["checkpoint=run"],
        [f"checkpoint={best}"],
        [f"run={best}"],
        ["run=run", f"checkpoint={best}", "loader.num_workers=0"],
        ["checkpoint=run", "trainer.baseline=false", "trainer.device=cpu"],
    ):
        done = run(capsys, "task=validate", *given)
        assert done.code == 0, done.err
        found = next(line.split() for line in done.out.splitlines() if line.startswith("nme "))
        assert found[1] == row[1]
        assert len(found) == (2 if "trainer.baseline=false" in given else 3)
    more = run(capsys, "task=validate", "run=run", "trainer.limit_batches.val=null")
    assert f"nme {row[1]}" not in more.out, "what validation sees may be typed"
    done = run(capsys, "task=validate", "run=run", "model.width=5")
    assert done.code == 1, "what is typed stands on top"
    assert "does not fit the model of this configuration; give run=run. " in done.err
    assert run(capsys, "task=validate").code == 2


def test_weights_of_another_model_are_reported_by_name(faces, capsys):
    words = [*faces, *QUICK]
    assert run(capsys, *words, "run_dir=run").code == 0
    done = run(capsys, *words, "model.width=6", "task=validate", "checkpoint=run")
    assert done.code == 1
    assert re.search(r"give run=run\. \S+ is \[.*\] in the model and \[.*\] in the file", done.err)
    assert len(done.err) < 1500


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("_target_: penstock.training.models.LandmarkNet", "_target_: os.system", "model._target_"),
        ("num_workers: 0", "num_workers: 0\n  worker_init_fn: os.system", "worker_init_fn"),
    ],
)
def test_a_folder_gives_no_trust(faces, capsys, tmp_path, old, new, message):
    assert run(capsys, *faces, *QUICK, "run_dir=run").code == 0
    path = tmp_path / "run" / "config.yaml"
    text = path.read_text()
    assert old in text
    text = text.replace("  worker_init_fn: null\n", "") if "worker_init_fn" in new else text
    path.write_text(text.replace(old, new))
    for given in ("run=run", "checkpoint=run"):
        done = run(capsys, "task=validate", given)
        assert done.code == 2
        assert re.search(message, done.err)


def test_wrong_checkpoints_are_refused(faces, capsys, tmp_path):
    done = run(capsys, *faces, *QUICK, "task=validate", "checkpoint=nowhere")
    assert done.code == 2
    assert "nowhere: it is missing" in done.err
    checkpoint.write(
        tmp_path / "other", *checkpoint.encode({"model": nn.Linear(2, 3).state_dict()})
    )
    with pytest.raises(PenstockError, match=r"does not fit the model.*overrides of its run"):
        load_weights(nn.Linear(3, 2), tmp_path / "other")
    with pytest.raises(PenstockError, match=r"weight is \[2, 3\] in the model and \[3, 2\] in"):
        load_weights(nn.Linear(3, 2), tmp_path / "other")
    checkpoint.write(tmp_path / "none", *checkpoint.encode({"x": 1}))
    with pytest.raises(PenstockError, match="does not fit the model"):
        load_weights(nn.Linear(3, 2), tmp_path / "none")


def objective(**metrics):
    return Regression(nn.MSELoss(reduction="none"), metrics, ["x"], "y")


def test_what_is_best_goes_by_the_first_metric_and_its_direction():
    config = penstock.compose("loader=debug")
    first = objective(accuracy=MulticlassAccuracy(3), mse=MeanSquaredError())
    assert monitored(config, first) == ("accuracy", "max")
    assert monitored(config, objective(mse=MeanSquaredError())) == ("mse", "min")
    assert monitored(config, objective()) == ("loss", "min")
    named = penstock.compose("loader=debug", "trainer.monitor=val/nme")
    assert monitored(named, first) == ("nme", "min")


def test_the_table_has_a_row_a_metric(capsys):
    print_table({"val": {"loss": 0.25, "tiny": 1.5e-7}, "mean face": {"loss": 1.0}})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["val", "mean", "face"], ["loss", "0.2500", "1.0000"], ["tiny", "1.5e-07"]]
