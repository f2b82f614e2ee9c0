"""Converted tables go to `data/cache`: each test has a working directory of its own."""

import pytest


@pytest.fixture(autouse=True)
def working_directory(tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("run"))
