"""`task=test`, `task=predict` and `task=export`, of runs on pictures and on arrays."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from penstock import Run
from penstock.addons.predicting import export
from penstock.addons.predicting.predict import Journal, data_of, predicted
from tests import program

QUICK = ["trainer=quick", "loader.num_workers=0", "batch.size=4"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("predicting")


@pytest.fixture
def trained(place, capsys, monkeypatch):
    """The folder of a run on 24 pictures of two classes, 5 of which it never read."""
    monkeypatch.chdir(place)
    if not (place / "run").exists():
        generator = np.random.default_rng(0)
        for name in ("cat", "dog", "new"):
            folder = place / name if name == "new" else place / "pictures" / name
            folder.mkdir(parents=True)
            for number in range(12):
                pixels = generator.integers(0, 255, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number:02}.png")
        (place / "new" / "03.png").write_bytes((place / "new" / "03.png").read_bytes()[:200])
        words = ["dataset=image_folder", "dataset.root=pictures", "+dataset.test_fraction=0.2"]
        assert program.run(capsys, *words, *QUICK, "run_dir=run").code == 0
    return place / "run"


def test_the_test_split_is_measured_once(trained, capsys):
    first = program.run(capsys, "task=test", "run=run")
    kept = json.loads((trained / "manifest.json").read_text())["test"]
    assert first.code == 0
    assert f"{kept['metrics']['loss']:.4f}" in first.out
    again = program.run(capsys, "task=test", "run=run")
    assert again.code == 0
    assert "measured once" in again.err
    assert json.loads((trained / "manifest.json").read_text())["test"] == kept
    assert "measured once" in (Run(trained).report().path).read_text()


def test_rows_of_new_files_and_the_damaged_by_name(trained, place, capsys):
    words = ["task=predict", "run=run", "dataset.root=new"]
    assert "1: new/03.png" in program.run(capsys, *words, "out=rows.csv").out
    assert program.run(capsys, *words, "out=rows.parquet", "batch.val_size=5").code == 0
    with (place / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [f"new/{number:02}.png" for number in range(12)]
    assert [row["path"] for row in rows if row["error"]] == ["new/03.png"]
    import pandas as pd

    table = pd.read_parquet(place / "rows.parquet")
    scores = table[["score/cat", "score/dog"]].dropna()
    assert len(scores) == 11
    assert np.allclose(scores.sum(axis=1), 1)
    read = [float(row["score/cat"]) for row in rows if row["score/cat"]]
    assert np.allclose(scores["score/cat"], read, atol=1e-6)
    given = Run(trained).predict([place / "new" / "05.png"])
    assert given[0]["score/cat"] == pytest.approx(read[4], abs=1e-6)


def test_a_prediction_that_was_stopped_goes_on(trained, place, capsys):
    run = Run(trained)
    best = run._trained
    journal = Journal.of(place / "half.jsonl", best.path)
    data = data_of(best, "new", journal)
    journal.begin(data)
    batches = predicted(best, data)
    journal.add(next(batches))
    batches.close()
    with journal.path.open("a") as file:
        file.write('{"row": 4, "pa')  # the process died while it wrote
    words = ["task=predict", "run=run", "dataset.root=new"]
    resumed = program.run(capsys, *words, "out=half.jsonl")
    assert resumed.code == 0
    assert "4 rows are there already" in resumed.err
    rows = [json.loads(line) for line in (place / "half.jsonl").read_text().splitlines()]
    assert [row["row"] for row in rows] == list(range(12))
    assert not journal.path.exists()
    assert rows[5] == {**run.predict("new")[5], "path": "new/05.png"}


def test_what_cannot_be_predicted(trained, place, capsys):
    (place / "there.csv").touch()
    (place / "empty").mkdir(exist_ok=True)
    words = ["task=predict", "run=run"]
    for more, message in (
        (["dataset.root=new", "out=a.txt"], "ends in none of .jsonl, .csv, .parquet"),
        (["dataset.root=new", "out=there.csv"], "exists already"),
        (["dataset.root=new", "out=none/a.csv"], "is in a folder that is missing"),
        (["dataset.root=empty", "out=a.csv"], "has no pictures"),
        (["dataset.root=nowhere", "out=a.csv"], "is missing"),
        (["out=a.csv"], "dataset.root: is missing"),
        (["dataset.root=new", "out=a.csv", "model.width=9"], "would make another one of it"),
    ):
        assert message in program.run(capsys, *words, *more).err
    (place / "b.csv.part").write_text('{"weights": "others", "data": ""}\n')
    refused = program.run(capsys, *words, "dataset.root=new", "out=b.csv").err
    assert "was begun with other weights" in refused


def test_numbers_are_predicted_from_inputs_alone(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    folder = place / "numbers"
    folder.mkdir()
    inputs = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "targets.npy", inputs.sum(1))
    np.save(place / "new.npy", inputs[:6])
    words = ["dataset=arrays", "objective=regression", "dataset.root=numbers"]
    more = ["objective.inputs=[input]", "objective.target=target", "run_dir=linear"]
    assert program.run(capsys, *words, *QUICK, *more).code == 0
    words = ["task=predict", "run=linear", "dataset.root=new.npy", "out=new.jsonl"]
    assert program.run(capsys, *words).code == 0
    rows = [json.loads(line) for line in (place / "new.jsonl").read_text().splitlines()]
    model = Run(place / "linear").model()
    import torch

    assert [row["predicted"] for row in rows] == pytest.approx(
        model(torch.from_numpy(inputs[:6])).flatten().tolist(), abs=1e-6
    )
    refused = program.run(capsys, "task=test", "run=linear").err
    assert "has no rows for the test split" in refused
    assert "test_fraction" in refused


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("format", ["weights", "torch", "onnx"])
def test_a_model_is_exported_and_computes_the_same(trained, place, capsys, format):
    if format == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    ending = {"weights": "safetensors", "torch": "pt2", "onnx": "onnx"}[format]
    out = f"model.{ending}"
    words = ["task=export", "run=run", f"format={format}"]
    made = program.run(capsys, *words, f"out={out}")
    assert made.code == 0, made.err
    about = json.loads((place / f"{out}.json").read_text())
    assert about["classes"] == ["cat", "dog"]
    (field,) = about["inputs"]
    assert about["outputs"] == [{"dtype": "float32", "shape": ["batch", 2]}]
    means = about["transform"]["samples"]["normalize"]["statistics"]
    assert len(means["mean"]) == 3  # numbers, where the configuration says "dataset"
    model = Run(trained).model()
    pictures = torch.rand(7, *field["shape"][1:])
    with torch.no_grad():
        expected = model(pictures)
    if format == "weights":
        weights = load_file(place / out)
        assert weights.keys() == model.state_dict().keys()
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    elif format == "torch":
        torch.testing.assert_close(torch.export.load(place / out).module()(pictures), expected)
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(place / out, providers=["CPUExecutionProvider"])
        (logits,) = session.run(None, {field["name"]: pictures.numpy()})
        assert np.abs(logits - expected.numpy()).max() < 1e-4 * expected.abs().max()
    again = program.run(capsys, *words, f"out={out}")
    assert again.code == 2
    assert "exists already" in again.err


def test_a_model_that_is_not_exported_leaves_no_file(trained, place, capsys, monkeypatch):
    wrong = program.run(capsys, "task=export", "run=run", "format=torch", "out=model.onnx")
    assert wrong.code == 2
    assert "format=torch writes a file .pt2" in wrong.err

    def other(ready, model, inputs, path):
        path.write_bytes(b"")
        return lambda *fields: model(*fields) * 1.001

    monkeypatch.setitem(export._WRITERS, "torch", other)
    differs = program.run(capsys, "task=export", "run=run", "format=torch", "out=differs.pt2")
    assert differs.code == 1
    assert "gives other outputs than the model, by 0.001" in differs.err
    assert not [*place.glob("differs*"), *place.glob(".exporting*")]
    (place / "mine.pt2.json").write_text("mine")
    kept = program.run(capsys, "task=export", "run=run", "format=torch", "out=mine.pt2")
    assert kept.code == 2
    assert (place / "mine.pt2.json").read_text() == "mine"
