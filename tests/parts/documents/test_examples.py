"""The pages in docs/ do what they say: their files are written and their commands run."""

import json
import os
import re
import shlex
import sys

import numpy as np
import pytest
import yaml

from tests.parts.documents.pages import blocks, commands, write_files
from tests.support import warm
from tests.support.program import ROOT, run

PROGRAM = shlex.join([sys.executable, str(ROOT / "run.py")])


@pytest.fixture
def birds(tmp_path):
    write_files("own_dataset.md", tmp_path)
    random = np.random.default_rng(0)
    (tmp_path / "recordings").mkdir()
    for number in range(24):
        split, label = ("val" if number % 4 == 0 else "train"), int(number % 3 == 0)
        array = random.normal(label, 1, (5 + number % 6, 2)).astype(np.float32)
        np.save(tmp_path / "recordings" / f"{split}{number}_{label}.npy", array)
    return tmp_path


@pytest.mark.thorough
def test_the_own_dataset_page(birds):
    environment = {**os.environ, "PYTHONPATH": "."}
    outputs = []
    for line in commands("own_dataset.md"):
        words = shlex.split(line.replace("python run.py", PROGRAM))
        done = warm.run(words, cwd=birds, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0].splitlines()[-1].startswith("total ")
    assert "accuracy" in outputs[1]
    *_, notebook, alone = blocks("own_dataset.md", "python")
    environment |= {"PYTHONPATH": f".:{ROOT}", "PENSTOCK_TRUST": "birds"}
    for code in (notebook + "print(sorted(batch))", alone):
        done = warm.run(
            [sys.executable, "-c", code],
            cwd=birds,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[2] == "['label', 'sequence', 'sequence_lengths']\n"
    assert outputs[3].splitlines()[-1].startswith("2 [")


@pytest.mark.stress
def test_the_transforms_page(tmp_path):
    write_files("transforms.md", tmp_path)
    (command,) = commands("transforms.md")
    done = warm.run(
        [*shlex.split(command.replace("python run.py", PROGRAM)), "dataset.count=80"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f".:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


def test_the_table_of_streams():
    shown = next(block for block in blocks("data.md", "text") if "stream_table" in block)
    command, _, expected = shown.partition("\n")
    assert command == "$ python docs/examples/stream_table.py"
    done = warm.run(
        [sys.executable, "docs/examples/stream_table.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == expected, done.stderr


def test_untrusted_code_is_refused(birds):
    words = shlex.split(f"{PROGRAM} --config-dir birds/conf dataset=birds")
    done = warm.run(
        [*words, "dataset.root=recordings", "task=digest"],
        cwd=birds,
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert re.search(r"dataset\._target_.*birds.*--trust birds", done.stderr)
    assert done.stdout == ""


@pytest.fixture
def here(tmp_path, monkeypatch, faces_root):
    """A folder to run a page's commands in, with its files on the path and trusted by nobody."""

    def prepare(page):
        write_files(page, tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path

    before = set(sys.modules)
    yield prepare
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("mine", "loading", "shapes"):
            del sys.modules[name]


QUICK = ("loader=debug", "trainer.max_steps=2", "trainer.pictures=false", "trainer.baseline=false")


def run_line(capsys, line, *more):
    words = shlex.split(line)
    assert words[:2] == ["python", "run.py"], line
    done = run(capsys, *words[2:], *more)
    assert done.code == 0, f"{line}\n{done.err}"
    return done


@pytest.mark.thorough
def test_the_page_of_own_parts(here, capsys, faces_root):
    folder = here("own_parts.md")
    small = [f"dataset.root={faces_root}", "dataset.count=60", "dataset.size=48", "batch.size=8"]
    seen = {}
    lines = [line for line in commands("own_parts.md") if "shapes" not in line]
    for number, line in enumerate(dict.fromkeys(lines)):
        where = folder / f"run{number}"
        done = run_line(capsys, line, *small, *QUICK, f"run_dir={where}")
        seen[line] = (done, where)
    with_metric = next(done for line, (done, _) in seen.items() if "mine.metric" in line)
    assert re.search(r"^within +0\.\d+", with_metric.out, re.MULTILINE)
    whole = next(where for line, (_, where) in seen.items() if "experiment=mine" in line)
    logged = (whole / "tracker" / "metrics.csv").read_text()
    assert "val/within" in logged
    written = yaml.safe_load((whole / "config.yaml").read_text())
    assert written["optimizer"] == {"_target_": "torch.optim.SGD", "lr": 0.01, "momentum": 0.9}
    assert written["transform"]["train"]["crop"] == {"_target_": "mine.steps.Shade"}


@pytest.mark.thorough
def test_the_objectives_of_the_page(here, capsys, faces_root, reports):
    folder = here("own_parts.md")
    small = [f"dataset.root={faces_root}", "dataset.count=60", "dataset.size=48", "batch.size=8"]
    face, contrastive, _, boxes = (line for line in commands("own_parts.md") if "shapes" in line)
    # tests/promises/distributed/test_own_objectives.py has ranks
    out = run_line(capsys, face, *small, *QUICK, f"run_dir={folder}/face").out
    run_line(capsys, contrastive, *small, *QUICK, f"run_dir={folder}/contrastive")
    record = json.loads((folder / "face/metrics.jsonl").read_text().splitlines()[-1])
    for split in ("train", "val"):
        parts = record[f"{split}/loss/centre"] + record[f"{split}/loss/size"]
        assert record[f"{split}/loss"] == pytest.approx(parts, rel=1e-6)
    assert re.search(r"^pixels +\d+\.\d+ *$", out, re.MULTILINE)  # no baseline beside it
    few = ("dataset.count=20", "batch.size=4", "trainer.max_steps=2", f"run_dir={folder}/boxes")
    run_line(capsys, boxes, *few)
    assert "Predictions of validation" in (folder / "boxes/report.html").read_text()
    detected = json.loads((folder / "boxes/metrics.jsonl").read_text().splitlines()[-1])
    assert {"train/loss/classes", "train/loss/boxes", "val/map/map", "val/map/mar_100"} <= set(
        detected
    )
    assert len((folder / "shapes/detection.py").read_text().splitlines()) <= 25


def test_the_page_of_loading(here, capsys):
    here("loading.md")
    alone, workers, _, padded = (line for line in commands("loading.md") if "Pairs" in line)
    printed = next(block for block in blocks("loading.md", "text") if block.startswith("0 0 3 "))
    assert run_line(capsys, alone).out == run_line(capsys, workers).out == printed
    assert len(run_line(capsys, padded).hashes) == 1


def test_the_first_example_of_the_drop_in_class(capsys):
    exec(blocks("dataloader.md", "python")[0], {})
    assert capsys.readouterr().out == blocks("dataloader.md", "text")[0]


def test_the_page_of_loading_is_right_about_stacking(here, capsys):
    here("loading.md")
    line = next(line for line in commands("loading.md") if "collate=pad" in line)
    words = shlex.split(line.replace("collate=pad", "collate=stack"))[2:]
    done = run(capsys, *words, "loader=debug")
    assert done.code != 0
    assert "collate=pad for unequal lengths" in done.err
