"""Where sorted rows are cut into buckets, and how large their batches are."""

from itertools import combinations, pairwise

import numpy as np
import pandas as pd
import pytest

from penstock.errors import ConfigError
from penstock.order.samplers import WITHIN, Bucket, cuts

COUNTING = np.arange(1, 13)
SHORT_AND_LONG = np.array([1] * 12 + [40] * 4)


def sizes_of(lengths, batch_size, **options):
    """(rows, rows in a batch) of each bucket."""
    table = pd.DataFrame({"length": lengths})
    bucket = Bucket(len(table), 0, table, batch_size, **options)
    rows = np.diff(bucket.edges).tolist()
    return list(zip(rows, bucket.batch_sizes.tolist(), strict=True))


@pytest.mark.parametrize(
    ("lengths", "options", "expected"),
    [
        (COUNTING, {"num_buckets": 3}, [(4, 2)] * 3),
        (COUNTING[:5], {"num_buckets": 3}, [(1, 2), (2, 2), (2, 2)]),
        (COUNTING[:2], {"num_buckets": 3}, [(1, 2), (1, 2)]),  # no bucket is empty
        (np.ones(47, int), {}, [(23, 2), (24, 2)]),  # about eight batches in each
        (np.ones(48, int), {}, [(16, 2)] * 3),
        (np.ones(15, int), {}, [(15, 2)]),
        (np.ones(2000, int), {"batch_size": 1}, None),
        (COUNTING, {"tokens": 12, "num_buckets": 3}, [(4, 3), (4, 1), (4, 1)]),
        (COUNTING, {"tokens": 24, "num_buckets": 2}, [(6, 4), (6, 2)]),
        (np.zeros(6, int), {"tokens": 3, "num_buckets": 2}, [(3, 3), (3, 3)]),
        ([0, 0, 0, 1], {"tokens": 3}, [(4, 3)]),
        # 6.5 on average: a batch has 2 rows, and 8 batches have 16
        (np.tile(COUNTING, 4), {"tokens": 13}, [(16, 3), (16, 1), (16, 1)]),
        (SHORT_AND_LONG, {"long_tail": True}, [(12, 2), (4, 2)]),
        (SHORT_AND_LONG, {"long_tail": True, "tokens": 80}, [(16, 2)]),
        (SHORT_AND_LONG, {"long_tail": True, "tokens": 40}, [(12, 40), (4, 1)]),
    ],
)
def test_rows_of_buckets_and_of_their_batches(lengths, options, expected):
    options = {"batch_size": 2, "tokens": None, "num_buckets": None} | options
    sizes = sizes_of(lengths, **options)
    if expected is None:
        assert len(sizes) == 64
    else:
        assert sizes == expected


def test_the_longest_row_just_fits():
    assert sizes_of(COUNTING, 2, tokens=12, num_buckets=1) == [(12, 1)]
    with pytest.raises(ConfigError, match="the budget is 11, but the longest row has 12"):
        sizes_of(COUNTING, 2, tokens=11, num_buckets=1)


def padded(lengths, edges):
    return sum((stop - start) * max(lengths[stop - 1], 1) for start, stop in pairwise(edges))


def best_of(lengths, rows, count):
    """The least padded size of at most `count` buckets of two batches or more, by brute force."""
    inner = range(2 * rows, len(lengths), rows)
    choices = (
        (0, *some, len(lengths)) for many in range(count) for some in combinations(inner, many)
    )
    whole = [
        edges
        for edges in choices
        if len(edges) == 2 or all(stop - start > rows for start, stop in pairwise(edges))
    ]
    return min(padded(lengths, edges) for edges in whole)


@pytest.mark.parametrize("seed", range(12))
def test_cuts_save_as_much_as_any_could(seed):
    draws = np.random.default_rng(seed)
    rows = int(draws.integers(1, 4))
    lengths = np.sort(draws.integers(0, 60, int(draws.integers(6, 11 * rows + 3))))
    most = -(-len(lengths) // rows) // 2
    sort = padded(lengths, [*range(0, len(lengths), rows), len(lengths)])
    for count in range(1, 5):
        edges = cuts(lengths, rows, count)
        assert padded(lengths, edges) == best_of(lengths, rows, min(count, most)), edges
    edges = cuts(lengths, rows, None)
    if len(edges) - 1 < most and padded(lengths, edges) > best_of(lengths, rows, most):
        assert padded(lengths, edges) <= WITHIN * sort  # as few as that takes
    if len(edges) > 2:
        assert best_of(lengths, rows, len(edges) - 2) > WITHIN * sort
