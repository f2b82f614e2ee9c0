"""The pages in docs/ do what they say: their files are written and their commands run."""

import os
import re
import shlex
import sys

import numpy as np
import pytest

from tests import warm
from tests.program import ROOT

PROGRAM = shlex.join([sys.executable, str(ROOT / "run.py")])


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
            cwd=birds, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[2] == "['label', 'sequence', 'sequence_lengths']\n"
    assert outputs[3].splitlines()[-1].startswith("(0, 2) ")


def test_the_transforms_page(tmp_path):
    write_files("transforms.md", tmp_path)
    shown, _ = blocks("transforms.md", "python")
    (command,) = blocks("transforms.md", "sh")
    program = shlex.split(command.replace("python run.py", PROGRAM))
    outputs = []
    for words in ([sys.executable, "-c", shown], [*program, "dataset.count=80"]):
        done = warm.run(
            words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": f".:{ROOT}"},
            capture_output=True, text=True,
        )  # fmt: skip
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
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == expected, done.stderr


def test_untrusted_code_is_refused(birds):
    words = shlex.split(f"{PROGRAM} --config-dir birds/conf dataset=birds")
    done = warm.run(
        [*words, "dataset.root=recordings", "task=digest"],
        cwd=birds, env={**os.environ, "PYTHONPATH": "."},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert re.search(r"dataset\._target_.*birds.*--trust birds", done.stderr)
    assert done.stdout == ""
