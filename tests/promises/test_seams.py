"""The core runs without add-ons until a configuration asks for one."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from itertools import accumulate
from operator import or_

import pytest

from penstock import seams
from penstock.config.targets import RULES
from tests.support.program import ROOT

SMALL = ["tracker=none", "dataset.count=40", "dataset.size=48", "batch.size=8"]
# Command lines, and the add-ons that each loads beside those of the lines before.
LOADED = [
    (["task=digest", "steps=1"], set()),
    (["task=digest", "steps=1", "data.filter='label >= 0'"], {"filters"}),
    (["trainer.max_steps=1"], {"predicting", "reports"}),
]
PROGRAM = """
import json, sys
from penstock import command
for words in json.loads(sys.argv[1]):
    code = command.main(words)
    print(json.dumps([code, sorted({name.split(".")[2] for name in sys.modules
                                    if name.startswith("penstock.addons.")})]), flush=True)
"""


def test_a_run_loads_the_add_ons_that_it_asks_for(faces_root, tmp_path):
    words = [[*words, f"dataset.root={faces_root}", *SMALL] for words, _ in LOADED]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(words)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    expected = accumulate((addons for _, addons in LOADED), or_)
    assert found == [[0, sorted(names)] for names in expected], done.stderr


@pytest.mark.parametrize("task", seams.TASKS)
def test_the_function_of_each_task_is_there(task):
    assert callable(seams.function(seams.TASKS[task].run))


def test_what_the_allow_list_says_of_our_modules_is_there():
    for prefix, _, homes in RULES:
        for home in homes if prefix == "penstock" else ():
            import_module(home)


def test_every_add_on_has_its_row_in_the_map():
    written = (ROOT / "docs/design.md").read_text()
    folder = ROOT / "pipeline/addons"
    there = {path.parent.name for path in folder.glob("*/__init__.py")}
    there |= {path.stem for path in folder.glob("[!_]*.py")}
    rows = set(re.findall(r"^\| `(\w+)` \| .* \| \[[^]]+\]\(\w+\.md\) \|$", written, re.MULTILINE))
    assert rows == there
