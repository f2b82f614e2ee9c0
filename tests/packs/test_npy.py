"""`.npy` files that are written as their rows come."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.addons.packs.folder import NpyStream, PackWriter
from penstock.errors import DataError


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3 << 20), max_size=6), st.sampled_from(["<f4", "<i8", "|b1"]))
def test_rows_of_any_size_come_back(tmp_path_factory, counts, dtype):
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    numbers = np.arange(sum(counts)).astype(dtype)
    stream = NpyStream(path, dtype)
    for rows in np.split(numbers, np.cumsum(counts)[:-1]) if counts else []:
        stream.append(rows)
    stream.finish(numbers.shape)
    assert np.array_equal(np.load(path), numbers)
    assert path.stat().st_size == 256 + numbers.nbytes
    path.unlink()


def test_samples_without_fields_are_refused(tmp_path):
    with pytest.raises(DataError, match="no fields"):
        PackWriter(tmp_path, {}).append({}, {})
