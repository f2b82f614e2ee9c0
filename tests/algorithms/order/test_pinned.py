"""The order of every sampler, row by row: a change here changes every run of every user."""

import itertools

import numpy as np
import pandas as pd
import pytest

from penstock.errors import ConfigError, DataError
from penstock.order.plan import contiguous, least_loaded
from penstock.order.samplers import (
    BatchStrategy,
    Curriculum,
    Identity,
    Random,
    Repeated,
    Subset,
    Weighted,
)
from penstock.order.torch_samplers import adapt
from tests.algorithms.order.orders import ORDERS, SEED


def rows_in(text):
    return [int(number) for number in text.split()]


# Of 11 rows, in epoch 1.
PINNED = {
    "random": [8, 3, 0, 4, 10, 2, 7, 1, 9, 6, 5],
    "subset": [6, 2, 9, 4, 3, 10],
    "subset of a list": [0, 5, 10, 1, 0],
    "weighted": rows_in("2 8 5 10 10 8 2 5 2 5 5 10 4 10 6 10 4 5 2 6 6 5 10 6 3 6 5 3 5 6 4 2 2"),
    "weighted without replacement": [8, 6, 2, 10, 5, 3, 4],
    "bucket": [[0, 1, 7], [8, 10, 3, 9], [6, 2, 5, 4]],
    "bucket of tokens": [[4, 2], [5, 0], [6, 1], [7, 10], [3, 8]],
    "identity": [[3, 8, 1], [10, 10, 10], [4, 2, 4], [7, 9, 6], [10, 10, 10], [2, 4, 2], [5, 0, 7]],
    "curriculum": [1, 7, 0, 8, 9, 10, 3, 6, 4, 2, 5],
    "repeated": [8, 3, 8, 3, 0, 4, 0, 4, 10, 10],
    "repeated, weighted": rows_in(
        "2 2 2 2 8 8 8 8 5 5 5 5 10 10 10 10 10 10 10 10 8 8 8 8 2 2 2 2 5 5 5 5 2 2 2 2"
        " 5 5 5 5 5 5 5 5"
    ),
    "packed": [[10, 1, 3, 0, 4], [8, 2, 7, 6, 5], [9]],
    "packed, cut": [[8, 3, 3, 0], [0, 4, 4, 10], [2, 2, 7, 1, 9], [9, 6, 6, 5], [5]],
    "packed, weighted": [[10, 8, 2], [2, 5], [2, 5], [10, 2, 2], [2, 8, 5]],
    "mixture": [2, 1, 0, 1, 6, 9, 10, 5, 8, 5, 3],
    "packed mixture": [[1, 7, 0, 4, 4], [1, 10, 2, 0, 6, 3]],
    "torch's batches": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]],
}


@pytest.mark.parametrize("name", PINNED)
def test_rows_of_an_epoch(name):
    order, pinned = ORDERS[name](11), PINNED[name]
    if isinstance(order, BatchStrategy):
        assert [order.batch(1, step)[1].tolist() for step in range(order.size(1))] == pinned
    else:
        assert order.indices(1, 0, order.size(1)).tolist() == pinned
        for start, stop in itertools.combinations(range(len(pinned) + 1), 2):
            assert order.indices(1, start, stop).tolist() == pinned[start:stop]


TABLE = pd.DataFrame({"length": range(1, 11), "label": [0, 0, 1, 1, 2, 2, 3, 3, 3, 3]})


@pytest.mark.parametrize(
    ("default", "told"),
    [
        (Curriculum(10, SEED, TABLE), Curriculum(10, SEED, TABLE, "length", 4, False)),
        (Repeated(10, SEED, 4), Repeated(10, SEED, 4, 2, Random(10, SEED), True)),
        (Weighted(10, SEED, TABLE), Weighted(10, SEED, TABLE, "label", None, 10, True)),
        (Weighted(10, SEED, weights=[1] * 10), Weighted(10, SEED, None, None, [1] * 10)),
    ],
)
def test_orders_without_options(default, told):
    assert default.size(1) == told.size(1)
    rows = [order.indices(1, 0, order.size(1)).tolist() for order in (default, told)]
    assert rows[0] == rows[1]


def test_batches_without_options():
    labels = np.repeat(np.arange(8), 5)
    strategy = Identity(40, SEED, pd.DataFrame({"label": labels}))
    assert strategy.size(0) == 1
    _, rows = strategy.batch(0, 0)
    assert np.bincount(labels[rows]).tolist() == [4] * 8
    assert (strategy.identities, strategy.samples, strategy.group) == (8, 4, 4)
    few = Identity(3, SEED, pd.DataFrame({"label": [0, 1, 2]}), identities=2, samples=2)
    assert few.size(0) == 1  # and not none


def test_which_orders_are_fair_samples_in_any_slice():
    fair = {name for name in PINNED if getattr(ORDERS[name](11), "even", False)}
    assert fair == {"random", "subset", "weighted", "repeated", "repeated, weighted"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Subset(10, 0), "set one of them: rows from 0 to 9, or a share in"),
        (lambda: Subset(10, 0, indices=[1], fraction=0.5), "set one of them"),
        (lambda: Subset(10, 0, fraction=0.0), r"sampler\.fraction: .* fraction=0\.0 choose none"),
        (lambda: Subset(10, 0, fraction=1.1), "fraction=1.1 choose none of 10 rows"),
        (lambda: Subset(10, 0, fraction=0.05), "fraction=0.05 choose none"),
        (lambda: Subset(10, 0, indices=[]), r"sampler\.indices: indices=\[\]"),
        (lambda: Subset(10, 0, indices=[3, -1]), r"indices=\[3, -1\]"),
        (lambda: Subset(10, 0, indices=[10]), r"indices=\[10\]"),
        (lambda: Subset(10, 0, indices=[1.5]), r"indices=\[1.5\]"),
        (lambda: Subset(10, 0, indices=[True, False]), r"indices=\[True, False\]"),
        (lambda: Weighted(10, 0, TABLE, column=None), "has no column 'None'"),
        (
            lambda: Weighted(3, 0, column=None, weights="w"),
            "no column 'w'; it has no metadata: give it `metadata`",
        ),
        (lambda: Weighted(3, 0, weights=[1, 1]), "2 weights for 3 rows"),
        (
            lambda: Weighted(3, 0, weights=[1, 0, 1], num_samples=5, replacement=False),
            "5 draws without replacement, but only 2 rows",
        ),
        (
            lambda: Curriculum(2, 0, pd.DataFrame({"length": ["a", "b"]}), stages=1),
            "column 'length' does not hold numbers; sampler.column needs them",
        ),
        (lambda: Repeated(10, 0, 4, 0), "0 does not divide batch.size=4"),
        (lambda: Repeated(3, 0, 4, 4), "4 repetitions do not fit into an epoch"),
        (
            lambda: Identity(10, 0, TABLE, identities=5),
            "wants 5 identities, but column 'label' has only 4 different values",
        ),
        (lambda: adapt(lambda: [[0, 1], [2, -1]], 0, 3).size(0), "gave row -1"),
        (lambda: adapt(lambda: [0, 3], 0, 3).size(0), "gave row 3, but the dataset has only 3"),
    ],
)
def test_what_makes_no_order_is_refused(make, message):
    with pytest.raises((ConfigError, DataError), match=message):
        make()


def test_at_the_borders_of_what_is_refused():
    assert Subset(10, 0, fraction=1.0).size(0) == 10
    assert Subset(10, 0, fraction=0.06).size(0) == 1
    assert Subset(10, 0, indices=[0, 9]).size(0) == 2
    assert Curriculum(0, 0, TABLE[:0], stages=1).size(0) == 0
    assert Curriculum(10, 0, TABLE, stages=10).indices(5, 0, 10).tolist() == list(range(10))
    assert Repeated(4, 0, 4, 4).size(0) == 4
    assert Repeated(0, 0, 4, 4).size(0) == 0
    assert Identity(10, 0, TABLE, identities=4).size(0) == 1
    drawn = Weighted(3, 0, weights=[1, 0, 2.0**-999], replacement=False)
    assert drawn.indices(0, 0, 2).tolist() == [0, 2]
    assert adapt(lambda: [0, 2], 0, 3).indices(0, 0, 2).tolist() == [0, 2]
    assert adapt(lambda: [], 0, 3).size(0) == 0


def test_torch_samplers_are_listed_once_an_epoch():
    epochs = []

    class Own:
        def __init__(self):
            self.generator, self.sampler = None, Inner()

        def __iter__(self):
            epochs.append(self.sampler.epoch)
            return iter([(0,), (1, 2)])

    class Inner:
        def set_epoch(self, epoch):
            self.epoch = epoch

    factory = iter([[[0]]] + [Own() for _ in range(9)])
    strategy = adapt(lambda: next(factory), 0, 3)
    for epoch in (0, 1, 0, 1, 2, 1, 0):
        assert strategy.size(epoch) == 2
    assert epochs == [0, 1, 2]
    assert [place.tolist() for place in strategy.batch(0, 1)] == [[1, 2], [1, 2]]


def test_rows_dealt_to_ranks():
    assert least_loaded([1, 1, 1, 0, 0], 2).tolist() == [0, 1, 0, 1, 1]
    assert least_loaded([0, 0, 0], 2).tolist() == [0, 1, 0]
    assert least_loaded([5, 1, 4, 2, 3], 2).tolist() == [0, 0, 1, 0, 1]
    assert contiguous(5, 2).tolist() == [0, 0, 1, 1, 1]
    assert contiguous(0, 2).tolist() == []
