"""Rank and select against plain counting."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.addons.filters.selection import Selection


def nbytes(selection):
    return selection._bits.nbytes + selection._before.nbytes


def masks_of(seed, length, share, cuts):
    mask = np.random.default_rng(seed).random(length) < share
    return mask, np.split(mask, sorted(cut % (length + 1) for cut in cuts))


@given(
    st.integers(0, 9),
    st.integers(0, 9000),
    st.sampled_from([0.0, 0.01, 0.5, 0.9, 1.0]),
    st.lists(st.integers(0, 9000), max_size=4),
)
def test_rank_and_select_agree_with_counting(seed, length, share, cuts):
    mask, pieces = masks_of(seed, length, share, cuts)
    found = Selection(pieces)
    rows = np.flatnonzero(mask)
    assert (found.length, found.count) == (length, len(rows))
    assert np.array_equal(found.select(np.arange(len(rows))), rows)
    assert np.array_equal(found.rank(np.arange(length + 1)), np.concatenate([[0], mask.cumsum()]))
    assert np.array_equal(found.kept(np.arange(length)), mask)
    assert np.array_equal(found.mask(length // 3, length), mask[length // 3 :])
    some = range(0, len(rows), 97)
    assert [found.row(place) for place in some] == rows[some].tolist()
    with pytest.raises(IndexError):
        found.row(len(rows))
    with pytest.raises(IndexError):
        found.select([len(rows)])
    with pytest.raises(IndexError):
        found.rank([length + 1])


def test_a_fingerprint_does_not_depend_on_the_pieces_but_on_each_row():
    mask, pieces = masks_of(0, 5000, 0.9, [13, 700, 4096])
    assert Selection(pieces).fingerprint == Selection([mask]).fingerprint
    other = mask.copy()
    other[4999] ^= True
    assert Selection([other]).fingerprint != Selection([mask]).fingerprint
    assert Selection([mask, np.zeros(1, bool)]).fingerprint != Selection([mask]).fingerprint


@pytest.mark.stress
def test_a_billion_rows_take_128_mib_and_select_is_constant():
    piece = np.random.default_rng(0).random(10**7) < 0.9
    found = Selection(piece for _ in range(100))
    assert nbytes(found) <= 128 * 2**20
    times = []
    for start in (0, found.count - 256):
        began = time.process_time()
        for _ in range(100):
            rows = found.select(np.arange(start, start + 256))
        times.append((time.process_time() - began) / 100)
        assert np.array_equal(found.rank(rows), np.arange(start, start + 256))
    print(f"{nbytes(found) / 2**20:.1f} MiB, {[f'{t * 1e6:.0f} us' for t in times]} for 256 rows")
    assert max(times) < 0.01
