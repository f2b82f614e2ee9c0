"""A curriculum and repeated rows."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.order.composed import Curriculum, Repeated
from pipeline.order.samplers import Sequential


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


@given(st.integers(1, 100), st.integers(1, 5), st.booleans(), st.data())
def test_rows_are_repeated_in_place(length, times, shorten, data):
    order = Repeated(length, 0, 4 * times, times, Sequential(length), shorten)
    size = order.size(0)
    assert size == (length // times * times if shorten else length * times)
    rows = order.indices(0, 0, size)
    assert np.array_equal(rows, np.repeat(np.arange(length), times)[:size])
    start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    assert np.array_equal(order.indices(0, start, stop), rows[start:stop])


def test_repetitions_stay_in_one_batch():
    with pytest.raises(ConfigError, match=r"sampler\.times: 3 does not divide batch\.size=8"):
        Repeated(10, 0, 8, 3)
    with pytest.raises(ConfigError, match=r"sampler\.stages: 11; allowed: 1 to 10"):
        Curriculum(10, 0, pd.DataFrame({"length": range(10)}), stages=11)
