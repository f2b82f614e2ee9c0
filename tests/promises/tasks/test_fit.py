"""`task=fit` on drawn faces: what it prints, what it leaves behind, and how it fails."""

import json
import math
import re
import sys
from types import SimpleNamespace

import pytest

from penstock import program
from penstock.config import hydra
from penstock.errors import ConfigError
from penstock.runs import checkpoint
from penstock.tasks.fit import scheduler_moves
from penstock.tasks.summary import print_report
from penstock.training.loop import Result
from penstock.training.step import TrainOptions
from tests.support.program import run

QUICK = ["loader=debug", "trainer.max_epochs=2", "run_dir=run", "tracker=none"]


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_from_end_to_end(faces, tmp_path, capsys):
    done = run(capsys, *faces, *QUICK[:3], "tracker=tensorboard", "trainer.log_every=5", "seed=7")
    assert done.code == 0, done.err
    folder = tmp_path / "run"

    assert [line.split()[:4] for line in done.err.splitlines() if line.startswith("epoch")] == [
        ["epoch", "0", "of", "2"],
        ["epoch", "1", "of", "2"],
    ]
    first, *rest = done.err.splitlines()
    assert first.startswith("fit: training LandmarkNet on SyntheticFaces; run folder")
    assert [line for line in rest if line.split()[0] in ("data", "model", "loader", "folder")] == [
        "data      SyntheticFaces: 48 samples to train on, 12 to validate; 6 batches of 8 an epoch",
        "model     LandmarkNet: 157,724 parameters, fp32, on cpu",
        "loader    in this process, between the steps (loader.num_workers=0)",
        "folder    run",
    ]
    assert "mean face" in done.out
    assert "| ratio " in done.out
    assert "samples/s" in done.out.splitlines()[-4]
    for name in ("checkpoints/best.safetensors", "predictions.jpg"):
        assert f"run/{name}" in done.out
        assert (folder / name).stat().st_size > 1000
    assert list((folder / "tracker").iterdir())

    said = manifest(folder)
    assert (said["status"], said["seed"], said["reason"]) == ("done", 7, "max_epochs")
    assert said["fingerprint"]["dataset"]
    assert said["overrides"][-1] == "seed=7"
    assert said["last"]["epoch"] == 1
    assert said["baseline"]["nme"] > 0
    lines = records(folder)
    assert [line["event"] for line in lines] == ["log", "epoch", "log", "epoch"]
    assert lines[-1]["val/nme"] == said["last"]["val/nme"]
    assert (
        checkpoint.load(folder / "checkpoints/best.safetensors")["metrics"]["nme"]
        == (said["best"]["val/nme"])
    )


def test_a_metric_that_cannot_take_the_predictions_is_found_before_the_first_step(
    faces, tmp_path, capsys
):
    wrong = "+objective.metrics.x={_target_: torchmetrics.classification.BinaryAccuracy}"
    done = run(capsys, *faces, *QUICK, wrong, "trainer.log_every=1")
    assert done.code == 2
    assert "objective.metrics.x: BinaryAccuracy does not take float32[" in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists(), "nothing was measured yet"


OF_TARGETS = (
    "transform=none model=linear objective=regression batch.size=4 scheduler=none "
    "trainer.report=false"
).split()


def of_targets(shape, told="true"):
    target = "tests.support.own_parts.Targets"
    node = f"+dataset={{_target_: {target}, shape: {list(shape)}, told: {told}}}"
    return ["~dataset", node, *OF_TARGETS, *QUICK]


def test_what_no_metric_gives_is_refused_before_the_first_step(tmp_path, capsys, monkeypatch):
    """Of a metric that needs to be told how many numbers there are, and of a wrong name."""
    monkeypatch.setenv("PENSTOCK_TRUST", "tests.support.own_parts")
    monkeypatch.chdir(tmp_path)
    more = "+objective.metrics.r={_target_: torchmetrics.regression.PearsonCorrCoef}"
    done = run(capsys, *of_targets((3,), told="false"), "+model.out_features=3", more)
    assert done.code == 2
    assert "objective.metrics.r: PearsonCorrCoef does not take" in done.err
    assert "`num_outputs` to match the second dimension of input, but got 1 and 3" in done.err
    done = run(
        capsys,
        *of_targets((3,)),
        "trainer.monitor=mae/7",
        "trainer.baseline=false",
        "run_dir=other",
    )
    assert done.code == 2
    assert (
        "trainer.monitor: is 'mae/7', which validation does not give; it gives loss, mae, mae/0, "
        "mae/1, mae/2"
    ) in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "other" / "metrics.jsonl").exists()


def test_a_loss_of_nan_gives_the_command_that_shows_the_batch(faces, tmp_path, capsys):
    done = run(
        capsys,
        *faces,
        *QUICK,
        "optimizer=sgd",
        "optimizer.lr=1e30",
        "scheduler=none",
        "trainer.clip_norm=null",
        "task=fit",
    )
    assert done.code == 1
    assert "Traceback" not in done.err
    message, again = done.err.strip().splitlines()[-2:]
    assert "the loss is" in message
    assert again.strip().startswith("python run.py dataset.root=")
    words = again.split()
    assert words[-3] == "task=replay"
    assert "task=fit" not in words
    assert manifest(tmp_path / "run")["status"] == "failed"
    replayed = run(capsys, *words[2:], "run_dir=again")  # it can be pasted
    assert replayed.code == 0, replayed.err
    address = " ".join(word.split("=")[1] for word in words[-2:])
    assert f"\n{address} 8 " in replayed.out


def plan(*steps):
    return SimpleNamespace(steps=lambda epoch: steps[epoch % len(steps)])


def test_how_often_the_scheduler_moves():
    assert scheduler_moves(TrainOptions(max_epochs=3), plan(10)) == 30
    assert scheduler_moves(TrainOptions(max_epochs=3, accumulate=4), plan(10)) == 9
    assert scheduler_moves(TrainOptions(max_epochs=3, max_steps=25), plan(10)) == 25
    assert scheduler_moves(TrainOptions(max_epochs=4), plan(10, 8)) == 36
    by_epoch = TrainOptions(max_epochs=9, max_steps=25, schedule="epoch")
    assert scheduler_moves(by_epoch, plan(10)) == 3
    assert scheduler_moves(TrainOptions(max_epochs=3, max_steps=25), plan(None)) == 25
    with pytest.raises(ConfigError, match=r"scheduler: needs the length.*trainer.max_steps"):
        scheduler_moves(TrainOptions(max_epochs=3), plan(None))


def record(epoch, nme):
    return {
        "epoch": epoch,
        "step": 10 * (epoch + 1),
        "train/loss": 1.0,
        "val/loss": 2.0,
        "val/nme": nme,
        "seconds": 2.0 + epoch,
        "samples_per_second": 100.0 * (epoch + 1),
        "wait_share": 0.5 - epoch / 2,
    }


def test_the_report_shows_best_last_and_baseline(capsys):
    history = [record(0, 0.1), record(1, 0.2)]
    result = Result(history, history[0], "patience")
    print_report(result, {"mean face": {"loss": 4.0, "nme": 0.4}}, "nme", "min")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["best,", "epoch", "0", "last,", "epoch", "1", "mean", "face"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:4]}
    assert rows["nme"] == ["0.1000", "0.2000", "0.4000"]
    assert lines[4] == "nme 0.1000 | mean face 0.4000 | ratio 0.25, better"
    assert lines[5] == (
        "epochs 2, steps 20, 5.0 s of training: 160 samples/s, 20% of the time waiting for data; "
        "ended by patience"
    )


@pytest.mark.parametrize(
    ("own", "constant", "mode", "said"),
    [
        (0.5, 0.4, "min", "| ratio 1.25, worse"),
        (0.5, 0.4, "max", "| ratio 1.25, better"),
        (0.4, 0.4, "max", "| ratio 1.00, no better"),
        (0.5, 0.0, "max", "| better"),
        (math.nan, 0.4, "min", "| ratio nan, worse"),
    ],
)
def test_a_ratio_says_which_side_is_good(own, constant, mode, said, capsys):
    result = Result([record(0, own)], record(0, own), "max_epochs")
    print_report(result, {"constant": {"loss": 1.0, "nme": constant}}, "nme", mode)
    assert any(line.endswith(said) for line in capsys.readouterr().out.splitlines())


def test_an_epoch_that_is_no_multiple_of_accumulate_is_told(faces, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["trainer=quick", "trainer.fast_dev_run=true", "tracker=none", "loader=debug"]
    for each, told in ((1, False), (7, True)):
        done = run(capsys, *faces, *words, f"trainer.accumulate={each}", f"run_dir=run{each}")
        assert done.code == 0, done.err
        assert ("none is carried into the next epoch" in done.err) == told


def test_trust_and_folders_are_part_of_the_command_to_paste(monkeypatch):
    monkeypatch.setenv("PENSTOCK_COMMAND", "python run.py --trust mine")
    words = hydra.of_run(["task=fit", "model.name=a b", "epoch=3"])
    again = program.text(*words, "task=replay")
    assert again == "python run.py --trust mine 'model.name=a b' task=replay"
    assert "hydra" in sys.modules  # tasks may know it


def test_a_model_that_does_not_fit_the_data_is_one_message(faces, tmp_path, capsys):
    said = {
        "text_net": r"TextNet does not take image float32\[8, 3, \d+, \d+\]: TypeError: .*missing"
        r".*'lengths'. Choose another model, or arguments that fit",
        "small_unet": r"gives \d+ numbers a sample, but 'landmarks' has \d+",
    }
    for model, text in said.items():
        done = run(capsys, *faces, *QUICK, f"model={model}")
        assert done.code == 2, done.err
        assert re.search(f"error in the configuration: model: {text}", done.err), done.err
        assert "Traceback" not in done.err
        assert not (tmp_path / "run").exists()
