"""The pages in docs/ do what they say: their files are written and their commands run."""

import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from tests.program import ROOT, run


def blocks(page, language):
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def write_files(page, folder):
    """Write every block that begins with `# file: name`."""
    for language in ("python", "yaml"):
        for block in blocks(page, language):
            first, _, rest = block.partition("\n")
            if first.startswith("# file: "):
                path = folder / first.removeprefix("# file: ")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(rest)


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


def in_folder(folder, monkeypatch):
    """Stand in a folder whose modules can be imported."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in [path.stem for path in folder.iterdir()]:
        monkeypatch.delitem(sys.modules, name, raising=False)  # one of another test


def commands_of(page):
    """The arguments of every `python run.py` on a page."""
    for line in "".join(blocks(page, "sh")).splitlines():
        python, script, *arguments = shlex.split(line)
        assert (python, script) == ("python", "run.py"), line
        yield arguments


def python(code, folder):
    """What a program of a page prints, as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder, env={**os.environ, "PYTHONPATH": f".:{ROOT}", "PENSTOCK_TRUST": "birds"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_own_dataset_page(birds, monkeypatch, capsys):
    in_folder(birds, monkeypatch)
    digest, fit = (run(capsys, *arguments) for arguments in commands_of("own_dataset.md"))
    assert digest.code == fit.code == 0, digest.err + fit.err
    assert digest.out.splitlines()[-1].startswith("total ")
    assert "accuracy" in fit.out
    *_, notebook, alone = blocks("own_dataset.md", "python")
    shown = python(notebook + "print(sorted(batch))", birds)
    assert shown == "['label', 'sequence', 'sequence_lengths']\n"
    assert python(alone, birds).splitlines()[-1].startswith("(0, 2) ")


def test_the_transforms_page(tmp_path, monkeypatch, capsys):
    write_files("transforms.md", tmp_path)
    in_folder(tmp_path, monkeypatch)
    shown, _ = blocks("transforms.md", "python")
    assert python(shown, tmp_path).splitlines()[0] == "torch.Size([3]) torch.Size([3, 4])"
    (arguments,) = commands_of("transforms.md")
    done = run(capsys, *arguments, "dataset.count=80")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 3


def test_the_table_of_streams():
    (shown,) = blocks("streams.md", "text")
    command, _, expected = shown.partition("\n")
    assert command == "$ python docs/examples/stream_table.py"
    done = subprocess.run(
        [sys.executable, "docs/examples/stream_table.py"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == expected, done.stderr


def test_untrusted_code_is_refused(birds, monkeypatch, capsys):
    in_folder(birds, monkeypatch)
    done = run(capsys, "--config-dir", "birds/conf", "dataset=birds", "dataset.root=recordings",
               "task=digest")  # fmt: skip
    assert done.code == 2
    assert re.search(r"dataset\._target_.*birds.*--trust birds", done.err)
    assert done.out == ""
