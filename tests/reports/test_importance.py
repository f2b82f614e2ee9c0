"""How much each key of a sweep matters."""

import random

import pytest

from penstock.addons.reports.importance import importance, variance_share


def test_a_key_that_decides_everything_and_one_that_decides_nothing():
    settings = [{"a": a, "b": b} for a in "xy" for b in "uvw"]
    values = [float(one["a"] == "x") for one in settings]
    found = importance(settings, values, ["b", "a"])
    assert found.variance == {"a": 1.0, "b": 0.0}
    assert list(found.variance) == ["a", "b"], "the largest first"
    assert found.optuna == {}, "too few jobs"


def test_chance_is_taken_off():
    """Of pure noise, ten levels would explain a third of the variance of 30 jobs."""
    luck = random.Random(1)
    shares = [
        variance_share([str(n % 10) for n in range(30)], [luck.random() for _ in range(30)])
        for _ in range(200)
    ]
    assert sum(shares) / len(shares) < 0.1


def test_numbers_that_hardly_repeat_are_divided():
    x = [n / 40 for n in range(40)]
    assert variance_share([repr(one) for one in x], [abs(one - 0.3) for one in x]) > 0.6
    assert variance_share([str(n) for n in "abcdef"], [1, 2, 3, 4, 5, 6]) is None


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [3.0, 3.0, 3.0, 3.0]])
def test_where_nothing_can_be_said(values):
    settings = [{"a": str(n % 2)} for n in range(len(values))]
    found = importance(settings, values, ["a"])
    assert (found.variance, found.optuna, found.of("a")) == ({}, {}, 0.0)


def test_optunas_importance_where_it_is_installed():
    pytest.importorskip("optuna")
    luck = random.Random(2)
    settings = [
        {"lr": repr(10 ** luck.uniform(-4, -1)), "kind": luck.choice("xy"), "seed": str(n)}
        for n in range(40)
    ]
    values = [abs(float(one["lr"]) - 0.01) for one in settings]
    found = importance(settings, values, ["lr", "kind", "seed"])
    assert found.optuna["lr"] > 0.5 > found.optuna["kind"]
    assert sum(found.optuna.values()) == pytest.approx(1)
