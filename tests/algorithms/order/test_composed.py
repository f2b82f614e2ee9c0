"""A curriculum and repeated rows."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.order.plan import Plan
from penstock.order.samplers import Curriculum, Repeated, Sequential


@given(st.integers(1, 300), st.integers(1, 9), st.booleans(), st.data())
def test_a_curriculum_goes_up_in_stages(length, stages, descending, data):
    stages = min(stages, length)
    values = np.random.default_rng(length).integers(0, 50, length)
    order = Curriculum(length, 0, pd.DataFrame({"length": values}), "length", stages, descending)
    rows = order.indices(1, 0, length)
    assert np.array_equal(np.sort(rows), np.arange(length))
    edges = np.arange(stages + 1) * length // stages
    parts = [values[rows[a:b]] for a, b in pairwise(edges)]
    for before, after in pairwise(parts):
        assert before.min() >= after.max() if descending else before.max() <= after.min()
    start = data.draw(st.integers(0, length))
    assert np.array_equal(order.indices(1, start, length), rows[start:])
    if length > 100:
        assert not np.array_equal(order.indices(0, 0, length), rows)


@given(st.integers(1, 100), st.integers(1, 5), st.integers(1, 4), st.booleans(), st.data())
def test_a_batch_has_its_rows_once_and_then_again(length, times, distinct, shorten, data):
    batch = distinct * times
    if shorten and length < times:
        with pytest.raises(ConfigError, match="do not fit into an epoch as long as the"):
            Repeated(length, 0, batch, times, Sequential(length), shorten)
        return
    order = Repeated(length, 0, batch, times, Sequential(length), shorten)
    rows_read = length // times if shorten else length
    assert order.size(0) == rows_read * times
    expected = [
        row
        for first in range(0, rows_read, distinct)
        for row in list(range(first, min(first + distinct, rows_read))) * times
    ]
    assert order.indices(0, 0, order.size(0)).tolist() == expected
    places = st.integers(0, order.size(0))
    start, stop = sorted(data.draw(st.tuples(places, places)))
    assert order.indices(0, start, stop).tolist() == expected[start:stop]


def test_ranks_get_different_repetitions_of_the_same_rows():
    plan = Plan(Repeated(90, 0, 12, 3), 12)
    shares = [plan.request(0, 1, rank, 3).indices.tolist() for rank in range(3)]
    assert shares[0] == shares[1] == shares[2]
    assert len(set(shares[0])) == 4


def test_repetitions_stay_in_one_batch():
    with pytest.raises(ConfigError, match=r"sampler\.times: 3 does not divide batch\.size=8"):
        Repeated(10, 0, 8, 3)


def test_more_stages_than_rows_are_a_sort():
    rows = Curriculum(10, 0, pd.DataFrame({"length": range(10)}), stages=11).indices(0, 0, 10)
    assert rows.tolist() == [*range(10)]
