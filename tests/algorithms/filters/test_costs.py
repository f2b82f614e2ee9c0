"""Costs of rows: arithmetic that can do no harm, evaluated for a batch's rows."""

import time

import numpy as np
import pytest

from penstock.addons.filters.expressions import Expression, PartCosts, RowCosts
from penstock.errors import ConfigError, DataError

COLUMNS = {"length": np.array([1, 2, 3]), "image width": np.array([4, 5, 6], np.uint8)}


def arithmetic(text):
    return Expression(text, "batch.balance", costs=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("length", [1, 2, 3]),
        ("length ** 2 + 1", [2, 5, 10]),
        (" 2 * (length - -1) / 4", [1, 1.5, 2]),
        ("`image width` * `image width` * 16", [256, 400, 576]),  # 8 bits would be full
        ("+length + 0.5", [1.5, 2.5, 3.5]),
    ],
)
def test_arithmetic_over_columns(text, expected):
    costs = RowCosts(arithmetic(text), COLUMNS)
    assert costs(np.array([2, 0, 1])).tolist() == [expected[2], expected[0], expected[1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("length // 2", "allowed are columns"),
        ("abs(length)", "allowed are columns"),
        ("length.real", "allowed are columns"),
        ("length if length else 1", "allowed are columns"),
        ("length == 2", "allowed are columns"),
        ("not length", "allowed are columns"),
        ("length * 'a'", "'a' is no number"),
        ("length * True", "True is no number"),
        ("length *", "invalid syntax"),
        ("", "invalid syntax"),
        ("2 + 2", "it names no column"),
    ],
)
def test_what_is_no_arithmetic_is_refused(text, message):
    with pytest.raises(ConfigError, match=r"batch\.balance: ") as caught:
        arithmetic(text)
    assert caught.match(message)


@pytest.mark.parametrize(
    "text",
    [
        "length * 9 ** 9 ** 9 ** 9",
        "length - 2",
        "1 / (length - 2)",
        "(length - 2) ** 0.5",
        "length * 0x" + "f" * 280,
    ],
)
def test_costs_are_numbers_that_can_be_summed(text):
    began = time.thread_time()
    with pytest.raises((ConfigError, DataError), match=r"batch\.balance"):
        RowCosts(arithmetic(text), COLUMNS)
    assert time.thread_time() - began < 1


def test_a_column_of_texts_is_no_cost():
    with pytest.raises(ConfigError, match=r"batch\.balance: 'length': .*could not convert"):
        RowCosts(arithmetic("length"), {"length": np.array(["a", "b"])})


def test_rows_in_blocks_cost_what_their_parts_do():
    parts = np.array([[0, 3, 3, 0], [2, 4, 9, 0], [0, 1, -1, 1]])
    costs = PartCosts(arithmetic("tokens ** 2"))
    assert costs(np.arange(3), parts).tolist() == [9, 4, 1]
    assert PartCosts(arithmetic("tokens - 2"))(np.arange(3), parts).tolist() == [1, 0, 0]
