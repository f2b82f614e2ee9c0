"""Requests go to where their rows have been read before, and to nobody who has too much to do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.addons.ray.pool import Placement, bound, homes, keys_of
from penstock.errors import ConfigError
from penstock.order.plan import Plan, Request
from penstock.order.samplers import Sequential

NODES = st.lists(st.sampled_from(["a", "b", "c", "host-4"]), min_size=1, max_size=12)


class Shards:
    """Rows in shards of ten."""

    def locality(self, indices):
        return indices // 10


def request(*rows, valid=None):
    indices = np.array(rows, np.int64)
    return Request(0, 0, indices, indices, len(rows) if valid is None else valid)


@given(nodes=NODES, new=st.sampled_from(["a", "b", "new"]))
def test_another_worker_takes_shards_for_itself_and_moves_none_between_others(nodes, new):
    shards = np.arange(200)
    before = homes(shards, keys_of(nodes))
    after = homes(shards, keys_of([*nodes, new]))
    moved = before != after
    assert (after[moved] == len(nodes)).all()
    assert moved.any()


@given(nodes=NODES, data=st.data())
def test_a_home_depends_on_the_node_and_not_on_the_order_of_workers(nodes, data):
    shards = np.arange(200)
    shuffled = data.draw(st.permutations(nodes))
    at = np.array(nodes)[homes(shards, keys_of(nodes))]
    assert (at == np.array(shuffled)[homes(shards, keys_of(shuffled))]).all()


@pytest.mark.parametrize("workers", [2, 7, 64])
def test_homes_are_spread_evenly(workers):
    counts = np.bincount(homes(np.arange(100_000), keys_of(["n"] * workers)), minlength=workers)
    mean = 100_000 / workers
    assert np.abs(counts - mean).max() < 5 * mean**0.5


@given(loads=st.lists(st.integers(0, 40), min_size=1, max_size=20))
def test_somebody_is_always_below_the_bound(loads):
    assert min(loads) < bound(loads) <= 5 * (sum(loads) + 1) / (4 * len(loads)) + 1


@given(nodes=NODES, rows=st.lists(st.integers(0, 500), min_size=1, max_size=40), data=st.data())
def test_the_worker_is_the_one_with_the_most_rows_on_the_node_with_the_most(nodes, rows, data):
    loads = data.draw(st.lists(st.integers(0, 6), min_size=len(nodes), max_size=len(nodes)))
    chosen = Placement(Shards(), nodes).worker(request(*rows), loads)
    assert loads[chosen] < bound(loads)
    at = homes(np.array(rows) // 10, keys_of(nodes)).tolist()
    votes = [at.count(worker) for worker in range(len(nodes))]
    of_node = {node: sum(nodes[home] == node for home in at) for node in nodes}
    for other in range(len(nodes)):
        if loads[other] < bound(loads):
            ranks = (of_node[nodes[other]], votes[other], -loads[other])
            assert ranks <= (of_node[nodes[chosen]], votes[chosen], -loads[chosen])


def test_rows_of_padding_have_no_say():
    placement = Placement(Shards(), ["a", "b", "c"])
    for shard in range(20):
        own = placement.worker(request(10 * shard), [0, 0, 0])
        others = [10 * (shard + 1)] * 30
        assert placement.worker(request(10 * shard, *others, valid=1), [0, 0, 0]) == own


@given(loads=st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_without_locality_the_idlest_is_asked(loads):
    chosen = Placement(object(), ["a"] * len(loads)).worker(request(3, 4), loads)
    assert chosen == loads.index(min(loads))


def test_each_epoch_asks_the_same_worker_for_the_same_rows_whatever_came_between():
    placement = Placement(Shards(), ["a", "a", "b"])
    plan = Plan(Sequential(300), 10)
    asked = [
        [placement.worker(plan.request(epoch, step, 0, 1), [0, 0, 0]) for step in range(30)]
        for epoch in range(3)
    ]
    assert asked[0] == asked[1] == asked[2]
    assert len(set(asked[0])) == 3


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (np.zeros(3), r"Own\.locality gave float64\[3\] for 3 rows"),
        (np.zeros((3, 1), int), r"gave int64\[3, 1\]"),
        (7, r"gave int64\[\] for 3 rows"),
        (None, r"gave object\[\]"),
        (KeyError("x"), r"Own\.locality failed: KeyError: 'x'"),
    ],
)
def test_a_locality_that_is_wrong_is_refused(found, message):
    class Own:
        def locality(self, _):
            if isinstance(found, Exception):
                raise found
            return found

    with pytest.raises(ConfigError, match=message):
        Placement(Own(), ["a", "b"]).worker(request(1, 2, 3), [0, 0])
