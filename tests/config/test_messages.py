"""Parts of messages: values as YAML writes them, the nearest name, annotations in words."""

from collections.abc import Sequence
from typing import Annotated, Literal

import pytest
from pydantic import Field

from penstock.config.messages import (
    allowing,
    choices,
    describe,
    from_folder,
    members,
    nearest,
    not_allowed,
    show,
)
from penstock.config.schema import LoaderSection
from penstock.ranges import LARGEST


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1, "1"),
        ("a", "'a'"),
        ("x" * 78, f"'{'x' * 78}'"),
        ("x" * 79, f"'{'x' * 76}..."),
    ],
)
def test_values(value, text):
    assert show(value) == text


def test_names_that_are_near():
    assert nearest("spwan", ["fork", "spawn"]) == " (did you mean 'spawn'?)"
    assert nearest("1", [1, 2]) == " (did you mean '1'?)"
    assert nearest("other", ["fork"]) == nearest("x", []) == ""


def test_values_that_are_not_allowed():
    assert not_allowed("forc", "a name", ["fork"]) == (
        "got 'forc', expected a name (did you mean 'fork'?)"
    )
    assert not_allowed(LARGEST, "a number").endswith("expected a number")
    assert not_allowed(LARGEST + 1, "a number").endswith("a number that fits into 64 bits")
    assert not_allowed(True, "a number") == "got true, expected a number"


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "a whole number"),
        (int | None, "a whole number or null"),
        (Annotated[int, Field(ge=1)], "a whole number of at least 1"),
        (Annotated[float, Field(gt=0, le=1)], "a number above 0 and of at most 1"),
        (Annotated[float, Field(lt=2)] | str, "a number below 2 or text"),
        (Annotated[int, Field(le=LARGEST)], "a whole number"),
        (Annotated[int, Field(description="a seed")], "a seed"),
        (Literal["a", 3], "a | 3"),
        (list[int], "a list, each entry a whole number"),
        (Sequence[float], "a list, each entry a number"),
        (list[str], "a list"),
        (dict[str, int], "a mapping"),
        (LoaderSection, "a mapping"),
        (bytes, "bytes"),
    ],
)
def test_annotations_in_words(annotation, text):
    assert describe(annotation) == text


def test_members_and_words_of_annotations():
    assert members(int | (str | None)) == (int, str, type(None))
    assert choices(Literal["a", 3] | int | Literal["b"]) == ["a", "3", "b"]
    assert choices(int) == []


def test_a_folder_has_nothing_made_that_can_be_pasted():
    assert allowing("--trust", "mine", "PACKAGE") == "--trust mine"
    with from_folder():
        assert allowing("--trust", "mine", "PACKAGE") == "--trust PACKAGE"
        with from_folder(False):
            assert allowing("--trust", "mine", "PACKAGE") == "--trust mine"
    assert allowing("--trust", "mine", "PACKAGE") == "--trust mine"
