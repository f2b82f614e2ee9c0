"""The core runs without add-ons until a configuration asks for one."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module

import pytest

from penstock import seams
from penstock.config.targets import RULES
from tests.support.program import ROOT

SMALL = ["dataset.count=40", "dataset.size=48", "batch.size=8"]
PROGRAM = """
import json, sys
from penstock import command
code = command.main(sys.argv[1:])
print(json.dumps([code, sorted({name.split(".")[2] for name in sys.modules
                                if name.startswith("penstock.addons.")})]))
"""


@pytest.mark.one_in(1 if os.environ.get("CI") else 2)
@pytest.mark.parametrize(
    ("words", "loaded"),
    [
        (["task=digest", "steps=1", "tracker=none"], set()),
        (["trainer.max_steps=1", "tracker=none"], {"predicting", "reports"}),
        (
            ["task=digest", "steps=1", "tracker=none", "data.filter='label >= 0'"],
            {"filters"},
        ),
    ],
)
def test_a_run_loads_the_add_ons_that_it_asks_for(words, loaded, faces_root, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, f"dataset.root={faces_root}", *SMALL],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    code, names = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    assert set(names) == loaded


@pytest.mark.parametrize("task", seams.TASKS)
def test_the_function_of_each_task_is_there(task):
    assert callable(seams.function(seams.TASKS[task].run))


def test_what_the_allow_list_says_of_our_modules_is_there():
    for prefix, _, homes in RULES:
        for home in homes if prefix == "penstock" else ():
            import_module(home)


def test_every_add_on_has_its_row_in_the_map():
    written = (ROOT / "docs/architecture.md").read_text()
    folder = ROOT / "pipeline/addons"
    there = {path.parent.name for path in folder.glob("*/__init__.py")}
    there |= {path.stem for path in folder.glob("[!_]*.py")}
    rows = set(re.findall(r"^\| `(\w+)` \| .* \| \[[^]]+\]\(\w+\.md\) \|$", written, re.MULTILINE))
    assert rows == there
