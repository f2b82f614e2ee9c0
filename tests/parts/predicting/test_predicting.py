"""`task=test`, `task=predict` and `task=export`, of runs on pictures and on arrays."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torchmetrics import Metric

from penstock import Run
from penstock.addons.predicting import write
from penstock.errors import ConfigError
from penstock.runs.folder import take
from tests.support import program

QUICK = ["trainer=quick", "trainer.pictures=false", "loader.num_workers=0", "batch.size=4"]


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
        words = ["dataset=image_folder", "dataset.root=pictures", "data.split.test=0.2"]
        assert program.run(capsys, *words, *QUICK, "run_dir=run").code == 0
    return place / "run"


class Unknown(Metric):
    """Is NaN."""

    def update(self, outputs, targets):
        pass

    def compute(self):
        return torch.tensor(torch.nan)


def test_a_metric_of_nan_leaves_a_manifest_that_can_be_read(trained, capsys):
    words = ["--trust", "tests", f"+objective.metrics.odd={{_target_: {__name__}.Unknown}}"]
    data = ["dataset=image_folder", "dataset.root=pictures", "data.split.test=0.2"]
    done = program.run(capsys, *words, *data, *QUICK, "run_dir=odd", "trainer.monitor=loss")
    assert done.code == 0, done.err
    for said in ("odd", "measured once"):
        done = program.run(capsys, "--trust", "tests", "task=test", "run=odd")
        assert done.code == 0, done.err
        assert said in done.out + done.err
    done = program.run(capsys, "--trust", "tests", "resume=odd", "trainer.max_epochs=3")
    assert done.code == 0, done.err


def test_rows_of_new_files_and_the_damaged_by_name(trained, place, capsys):
    words = ["task=predict", "run=run", "dataset.root=new"]
    (place / "new" / "a.tga").touch()
    done = program.run(capsys, *words, "out=rows.csv")
    assert "11 rows: rows.csv; 1 are damaged, and the column error says why" in done.out
    assert "new: left out 1 file(s): 1 .tga" in done.err
    (place / "new" / "a.tga").unlink()
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


def test_a_part_of_the_rows_is_predicted_as_it_is_within_all_of_them(trained, place, capsys):
    words = ["task=predict", "run=run", "dataset.root=new"]
    rows = []
    for part in ("0:5", "5:"):
        assert program.run(capsys, *words, f"rows={part}", f"out={part[0]}.jsonl").code == 0
        rows += [json.loads(line) for line in (place / f"{part[0]}.jsonl").read_text().splitlines()]
    whole = [{**row, "path": f"new/{row['path']}"} for row in Run(trained).predict("new")]
    assert [row["row"] for row in rows] == list(range(12))
    for row, other in zip(rows, whole, strict=True):
        assert row.get("error") == other.get("error")
        assert row.get("predicted") == other.get("predicted")
        assert row.get("score/cat") == pytest.approx(other.get("score/cat"), abs=1e-6)
    assert not [*place.glob("*.part"), *place.glob(".*")]


def test_a_test_has_the_lock_of_its_run(trained, place, capsys):
    """A run that resumed meanwhile would lose what it notes in the manifest."""
    held = take(trained)
    (trained / "manifest.json").write_text(
        json.dumps({**json.loads((trained / "manifest.json").read_text()), "test": None})
    )
    done = program.run(capsys, "task=test", "run=run")
    assert done.code == 2
    assert "is still training; test it when it has ended" in done.err
    held.close()
    assert program.run(capsys, "task=test", "run=run").code == 0


def test_predictions_never_replace_a_file(trained, place, capsys):
    words = ["task=predict", "run=run", "dataset.root=new", "out=once.csv"]
    assert program.run(capsys, *words).code == 0
    content = (place / "once.csv").read_bytes()
    again = program.run(capsys, *words, "rows=0:1")
    assert again.code == 2
    assert "'once.csv' exists; it must be a new file" in again.err
    assert (place / "once.csv").read_bytes() == content


def test_what_cannot_be_predicted(trained, place, capsys):
    (place / "empty").mkdir(exist_ok=True)
    words = ["task=predict", "run=run"]
    for more, message in (
        (["dataset.root=new", "out=a.txt"], "and end in .jsonl or .csv or .parquet"),
        (["dataset.root=new", "out=none/a.csv"], "must be a new file in a folder that is there"),
        (["dataset.root=empty", "out=a.csv"], "has 0 rows"),
        (["dataset.root=nowhere", "out=a.csv"], "is missing"),
        (["dataset.root=new", "out=/proc/a.csv"], "/proc/a.csv cannot be written"),
        (["dataset.root=new", "out=a.csv", "rows=12:"], "has 12 rows, and none in 12:"),
        (["dataset.root=new", "out=a.csv", "model.width=9"], "does not fit the model of this"),
    ):
        done = program.run(capsys, *words, *more)
        assert message in done.err
        assert "Traceback" not in done.err


class Points:
    """Eight rows of two classes; it only knows which rows validate, as many classes do."""

    classes = ("low", "high")

    def __init__(self, root, split="train"):
        self.root, self.first = root, 100 if split == "val" else 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.root != "data":
            raise FileNotFoundError(self.root)
        value = float(self.first + index)
        return {"input": torch.tensor([value, 1.0]), "label": index % 2}

    @property
    def facts(self):
        return {"num_features": 2, "num_classes": 2, "num_outputs": 2}


class Kept(Points):
    def __init__(self, root, split="train"):
        super().__init__(root, split)
        self.first += 50 * (split == "test")


class Train(Points):
    def __init__(self, root, train=True):
        super().__init__(root, "train" if train else "val")


def test_rows_of_other_splits_are_no_test(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    for name, said in (
        ("Points", "gives the rows of the train split for the test: the first 8 are equal"),
        ("Train", "gives the rows of the val split for the test: the first 8 are equal"),
        ("nodes", "gives the rows of the val split for the test"),
        ("Kept", None),
    ):
        node = f"_target_: {__name__}.{name}\nroot: data\n"
        if name == "nodes":
            of = f"{{_target_: {__name__}.Points, root: data, split: "
            others = f"{{val_dataset: {of}val}}, test_dataset: {of}val}}}}"
            node = f"# @package _global_\ndataset: {of}train}}\ndata: {others}\n"
        (tmp_path / "conf" / "dataset" / "own.yaml").write_text(node)
        words = ["--config-dir", "conf", "--trust", "tests"]
        data = ["dataset=own", "transform=none", "model=linear", "objective=classification"]
        data += ["objective.inputs=[input]", *QUICK, f"run_dir={name}"]
        done = program.run(capsys, *words, *data)
        assert done.code == 0, done.err
        done = program.run(capsys, "--trust", "tests", "task=test", f"run={name}")
        assert (done.code, said or "") == (2 if said else 0, said or ""), done.err
        assert said is None or said in done.err
        kept = json.loads((tmp_path / name / "manifest.json").read_text())
        assert ("test" in kept) == (said is None)
        predict = ["task=predict", f"run={name}", "dataset.root=new", f"out={name}.csv"]
        done = program.run(capsys, "--trust", "tests", *predict)
        said = "give it a class method unlabelled("
        assert (done.code, said in done.err, "Traceback" in done.err) == (2, True, False), done.err


def test_other_folders_have_the_numbers_of_the_run(trained, place, capsys):
    """A run knows cat and dog; a folder of dogs alone has the number 1."""
    if not (place / "dogs").exists():
        for split in ("train", "val"):
            (place / "dogs" / split / "dog").mkdir(parents=True)
            for number in range(4):
                content = (place / "pictures" / "dog" / f"{number:02}.png").read_bytes()
                (place / "dogs" / split / "dog" / f"{number:02}.png").write_bytes(content)
    words = ["task=validate", "run=run", "dataset.root=dogs", "trainer.baseline=false"]
    done = program.run(capsys, *words)
    assert done.code == 0, done.err
    rows = dict(line.split()[:2] for line in done.out.splitlines() if len(line.split()) == 2)
    asked = program.run(capsys, "task=predict", "run=run", "dataset.root=dogs/val", "out=dogs.csv")
    assert asked.code == 0
    with (place / "dogs.csv").open() as file:
        right = [row["predicted"] == "dog" for row in csv.DictReader(file)]
    assert float(rows["accuracy"]) == pytest.approx(np.mean(right), abs=1e-4)
    for split in ("train", "val"):
        (place / "dogs" / split / "dog").rename(place / "dogs" / split / "wolf")
    refused = program.run(capsys, *words)
    assert refused.code == 3
    assert "the training split has no class 'wolf' (it has cat, dog)" in refused.err


def test_columns_of_parquet_have_the_type_of_all_rows(tmp_path):
    import pandas as pd

    rows = [{"row": n, "x": n if n < 3 else n + 0.5, "of": [n]} for n in range(5)]
    rows[1]["error"] = "damaged"
    rows[4] = {"row": 4, "path": "a.png", "whole": 7}
    write(tmp_path / "a.parquet", rows)
    table = pd.read_parquet(tmp_path / "a.parquet")
    assert [*table] == ["row", "x", "of", "error", "path", "whole"]
    assert table["x"].tolist()[:4] == [0, 1, 2, 3.5]
    assert table["error"].dropna().tolist() == ["damaged"]
    write(tmp_path / "a.csv", rows)
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[1:3] == ["0,0,[0],,,", "1,1,[1],damaged,,"]
    assert lines[5] == "4,,,,a.png,7"
    rows[3]["x"] = "text"
    with pytest.raises(ConfigError, match=r"cannot be written as \.parquet"):
        write(tmp_path / "b.parquet", rows)
    assert not (tmp_path / "b.parquet").exists()


def test_a_model_is_used_where_its_training_data_is_not(place, trained, capsys, monkeypatch):
    monkeypatch.chdir(place)
    (place / "pictures").rename(place / "away")
    try:
        for name, words in WITHOUT.items():
            if name != "run":
                with (place / f"{name}.csv").open("w") as file:
                    file.write("\n".join(LINES[name]))
                assert program.run(capsys, *words, *QUICK, f"run_dir={name}").code == 0
                (place / f"{name}.csv").unlink()
            new = place / "new"
            if name != "run":
                new = place / f"new_{name}.csv"
                new.write_text("\n".join(NEW[name]))
            out = place / f"elsewhere_{name}.jsonl"
            made = program.run(capsys, "task=predict", f"run={name}", f"dataset.root={new}",
                               f"out={out}")  # fmt: skip
            assert made.code == 0, made.err
            rows = [json.loads(line) for line in out.read_text().splitlines()]
            assert len(rows) == {"run": 12, "table": 2, "series": 3, "text": 2}[name]
            if name == "series":
                assert [row["series"] for row in rows] == ["north", "short", "south"]
                assert [len(row.get("predicted", [])) for row in rows] == [2, 0, 2]
                assert rows[0]["after"] == "2026-01-12"
                assert "2 steps with a value, and a forecast needs 4" in rows[1]["error"]
            assert rows == Run(place / name).predict(str(new))
    finally:
        (place / "away").rename(place / "pictures")


WITHOUT = {
    "run": [],
    "table": ["dataset=table", "dataset.root=table.csv", "dataset.target=left"],
    "series": [
        "dataset=windows",
        "dataset.root=series.csv",
        "dataset.time=day",
        "dataset.values=sold",
        "dataset.series=shop",
        "dataset.known=[promotion]",
        "dataset.past=4",
        "dataset.horizon=2",
        "dataset.season=1",
    ],
    "text": [
        "dataset=delimited_text",
        "dataset.root=text.csv",
        "transform=byte_pairs",
        "transform.train.tokenize.vocabulary=dataset",
    ],
}
LINES = {
    "table": ["age,plan,left", *(f"{20 + n},{'abc'[n % 3]},{'yn'[n % 2]}" for n in range(40))],
    "series": [
        "day,shop,sold,promotion",
        *(
            f"2026-01-{day:02},{shop},{day * 7 % 5},{day % 2}"
            for shop in ("north", "south")
            for day in range(1, 29)
        ),
    ],
    "text": ["label,text", *(f"{'hs'[n % 2]},some words and {n}" for n in range(40))],
}
NEW = {
    "table": ["plan,age", "a,33", "other,20"],
    "series": [
        "day,shop,sold,promotion",
        *(
            f"2026-01-{day:02},{shop},{3 if day <= last else ''},1"
            for shop, last in (("north", 12), ("south", 9), ("short", 2))
            for day in range(1, last + 3)
        ),
    ],
    "text": ["text", "some other words", "more"],
}


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "format", ["weights", "torch", pytest.param("onnx", marks=pytest.mark.thorough)]
)
def test_a_model_is_exported_and_computes_the_same(trained, place, capsys, format):
    if format == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    ending = {"weights": "safetensors", "torch": "pt2", "onnx": "onnx"}[format]
    out = f"model.{ending}"
    words = ["task=export", "run=run", f"format={format}"]
    made = program.run(capsys, *words, f"out={out}")
    assert made.code == 0, made.err
    run = Run(trained)
    model, pictures = run.model(), torch.rand(7, *run.batch(0, 0)["image"].shape[1:])
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
        (logits,) = session.run(None, {"image": pictures.numpy()})
        assert np.abs(logits - expected.numpy()).max() < 1e-4 * expected.abs().max()
    again = program.run(capsys, *words, f"out={out}")
    assert again.code == 2
    assert "exists; it must be a new file" in again.err


def test_a_model_that_is_not_exported_leaves_no_file(trained, place, capsys):
    wrong = program.run(capsys, "task=export", "run=run", "format=torch", "out=other.onnx")
    assert wrong.code == 2
    assert "and end in .pt2" in wrong.err
    assert not [*place.glob("other*"), *place.glob(".*")]


def test_another_table_is_not_measured_by_scales_of_its_own(tmp_path, capsys):
    for name, shift in (("a", 0), ("b", 1000)):
        rows = "".join(f"{row + shift},{'uv'[row % 2]}\n" for row in range(60))
        (tmp_path / f"{name}.csv").write_text(f"x,y\n{rows}")
    words = ["dataset=table", f"dataset.root={tmp_path / 'a.csv'}", "dataset.target=y"]
    quick = ["trainer=quick", "trainer.report=false", f"run_dir={tmp_path / 'run'}"]
    assert program.run(capsys, *words, *quick).code == 0
    measure = ["task=validate", f"run={tmp_path / 'run'}"]
    assert program.run(capsys, *measure).code == 0
    done = program.run(capsys, *measure, f"dataset.root={tmp_path / 'b.csv'}")
    assert done.code == 2
    assert "scales and categories of its training rows are others" in done.err
