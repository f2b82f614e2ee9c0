"""Errors in parts that only show something."""

import pytest

from penstock.distributed.stop import Preempted
from penstock.errors import ConfigError, DataError
from penstock.runs.only_shown import only_shown, reason


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DataError("a.jpg is damaged.\nmore"), "a.jpg is damaged"),
        (DataError(""), "DataError"),
        (ValueError(" no such\tcolumn... "), "ValueError: no such\\tcolumn"),
        (ValueError("one\ntwo"), "ValueError: one"),
        (KeyError(), "KeyError"),
        (DataError("x" * 301), "x" * 300),
    ],
)
def test_the_reason_of_an_error(error, words):
    assert reason(error) == words


@pytest.mark.parametrize(("rank", "said"), [("0", True), ("1", False)])
def test_the_first_rank_says_what_is_missing(rank, said, monkeypatch, capsys):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with only_shown("the picture") as failed:
        assert failed == []
        raise ConfigError("no font")
    assert failed == ["no font"]
    text = "WARNING: the picture is missing: no font. The run is not affected\n"
    assert capsys.readouterr().err == (text if said else "")


def test_requests_to_stop_come_through():
    for error in (Preempted("SIGTERM"), KeyboardInterrupt()):
        with pytest.raises(type(error)), only_shown("the picture"):
            raise error
