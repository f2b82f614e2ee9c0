"""Random configurations; `python -m tests.promises.stress.random_configurations` runs more."""

import os

import pytest

from tests.promises.stress import random_cases, random_configurations, random_files

pytestmark = pytest.mark.stress
CASES = int(os.environ.get("PENSTOCK_TEST_CASES", "25"))


def test_random_configurations(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_TRUST", random_cases.OWN)
    files = random_files.files_of(tmp_path / "files")
    with capsys.disabled():
        counts, failures = random_configurations.run(CASES, 0, files)
    assert counts["cases"] == CASES
    assert not failures
