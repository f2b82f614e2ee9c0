"""Batches of a dataset by their digests, for tests that read the same data in several ways."""

from penstock.loading.batch import hash_of_rows, row_hashes
from penstock.loading.collate import List
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.stream import StreamFetch
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Plan, StreamOrder, StreamPlan, is_stream
from penstock.order.samplers import Random


def digests(data, size, middle, *, buffer=100, **workers):
    """Of all shuffled batches of an epoch, and of those of the next one from step `middle` on."""
    if is_stream(data):
        order = StreamOrder(3, buffer, shuffle_shards=True)
        plan = StreamPlan(order, size)
        fetch = StreamFetch(data, None, List(), 3, hashed=True, plan=plan)
    else:
        fetch = Fetch(data, None, List(), seed=3, hashed=True)
        plan = Plan(Random(len(data), 3), size)
    made = []
    with Loader(plan, fetch, LoaderOptions(**workers)) as loader:
        for epoch, start in ((0, 0), (1, middle)):
            made += [hash_of_rows(row_hashes(batch)) for batch in loader.epoch(epoch, start)]
    return made
