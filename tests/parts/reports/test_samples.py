"""What a run writes for its report: it is true, and changes nothing."""

import base64
import json
import re
import shlex

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import penstock
from penstock.addons.reports import samples, tiles
from penstock.addons.reports.run_page import read
from penstock.addons.reports.values import replay
from penstock.build.data import DataParts
from penstock.build.training import TrainingParts
from penstock.distributed.world import World
from penstock.runs.run import Run
from penstock.tasks.validate import load_weights
from penstock.training.adapter import Rendered
from tests.support.broken_images import cut, write_images
from tests.support.program import run

QUICK = [
    "trainer=quick",
    "trainer.max_steps=4",
    "loader=debug",
    "trainer.device=cpu",
    "tracker=none",
]


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Overrides for a folder of images in three classes, one of them rare."""
    monkeypatch.chdir(tmp_path)
    for path in write_images(tmp_path / "data")[:7]:
        path.unlink()
    return [
        "dataset=image_folder",
        f"dataset.root={tmp_path / 'data'}",
        "batch.size=8",
        "transform.train.crop.size=[32,32]",
    ]


def test_the_line_beside_a_batch_makes_those_very_pictures_again(faces, reports, tmp_path, capsys):
    assert run(capsys, *faces, *QUICK, "sampler=weighted", f"run_dir={tmp_path / 'run'}").code == 0
    batch = read(tmp_path / "run")["batches"][1]
    assert (batch["epoch"], batch["step"], batch["rows"], batch["kind"]) == (0, 1, 8, "images")
    words = shlex.split(replay(Run(tmp_path / "run"), 0, 1))
    replayed = run(capsys, *words[words.index("run.py") + 1 :], f"run_dir={tmp_path / 'again'}")
    rows = [int(line.split()[1]) for line in replayed.out.splitlines()[1:9]]
    assert rows[:6] == [sample["row"] for sample in batch["samples"]]
    assert (tmp_path / "again" / "batch.png").exists()
    made = load_file(tmp_path / "again" / "batch.safetensors")
    split = DataParts(penstock.compose(*faces), World()).train
    seen = samples.denormalized(made["image"], split.transform)
    assert [base64.b64decode(sample["uri"].partition(",")[2]) for sample in batch["samples"]] == [
        tiles.tile(image, Rendered(points=points))
        for image, points in zip(seen[:6], made["landmarks"][:6], strict=True)
    ]


def test_predictions_are_the_best_the_median_and_the_worst_of_all(faces, reports, tmp_path, capsys):
    small = [*faces, "dataset.count=120", "batch.val_size=5"]
    done = run(capsys, *small, *QUICK, f"run_dir={tmp_path / 'run'}")
    assert done.code == 0, done.err
    assert f"predictions  {tmp_path / 'run/predictions.jpg'}" in done.out
    parts = TrainingParts(penstock.compose(*small, *QUICK))
    model, objective = parts.model().eval(), parts.objective()
    load_weights(model, tmp_path / "run" / "checkpoints" / "best.safetensors")
    with parts.data.val.loader() as loader, torch.no_grad():
        losses = torch.cat([objective.measure(model, batch)[0] for batch in loader.epoch(0)])
    found = read(tmp_path / "run")
    order = losses.argsort().tolist()
    assert len(order) == found["losses"]["samples"] == 24
    expected = {"best": order[:4], "median": order[10:14], "worst": order[-4:][::-1]}
    for group, rows in expected.items():
        shown = [sample for sample in found["predictions"] if sample["group"] == group]
        assert [sample["row"] for sample in shown] == rows
        assert [s["loss"] for s in shown] == pytest.approx(losses[rows].tolist(), rel=1e-4)


def test_a_run_is_the_same_bit_by_bit_with_and_without_a_report(faces, reports, tmp_path, capsys):
    def content(name, wanted):
        more = [
            "trainer.ledger=true",
            "trainer.digest=true",
            "trainer.max_epochs=2",
            "trainer.max_steps=null",
            f"trainer.report={wanted}",
            f"trainer.pictures={wanted}",
        ]
        assert run(capsys, *faces, *QUICK, *more, f"run_dir={tmp_path / name}").code == 0
        folder = tmp_path / name
        assert (folder / "report" / "facts.json").exists() == wanted
        weights = load_file(folder / "checkpoints" / "best.safetensors")
        metrics = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        measured = ("step", "train/loss", "val/loss", "val/nme")
        return (
            (folder / "ledger.jsonl").read_bytes(),
            (folder / "digests.jsonl").read_bytes(),
            {key: value.numpy().tobytes() for key, value in weights.items()},
            [[one.get(key) for key in measured] for one in metrics],
        )

    assert content("with", True) == content("without", False)


def test_a_run_that_fails_tells_its_data(images, reports, tmp_path, capsys):
    words = ["optimizer.lr=1e30", "trainer.clip_norm=null", f"run_dir={tmp_path / 'run'}"]
    assert run(capsys, *images, *QUICK, *words).code == 1
    found = read(tmp_path / "run")
    assert [split["rows"] for split in found["splits"]] == [23, 6]
    assert not found["batches"]


def test_classes_and_samples_that_were_left_out_are_named(images, reports, tmp_path, capsys):
    for path in sorted((tmp_path / "data").rglob("*.jpg"))[2:4]:
        cut(path)
    more = ["bad_samples.on_error=skip", "bad_samples.budget=5", f"run_dir={tmp_path / 'run'}"]
    assert run(capsys, *images, *QUICK, *more).code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "as they could not be read: " in page
    left_out = Run(tmp_path / "run").left_out
    assert len(left_out)
    assert all(path in page for path in left_out["path"])
    shown = read(tmp_path / "run")["predictions"]
    assert all(re.fullmatch(r"(ant|bee|cat) \d+%", sample["predicted"]) for sample in shown)
    for sample in shown:
        assert sample["wrong"] == (sample["predicted"].split()[0] != sample["truth"])


def test_texts_and_numbers_are_listed(tmp_path, monkeypatch, reports, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.tsv").write_text(
        "".join(f"{'ham' if n % 2 else 'spam'}\tno|{n} <b>\n" for n in range(40))
    )
    words = ["dataset=delimited_text", "dataset.root=.", "dataset.file=t.tsv"]
    words += ["dataset.columns=[label,text]", "run_dir=run"]
    done = run(capsys, *words, *QUICK)
    assert done.code == 0, done.err
    for sample in read(tmp_path / "run")["predictions"]:
        assert re.fullmatch(r"no\|\d+ \S+", sample["words"])
        assert re.fullmatch(r"(ham|spam) \d+%", sample["predicted"])
    assert "&lt;b&gt;" in (tmp_path / "run" / "report.html").read_text()
    np.save(tmp_path / "inputs.npy", np.arange(60, dtype=np.float32).reshape(20, 3))
    np.save(tmp_path / "targets.npy", np.linspace(0, 1, 20, dtype=np.float32))
    words = ["dataset=arrays", "objective=regression", "dataset.root=.", "run_dir=numbers"]
    done = run(capsys, *words, *QUICK)
    assert done.code == 0, done.err
    row = min(read(tmp_path / "numbers")["predictions"], key=lambda sample: sample["row"])
    assert re.fullmatch(r"-?[\d.]+", row["truth"])
    assert row["wrong"] is None


def test_signals_are_drawn_without_their_padding(tmp_path, monkeypatch, reports, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["dataset=sequences", "dataset.root=seq", "dataset.count=40", "run_dir=run"]
    assert run(capsys, *words, *QUICK).code == 0
    found = read(tmp_path / "run")
    split = TrainingParts(penstock.compose(*words[:-1], *QUICK)).data.val
    for sample in found["predictions"]:
        steps = len(split.dataset[sample["row"]]["sequence"])
        assert sample["words"] == f"{steps} steps"
        assert sample["uri"].startswith("data:image/")


def test_a_stream_has_batches_and_no_predictions(tmp_path, reports, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.tsv").write_text("".join(f"{'ab'[n % 2]}\tword {n}\n" for n in range(60)))
    words = ["dataset=delimited_stream", "dataset.root=t.tsv", "dataset.columns=[label,text]"]
    words += ["sampler=stream", "batch.size=8", "dataset.classes=[a,b]", "run_dir=run"]
    done = run(capsys, *words, *QUICK)
    assert done.code == 0, done.err
    assert "WARNING" not in done.err
    found = read(tmp_path / "run")
    assert [len(batch["samples"]) for batch in found["batches"]] == [6, 6]
    assert all(row["words"].startswith("word ") for row in found["batches"][0]["samples"])
    assert not found["predictions"]
