"""Rows that are kept, against plain counting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.addons.filters.kept import Selection


@given(st.lists(st.booleans(), max_size=200), st.integers(0, 200))
def test_rows_numbers_and_fingerprints(kept, cut):
    mask = np.array(kept, bool)
    found, rows = Selection([mask[:cut], mask[cut:]]), np.flatnonzero(mask)
    assert (found.length, found.count) == (len(mask), len(rows))
    assert np.array_equal(found.select(np.arange(len(rows))), rows)
    assert np.array_equal(found.rank(rows), np.arange(len(rows)))
    assert np.array_equal(found.mask(), mask)
    assert [found.row(number) for number in range(len(rows))] == rows.tolist()
    assert found.fingerprint == Selection([mask]).fingerprint
    assert found.fingerprint != Selection([mask, np.ones(1, bool)]).fingerprint
    for outside in (-1, len(rows)):
        with pytest.raises(IndexError):
            found.row(outside)
        with pytest.raises(IndexError):
            found.select([outside])
