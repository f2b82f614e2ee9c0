"""The commands on the pages of tasks run, on small files of the kind that each page begins with."""

import json
import re
import shlex
import sys

import numpy as np
import pandas as pd
import pytest

from penstock.addons.starter import drawn
from tests.program import ROOT, run

FEW = ["loader=debug", "trainer.max_steps=2", "trainer.limit_batches.val=2", "trainer.ledger=false"]
FEW += ["trainer.pictures=false", "trainer.baseline=false"]


def put(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def photos(folder):
    """A folder a class, and a table of all pictures."""
    files = drawn.images()
    put(folder / "photos", files)
    kinds = [name.partition("/")[0] for name in files]
    table = pd.DataFrame({"path": list(files), "label": kinds, "age": np.arange(len(files))})
    table["tags"] = [f"{kind}|{'odd' if row % 2 else 'even'}" for row, kind in enumerate(kinds)]
    table["caption"] = [f"a {kind}, number {row}" for row, kind in enumerate(kinds)]
    table.to_csv(folder / "photos" / "photos.csv", index=False)


def scenes(folder):
    """Pictures with boxes and with masks, of a background and two classes."""
    boxes = drawn.boxes()
    annotations = boxes.pop("annotations.json")
    put(folder / "photos", {**boxes, "boxes.json": annotations})
    for name in boxes:
        mask = drawn.Image.fromarray(np.arange(64 * 64, dtype=np.uint8).reshape(64, 64) % 3)
        path = folder / "photos" / name.replace("images", "masks")
        path.parent.mkdir(exist_ok=True)
        mask.save(path)


def faces(folder):
    files = drawn.points()
    names = [name.removeprefix("images/") for name in files if name.endswith(".png")]
    put(folder / "faces", {name: files[f"images/{name}"] for name in names})
    points = np.random.default_rng(0).uniform(8, 56, (len(names), 2 * 68)).round(1)
    parts = [f"part_{part}_{axis}" for part in range(68) for axis in "xy"]
    table = pd.DataFrame(points, names, pd.Index(parts))
    table.to_csv(folder / "faces" / "face_landmarks.csv", index_label="image_name")


def tables(folder):
    people = drawn.table()["customers.csv"]
    put(folder, {"people.csv": people})
    houses = pd.read_csv(drawn.io.BytesIO(people))
    houses["price"] = houses.pop("income").fillna(0)
    houses.to_parquet(folder / "houses.parquet")


def series(folder):
    days = pd.date_range("2025-01-01", periods=400).strftime("%Y-%m-%d")
    sold = 20 + 5 * np.sin(np.arange(400) / 7 * 2 * np.pi)
    table = pd.DataFrame({"day": days, "shop": "north", "sold": sold, "promotion": 0})
    table.to_csv(folder / "sales.csv", index=False)


def texts(folder):
    put(folder, {"messages.tsv": drawn.text()["texts.tsv"]})


def books(folder):
    lines = drawn.text()["texts.tsv"]
    put(folder, {f"books/{number}.txt": lines for number in range(10)})
    put(folder, {"notes.tsv": lines})


def recordings(folder):
    soundfile = pytest.importorskip("soundfile")
    random = np.random.default_rng(0)
    sounds = [f"sounds_of_birds/{kind}/{n}.wav" for kind in ("owl", "wren") for n in range(12)]
    digits = [f"fsdd/recordings/{d}_theo_{take}.wav" for d in range(10) for take in range(4, 8)]
    pairs = [f"pairs/{number}.wav" for number in range(10)]
    for name in (*sounds, *digits, *pairs):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, random.normal(0, 0.1, 4000), 8000)
        if name in pairs:
            np.save(path.with_suffix(".npy"), np.zeros((1, 4000), np.float32))


FILES = {
    "classification.md": photos,
    "multi_label.md": photos,
    "image_tables.md": photos,
    "pairs.md": photos,
    "gan.md": photos,
    "vision.md": scenes,
    "landmarks.md": faces,
    "tabular.md": tables,
    "forecasting.md": series,
    "texts.md": texts,
    "language_models.md": books,
    "audio.md": recordings,
}

NEW = {  # of a page: the command whose run predicts, and files without labels
    "classification.md": (0, "photos/circle"),
    "texts.md": (0, "messages.tsv"),
    "landmarks.md": (2, "faces"),
    "tabular.md": (0, "people.csv"),
}


def commands(page):
    """The commands on files that a person has; drawn experiments have tests of their own."""
    text = (ROOT / "docs" / page).read_text()
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.split("\n")
    ]
    return [line for line in lines if line.startswith("python run.py") and "dataset.root=" in line]


@pytest.mark.parametrize("page", [*FILES, "video.md"])
def test_a_page_begins_with_files_a_command_and_what_is_seen(page):
    text = (ROOT / "docs" / page).read_text()
    kinds = re.findall(r"^```(\w+)$", text, re.MULTILINE)
    assert kinds[:2] == ["text", "sh"]
    if page != "image_tables.md":  # trains by the tasks of other pages
        assert kinds.count("text") >= 2
    assert commands(page)


def test_each_task_is_on_the_first_page():
    text = (ROOT / "docs" / "index.md").read_text()
    table = text[text.index("## What do you train?") : text.index("## Start")]
    linked = set(re.findall(r"\((\w+\.md)", table))
    assert linked >= {*FILES, "video.md"} - {"image_tables.md"}


@pytest.mark.stress
@pytest.mark.parametrize("page", FILES)
def test_the_commands_of_a_task_page(page, tmp_path, monkeypatch, capsys):
    FILES[page](tmp_path)
    text = (ROOT / "docs" / page).read_text()
    for name, content in re.findall(r"```\w+\n# file: (\S+)\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    for number, line in enumerate(commands(page)):
        words = shlex.split(line, comments=True)[2:]
        done = run(capsys, *words, *FEW, f"run_dir=run{number}")
        assert done.code == 0, f"{line}\n{done.err}"
        record = json.loads(
            (tmp_path / f"run{number}" / "metrics.jsonl").read_text().splitlines()[-1]
        )
        assert any(name.startswith("val/") for name in record), line
    if page in NEW:
        number, root = NEW[page]
        words = ["task=predict", f"run=run{number}", f"dataset.root={root}", "out=new.csv"]
        done = run(capsys, *words, "loader=debug")
        assert done.code == 0, done.err
        assert len(pd.read_csv("new.csv")) >= 60
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("mine", "pets", "sounds"):
            del sys.modules[name]
