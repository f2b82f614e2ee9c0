"""Mixtures of datasets."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.addons.mixtures.mixture_stream import StreamMixture
from penstock.errors import ConfigError
from penstock.loading.fetch import batch_hash
from penstock.order.plan import StreamOrder, StreamPlan
from tests import streams
from tests.order.test_streams import by_executors, fetch_of, loader_of, numbers


class Rows:
    """A map-style dataset of numbers from `first` on."""

    def __init__(self, first, length):
        self.first, self.length = first, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return streams.Decoding(0).decode(self.first + index)


class Shifted(streams.Decoding):
    def __len__(self):
        return self.length

    def decode(self, record):
        return super().decode(record + 1000)


def mixture(a=30, b=10, **options):
    return StreamMixture({"rows": Rows(0, a), "stream": Shifted(b)}, **options)


@pytest.mark.thorough
@given(
    st.integers(0, 40), st.integers(0, 40), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2)
)
@settings(max_examples=40, deadline=None)
def test_a_mixture_gives_everything_once_to_any_executors(a, b, workers, world, epoch):
    plan = StreamPlan(StreamOrder(0, buffer=5), 6)

    def make():
        return fetch_of(mixture(a, b, weights={"rows": 3, "stream": 1}), plan.sampler, 6)

    alone = by_executors(make, plan, 1, 1, epoch)
    shared = by_executors(make, plan, workers, world, epoch)
    found = numbers(batch for shares in shared.values() for batch in shares)
    assert sorted(found) == [*range(a), *range(1000, 1000 + b)]
    assert [batch_hash(s) for s in alone.values()] == [batch_hash(s) for s in shared.values()]


def test_the_weights_are_the_proportions():
    endless = mixture(weights={"rows": 1, "stream": 3}, stop="never")
    names = [name for name, _ in islice(endless, 8000)]
    assert abs(names.count("stream") / 8000 - 0.75) < 0.02


def test_weights_follow_lengths_if_none_are_given():
    first = [name for name, _ in islice(mixture(3000, 1000), 400)]
    assert abs(first.count("rows") / 400 - 0.75) < 0.1


def test_map_style_sources_are_shuffled_anew_in_every_pass_and_epoch():
    endless = mixture(20, 20, weights={"rows": 1, "stream": 0}, stop="never")
    rows = [row for _, row in islice(endless, 40)]
    assert sorted(rows[:20]) == sorted(rows[20:]) == list(range(20))
    assert rows[:20] != rows[20:]
    endless.set_epoch(1)
    assert [row for _, row in islice(endless, 20)] != rows[:20]


def test_where_a_mixture_stops():
    assert len(mixture()) == 40
    with pytest.raises(TypeError, match="only a mixture with stop='all'"):
        len(mixture(stop="first"))
    names = [name for name, _ in mixture(1000, 10, stop="first", weights={"rows": 1, "stream": 1})]
    assert names.count("stream") == 10
    assert names.count("rows") < 40


def test_validation_gives_every_record_once():
    val = mixture(30, 10, stop="never", split="val", weights={"rows": 1, "stream": 5})
    assert len(list(val)) == len(val) == 40


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(ConfigError, match=r"weights: are for \['a'\], but the sources are"):
        mixture(weights={"a": 1})
    with pytest.raises(ConfigError, match="finite, not negative and not all zero"):
        mixture(weights={"rows": -1, "stream": 1})
    with pytest.raises(ConfigError, match="not all zero"):
        mixture(weights={"rows": 0, "stream": 0})
    with pytest.raises(ConfigError, match="'rows' has no records"):
        mixture(0, 5, stop="never", weights={"rows": 1, "stream": 1})
    with pytest.raises(ConfigError, match="'sometimes' is not all, first or never"):
        mixture(stop="sometimes")
    with pytest.raises(ConfigError, match="is empty"):
        StreamMixture({}, weights={})


def test_a_mixture_through_workers():
    from penstock.loading.workers.options import LoaderOptions

    def epoch(options):
        return np.array(numbers(loader_of(mixture(), options, StreamOrder(1, 8)).epoch(1)))

    assert np.array_equal(epoch(LoaderOptions()), epoch(LoaderOptions("process", 2)))


def test_facts_are_those_that_all_sources_agree_on():
    first, second = Rows(0, 3), Rows(0, 3)
    first.facts, second.facts = {"num_outputs": 2, "a": 1}, {"num_outputs": 2, "a": 3}
    assert StreamMixture({"first": first, "second": second}).facts == {"num_outputs": 2}
    one, other = (StreamMixture({"first": first}, seed=seed).fingerprint for seed in (0, 1))
    assert one != other
