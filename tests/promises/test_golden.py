"""The content of batches is pinned: configurations and their digests in `golden.txt`.

By default the default run and some of the others; all of them in CI and with `-m ""`.
"""

import os

import pytest

from tests.promises import golden

RECORDED = golden.recorded()
EACH = 1 if os.environ.get("CI") else 20


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    program = golden.Program(tmp_path_factory.mktemp("golden"))
    yield program
    program.close()


def test_all_configurations_are_recorded_and_read_the_same_data(program):
    assert list(RECORDED) == ["data", *golden.CONFIGURATIONS]
    assert RECORDED["data"] == [program.data], "photographs are encoded otherwise here"


def test_the_default_run(program):
    assert program.digest_by_itself("") == RECORDED[""]


@pytest.mark.one_in(EACH)
@pytest.mark.parametrize("words", golden.CONFIGURATIONS[1:])
def test_digest(program, words):
    assert program.digest(words) == RECORDED[words]
