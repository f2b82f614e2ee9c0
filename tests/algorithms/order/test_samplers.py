"""Orders and batch strategies: distributions, exactness, refusals."""

import sys
import threading
import time
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, DataError
from penstock.order.plan import Plan
from penstock.order.samplers import Bucket, Identity, Random, Subset, Weighted
from penstock.order.torch_samplers import TorchOrder, adapt


def epoch_of(order, epoch=0):
    return order.indices(epoch, 0, order.size(epoch))


def batches_of(strategy, epoch=0):
    return [strategy.batch(epoch, step) for step in range(strategy.size(epoch))]


def test_random_is_another_permutation_each_epoch_and_seed():
    epochs = [epoch_of(Random(100, seed), epoch) for seed in (0, 1) for epoch in (0, 1)]
    for order in epochs:
        assert np.array_equal(np.sort(order), np.arange(100))
    assert len({tuple(order) for order in epochs}) == 4


def test_a_billion_rows_cost_milliseconds_and_little_memory():
    tracemalloc.start()
    order = Random(10**9, 0)
    plan = Plan(order, 256)
    plan.request(1, 7)
    times = []
    for step in (0, len(plan) // 2, len(plan) - 1):
        start = time.process_time()  # of the CPU: others may have it meanwhile
        plan.request(0, step)
        times.append(time.process_time() - start)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(times) < 0.05
    assert peak < 2**20


def test_weighted_balances_classes_of_80_and_20_percent():
    labels = np.array([0] * 800 + [1] * 200)
    order = Weighted(1000, 0, pd.DataFrame({"label": labels}), num_samples=100_000)
    share = labels[epoch_of(order)].mean()
    assert abs(share - 0.5) < 0.01


def test_weighted_draws_follow_a_thousand_weights():
    from scipy import stats

    weights = np.random.default_rng(0).gamma(1.0, size=1000)
    order = Weighted(1000, 0, weights=weights, num_samples=1_000_000)
    counts = np.bincount(epoch_of(order), minlength=1000)
    expected = weights / weights.sum() * counts.sum()
    few = expected < 5
    observed = np.append(counts[~few], counts[few].sum())
    expected = np.append(expected[~few], expected[few].sum())
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_weighted_without_replacement_draws_each_positive_row_at_most_once():
    from scipy import stats

    weights = np.array([0, 5, 1, 0, 3, 1], dtype=float)
    order = Weighted(6, 0, weights=weights, replacement=False)
    assert sorted(epoch_of(order)) == [1, 2, 4, 5]
    first = [
        Weighted(6, seed, weights=weights, replacement=False).indices(0, 0, 1)[0]
        for seed in range(4000)
    ]
    counts = np.bincount(first, minlength=6)
    assert counts[[0, 3]].tolist() == [0, 0]
    assert stats.chisquare(counts[[1, 2, 4, 5]], np.array([5, 1, 3, 1]) * 400).pvalue > 1e-3


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -1, 1], r"weight of row 1 is -1\.0; weights must be finite and not negative"),
        ([1, 1, float("nan")], "weight of row 2 is nan"),
        ([float("inf"), 1, 1], "weight of row 0 is inf"),
        ([0, 0, 0], "not all of them 0"),
        ([1.0, 5e-324, 1], r"weight of row 1 is 5e-324; .* at least 2\^-1000 of the largest"),
        (["a", "b", "c"], "does not hold numbers"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(DataError, match=message):
        Weighted(3, 0, weights=weights)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("scale", [5e-324, 2.0**-1060, 2.0**1021])
def test_the_scale_of_weights_changes_no_draw(scale, replacement):
    weights = np.array([0, 3, 0, 1, 2, 0])
    options = {"replacement": replacement, "num_samples": 3}
    plain = Weighted(6, 0, weights=weights, **options)
    scaled = Weighted(6, 0, weights=weights * scale, **options)
    for epoch in range(50):
        rows = epoch_of(scaled, epoch)
        assert rows.tolist() == epoch_of(plain, epoch).tolist()
        assert set(rows.tolist()) <= {1, 3, 4}


def test_a_missing_column_names_those_that_there_are():
    table = pd.DataFrame({"path": ["a"], "digit": [1]})
    with pytest.raises(ConfigError, match=r"sampler.column: .* no column 'label'.*path, digit"):
        Weighted(1, 0, table)
    with pytest.raises(DataError, match="column 'w' has no value in row 1"):
        Weighted(2, 0, pd.DataFrame({"w": [1.0, None]}), weights="w")


def test_threads_that_ask_for_different_epochs_get_their_own():
    """Each thread reads the rows of its own epoch, whatever another one has asked for meanwhile."""
    order = Weighted(40, 0, weights=np.arange(1, 41), replacement=False)
    expected = {epoch: epoch_of(order, epoch).tolist() for epoch in range(4)}
    wrong, interval = [], sys.getswitchinterval()

    def read(epoch):
        wrong.extend(
            epoch for _ in range(1500) if epoch_of(order, epoch).tolist() != expected[epoch]
        )

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=read, args=(epoch,)) for epoch in expected]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_subset_is_the_same_rows_in_every_epoch():
    order = Subset(1000, 0, fraction=0.1)
    assert order.size(0) == 100
    assert set(epoch_of(order, 0)) == set(epoch_of(order, 1))
    assert not np.array_equal(epoch_of(order, 0), epoch_of(order, 1))
    assert epoch_of(Subset(9, 0, indices=[5, 2], shuffle=False)).tolist() == [5, 2]


def lengths_table(count, seed=0):
    return pd.DataFrame({"length": np.random.default_rng(seed).integers(1, 200, count)})


@given(st.integers(1, 700), st.integers(1, 40), st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_buckets_hold_every_row_once_at_positions_of_their_own(count, size, epoch):
    batches = batches_of(Bucket(count, 0, lengths_table(count), size), epoch)
    rows = np.concatenate([rows for _, rows in batches])
    positions = np.concatenate([positions for positions, _ in batches])
    assert np.array_equal(np.sort(rows), np.arange(count))
    assert np.array_equal(np.sort(positions), np.arange(count))
    assert max(len(rows) for _, rows in batches) <= size


def test_bucket_tail_can_be_dropped():
    batches = batches_of(Bucket(100, 0, lengths_table(100), 8, tail="drop", num_buckets=3))
    assert {len(rows) for _, rows in batches} == {8}
    with pytest.raises(DataError, match="does not hold numbers"):
        Bucket(2, 0, pd.DataFrame({"length": ["a", "b"]}), 8)


def test_identity_batches_hold_p_identities_and_k_samples():
    labels = np.repeat(np.arange(10), np.arange(3, 13))
    strategy = Identity(len(labels), 0, pd.DataFrame({"label": labels}), identities=4, samples=3)
    seen = set()
    for step in range(strategy.size(0)):
        positions, rows = strategy.batch(0, step)
        names, counts = np.unique(labels[rows], return_counts=True)
        assert len(names) == 4
        assert counts.tolist() == [3] * 4
        assert positions.tolist() == list(range(12 * step, 12 * step + 12))
        for name in names:
            assert len(set(rows[labels[rows] == name])) == 3
        seen |= set(rows)
    assert len(seen) > 0.5 * len(labels)
    with pytest.raises(ConfigError, match=r"wants 11 identities, but .* only 10"):
        Identity(len(labels), 0, pd.DataFrame({"label": labels}), identities=11)


def test_a_torch_sampler_is_drawn_anew_for_every_epoch():
    order = adapt(lambda: torch.utils.data.RandomSampler(range(20)), seed=0, length=20)
    assert isinstance(order, TorchOrder)
    first = epoch_of(order, 0)
    assert sorted(first) == list(range(20))
    assert not np.array_equal(first, epoch_of(order, 1))
    fresh = adapt(lambda: torch.utils.data.RandomSampler(range(20)), seed=0, length=20)
    assert np.array_equal(epoch_of(fresh, 1), epoch_of(order, 1))


class OwnSampler(torch.utils.data.Sampler[int]):
    """Draws from a global generator, and has a length of its own each epoch."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.permutation(5 + self.epoch).tolist())


def test_a_persons_own_sampler_is_seeded_and_learns_the_epoch():
    order = adapt(OwnSampler, seed=3, length=50)
    assert [order.size(epoch) for epoch in range(3)] == [5, 6, 7]
    assert np.array_equal(epoch_of(order, 2), epoch_of(adapt(OwnSampler, 3, 50), 2))
    assert Plan(order, 2).steps(2) == 4
    with pytest.raises(ConfigError, match=r"gave row \d, but the dataset has only 2 rows"):
        epoch_of(adapt(OwnSampler, seed=3, length=2))


def test_a_late_batch_of_a_batch_sampler_costs_what_the_first_does():
    strategy = adapt(lambda: ([row] for row in range(200_000)), seed=0, length=200_000)
    strategy.batch(0, 0)
    began = time.process_time()
    last = [strategy.batch(0, step) for step in range(199_900, 200_000)]
    assert time.process_time() - began < 0.1  # 1 ms each; a sum of all before took 15 ms
    assert [int(rows[0]) for _, rows in last] == list(range(199_900, 200_000))
    assert [int(positions[0]) for positions, _ in last] == list(range(199_900, 200_000))


def padded_size(batches, lengths):
    return sum(len(rows) * int(lengths[rows].max()) for _, rows in batches)


@pytest.mark.parametrize("more", [{}, {"tokens": 2048}, {"batch_size": 64}, {"batch_size": 7}])
def test_buckets_of_texts_are_hardly_larger_than_a_sort(more):
    """Lengths as those of short messages: many of 5 to 30 words, and a tail up to 250."""
    draws = np.random.default_rng(0)
    lengths = np.minimum(1 + draws.lognormal(2.7, 0.7, 4000).astype(int), 250)
    options = {"batch_size": 32} | more
    table = pd.DataFrame({"length": lengths})
    bucket = Bucket(4000, 0, table, **options, long_tail=True)
    batches = batches_of(bucket)
    size, order = options["batch_size"], np.argsort(lengths, kind="stable")
    if "tokens" in more:
        assert all(len(rows) * lengths[rows].max() <= 2048 for _, rows in batches)
    sort = [(None, order[start : start + size]) for start in range(0, 4000, size)]
    assert padded_size(batches, lengths) <= 1.3 * padded_size(sort, lengths)
    rows = np.sort(np.concatenate([rows for _, rows in batches]))
    assert np.array_equal(rows, np.arange(4000))
    again = [tuple(sorted(rows)) for _, rows in batches_of(bucket, 1)]
    assert len(set(again) & {tuple(sorted(rows)) for _, rows in batches}) < len(batches) / 4
