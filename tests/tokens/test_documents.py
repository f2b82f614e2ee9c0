"""The pages in docs/ do what they say: their files are written and their commands run."""

import json
import os
import re
import shlex
import sys

import numpy as np
import pytest
import yaml

from penstock.config import compose
from tests import warm
from tests.program import ROOT, run

PROGRAM = shlex.join([sys.executable, str(ROOT / "run.py")])


def text_of(page):
    """A page, with each command in a line of its own."""
    return re.sub(r"\\\n *", "", (ROOT / page).read_text())


def blocks(page, language):
    text = text_of(f"docs/{page}") if language == "sh" else (ROOT / "docs" / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def write_files(page, folder):
    """Write every block that names its file, `# file: name`, whole."""
    for language in ("python", "yaml"):
        for block in blocks(page, language):
            if name := re.search(r"^# file: (.+)$", block, re.MULTILINE):
                path = folder / name[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block)


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
    (commands,) = blocks("own_dataset.md", "sh")
    outputs = []
    for line in commands.splitlines():
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
    assert outputs[3].splitlines()[-1].startswith("(0, 2) ")


@pytest.mark.stress
def test_the_transforms_page(tmp_path):
    write_files("transforms.md", tmp_path)
    shown, _ = blocks("transforms.md", "python")
    _, command = blocks("transforms.md", "sh")
    program = shlex.split(command.replace("python run.py", PROGRAM))
    outputs = []
    for words in ([sys.executable, "-c", shown], [*program, "dataset.count=80"]):
        done = warm.run(
            words,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f".:{ROOT}"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.splitlines())
    assert outputs[0][0] == "torch.Size([3]) torch.Size([3, 4])"
    assert len(outputs[1]) == 3


def test_the_table_of_streams():
    (shown,) = blocks("streams.md", "text")
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


def commands(page):
    """The command lines of a page, one string each."""
    return [line for block in blocks(page, "sh") for line in block.splitlines()]


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
    for number, line in enumerate(commands("own_parts.md")):
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
    assert list(written["transform"]["train"])[-2:] == ["shade", "normalize"]


@pytest.mark.thorough
def test_the_page_of_objectives(here, capsys, faces_root, reports):
    folder = here("objectives.md")
    small = [f"dataset.root={faces_root}", "dataset.count=60", "dataset.size=48", "batch.size=8"]
    alone = [line for line in commands("objectives.md") if "nproc=2" not in line]
    *alone, boxes = alone
    assert len(alone) == 3  # tests/distributed/test_own_objectives.py has ranks
    outputs = []
    for number, line in enumerate(alone):
        where = folder / f"run{number}"
        outputs.append(run_line(capsys, line, *small, *QUICK, f"run_dir={where}").out)
    record = json.loads((folder / "run0/metrics.jsonl").read_text().splitlines()[-1])
    parts = record["train/loss/centre"] + record["train/loss/size"]
    assert record["train/loss"] == pytest.approx(parts, rel=1e-6)
    parts = record["val/loss/centre"] + record["val/loss/size"]
    assert record["val/loss"] == pytest.approx(parts, rel=1e-6)
    assert re.search(r"^pixels +\d+\.\d+ *$", outputs[0], re.MULTILINE)  # no baseline beside it
    assert "loss/centre" in outputs[0]
    gan = json.loads((folder / "run2/metrics.jsonl").read_text().splitlines()[-1])
    assert {"train/loss/generator", "train/loss/discriminator", "val/taken_for_real"} <= gan.keys()
    assert "val/loss" not in gan
    few = ("dataset.count=20", "batch.size=4", "trainer.max_steps=2", f"run_dir={folder}/boxes")
    run_line(capsys, boxes, *few)
    assert "Predictions of validation" in (folder / "boxes/report.html").read_text()
    detected = json.loads((folder / "boxes/metrics.jsonl").read_text().splitlines()[-1])
    assert {"train/loss/classes", "train/loss/boxes", "val/map/map", "val/map/mar_100"} <= set(
        detected
    )
    assert len((folder / "shapes/detection.py").read_text().splitlines()) <= 25


@pytest.mark.stress
def test_the_page_of_loading(here, capsys, monkeypatch, faces_root):
    folder = here("loading.md")
    small = [f"dataset.root={faces_root}", "dataset.count=60", "dataset.size=48", "batch.size=8"]
    outputs = []
    for number, line in enumerate(commands("loading.md")):
        more = [] if "Pairs" in line else small
        quick = QUICK[1:] if "task=" not in line else ()
        outputs.append(run_line(capsys, line, *more, *quick, f"run_dir={folder / f'run{number}'}"))
    alone, workers = (one.hashes for one in outputs[:2])
    assert len(alone) == 4
    assert alone == workers
    printed, shown = blocks("loading.md", "text")
    assert outputs[0].out == printed
    monkeypatch.setenv("PENSTOCK_TRUST", "loading")
    (code,) = (block for block in blocks("loading.md", "python") if "# with PENSTOCK" in block)
    capsys.readouterr()
    exec(code, {})
    assert capsys.readouterr().out == shown


def test_the_page_of_loading_is_right_about_stacking(here, capsys):
    here("loading.md")
    line = next(line for line in commands("loading.md") if "collate=pad" in line)
    words = shlex.split(line.replace("collate=pad", "collate=stack"))[2:]
    done = run(capsys, *words, "loader=debug")
    assert done.code != 0
    assert "collate=pad for unequal lengths" in done.err


PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
NOT_CHECKED = re.compile(
    r"\.\.\.|"  # not a whole command
    r" --(trust|config-dir) |"  # needs the page's files: the tests above run it
    r"task=(predict|export) |diff\.page=|"  # files that a person types
    r"run_dir=/shared/|"  # a folder of a cluster, which a person types
    r"quarantine=outputs/|"  # of a run that is not there
    r"hydra/launcher=ray|"  # of a plugin that pins another cloudpickle
    r"dataset=my_\w+|experiment=sales|"  # of a project that `penstock init` writes
    r" --(help|version|cfg) | -sc "  # only shows something
)


def command_lines():
    """All complete commands of the README and the pages, without what stands around them."""
    found = set()
    for page in PAGES:
        for rest in re.findall(r"(?:python run\.py|penstock)( [^`\n]*)", text_of(page)):
            line = re.split(r" +#| \|\| | +outputs/", rest)[0]
            if "=" in line and not NOT_CHECKED.search(f" {line} "):
                found.add(line.strip())
    return sorted(found)


@pytest.mark.one_in(33)
@pytest.mark.parametrize("line", command_lines())
def test_a_command_of_the_pages_is_a_configuration(line, monkeypatch):
    """Every key, option and value that a page names is accepted, as far as nothing is built."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)
    if "-m" not in words:  # a sweep's words need Hydra's grammar of sweeps
        compose.compose(*words)


def test_there_are_commands_on_the_pages():
    assert len(command_lines()) > 35
