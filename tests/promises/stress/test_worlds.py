"""tests/promises/distributed/test_ranks.py in worlds of every size, one after the other."""

import os
import subprocess
import sys

import pytest

from tests.support.program import ROOT

pytestmark = pytest.mark.stress


def test_worlds_of_one_to_four_ranks():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-q",
        "tests/promises/distributed/test_ranks.py",
    ]
    environment = os.environ | {"PENSTOCK_TEST_ALL_RANKS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    print(f"\nworlds of 1, 2, 4 and 3 ranks: {done.stdout.splitlines()[-1]}")
    assert done.returncode == 0, done.stdout
