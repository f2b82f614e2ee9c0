"""Streams: everything exactly once, in the same batches, for any workers and ranks."""

import pytest
import torch

from penstock.distributed.world import World
from penstock.errors import ConfigError, DataError
from penstock.loading.batch import batch_hash
from penstock.loading.collate import Stack
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.stream import StreamFetch
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Plan, StreamOrder, StreamPlan, is_stream, length_of
from penstock.order.samplers import Random
from tests.support import streams, toy


def fetch_of(dataset, order=None, size=4, tail="keep", transform=None):
    order = order or StreamOrder(seed=0)
    return StreamFetch(dataset, transform, Stack(), 0, True, plan=StreamPlan(order, size, tail))


def loader_of(dataset, options=None, order=None, size=4, tail="keep", transform=None, world=None):
    fetch = fetch_of(dataset, order, size, tail, transform)
    return Loader(fetch.plan, fetch, options, world)


def numbers(batches):
    """The valid records of batches, in order."""
    found = []
    for batch in batches:
        rows = batch["x"].flatten().tolist()
        valid = [True] * len(rows) if batch.valid is None else batch.valid.tolist()
        found += [row for row, counts in zip(rows, valid, strict=True) if counts]
    return found


OPTIONS = {
    "main": LoaderOptions(),
    "1 worker": LoaderOptions("process", 1),
    "2 workers": LoaderOptions("process", 2),
    "4 workers": LoaderOptions("process", 4, persistent_workers=True),
    "3 threads": LoaderOptions("thread", 3),
}


class Noise:
    def __call__(self, sample):
        return {**sample, "drawn": torch.rand(2)}


def test_threads_refuse_a_stream_that_draws_where_they_cannot_follow():
    from penstock.order.seeding import SharedGeneratorError

    with pytest.raises(SharedGeneratorError, match="random"):
        list(loader_of(streams.Drawing(20), OPTIONS["3 threads"]))


def test_a_batch_is_made_by_one_worker_and_the_batches_by_both():
    loader = loader_of(streams.Working(16, 0.05), OPTIONS["2 workers"])
    batches = list(loader)
    assert [b["x"].flatten().tolist() for b in batches] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 13, 14, 15],
    ]
    workers = [set(b["worker"].tolist()) for b in batches]
    assert all(len(one) == 1 for one in workers)
    assert set.union(*workers) == {0, 1}


def test_a_shuffled_epoch_differs_and_mixes_within_the_buffer():
    def epoch(number, seed=0):
        return numbers(loader_of(streams.Decoding(100), order=StreamOrder(seed, 10)).epoch(number))

    assert sorted(epoch(0)) == list(range(100))
    assert len({tuple(epoch(0)), tuple(epoch(1)), tuple(epoch(0, seed=1))}) == 3
    assert epoch(0) == epoch(0)
    assert max(abs(place - number) for place, number in enumerate(epoch(0))) < 10
    borders = {StreamOrder(0, 10).block(number, 50)[0] for number in range(20)}
    assert len(borders) > 3  # blocks begin elsewhere in other epochs


def test_an_endless_stream_has_as_many_steps_as_are_wanted():
    order = StreamOrder(0, steps=5)
    for name in ("main", "2 workers", "3 threads"):
        loader = loader_of(streams.Endless(), OPTIONS[name], order)
        assert numbers(loader) == list(range(20))
        assert len(loader) == 5
    with pytest.raises(TypeError, match="does not say how long it is"):
        len(loader_of(streams.Plain(3)))


def test_a_wrong_length_loses_nothing(caplog):
    class Liar(streams.Plain):
        def __len__(self):
            return 10

    fetch = fetch_of(Liar(13))
    loader = Loader(StreamPlan(fetch.plan.sampler, 4, length=10), fetch)
    for _ in range(2):
        assert numbers(loader) == list(range(13))
    assert "Liar has not as many records as it says: 10" in caplog.text
    assert not any("has not" in text for text in logged(streams.Plain(13), 13, caplog))


def logged(dataset, length, caplog):
    """What is logged where `length` is the right one."""
    caplog.clear()
    fetch = fetch_of(dataset)
    assert len(list(Loader(StreamPlan(fetch.plan.sampler, 4, length=length), fetch))) == 4
    return caplog.messages


def test_a_broken_stream_is_a_data_error_and_can_be_read_again():
    class Broken(streams.Plain):
        fails = True

        def __iter__(self):
            yield from super().__iter__()
            if self.fails:
                raise OSError("the line went dead")

    dataset = Broken(6)
    loader = loader_of(dataset)
    batches = loader.epoch(0)
    next(batches)
    with pytest.raises(DataError, match="Broken cannot be read for epoch 0, step 1: OSError: the"):
        next(batches)
    dataset.fails = False
    assert numbers(loader.epoch(0)) == list(range(6))


def test_delivery_out_of_order_is_refused():
    with pytest.raises(ConfigError, match=r"loader\.in_order: must be true for a stream"):
        loader_of(streams.Plain(3), LoaderOptions("process", 2, in_order=False))


def of_kind(kind, length, options, world):
    """A loader over 0 .. length-1 of a map-style dataset or a stream."""
    if kind == "map-style":
        plan, rows = Plan(Random(length, 0), 6), [{"x": torch.tensor([n])} for n in range(length)]
        return Loader(plan, Fetch(rows, Noise(), Stack(), 0, True), options, world)
    order = StreamOrder(0, buffer=5, shuffle_shards=True)
    dataset = {"stream": streams.Plain, "sharded stream": streams.Sharded}[kind](length)
    return loader_of(dataset, options, order, size=6, transform=Noise(), world=world)


@pytest.mark.one_in(10)
@pytest.mark.parametrize(
    "workers", [0, 2, *(pytest.param(n, marks=pytest.mark.stress) for n in (1, 3, 4))]
)
@pytest.mark.parametrize("kind", ["map-style", "stream", "sharded stream"])
def test_every_kind_for_any_workers_and_ranks(kind, workers):
    """Real worker processes and 1 to 3 ranks; also fewer records than ranks x workers."""
    options = LoaderOptions("process", workers)
    with pytest.raises(ConfigError, match="has no sample"):
        list(of_kind(kind, 0, options, World(1, 2)))
    for length, sizes in {1: [2], 5: [1, 3], 23: [1, 2, 3]}.items():
        alone = toy.hashes(of_kind(kind, length, OPTIONS["main"], World()))
        for size in sizes:
            ranks = [
                list(of_kind(kind, length, options, World(rank, size))) for rank in range(size)
            ]
            steps = list(zip(*ranks, strict=True))
            assert [batch_hash(shares) for shares in steps] == alone
            found = numbers(batch for shares in steps for batch in shares)
            assert sorted(found) == list(range(length))


@pytest.mark.parametrize(
    ("length", "tail", "most", "steps"),
    [
        (None, "keep", None, None),
        (None, "keep", 5, 5),
        (9, "keep", None, 3),
        (9, "drop", None, 2),
        (8, "keep", None, 2),
        (8, "drop", None, 2),
        (9, "keep", 2, 2),
        (9, "keep", 7, 3),
    ],
)
def test_steps_of_a_stream(length, tail, most, steps):
    plan = StreamPlan(StreamOrder(0), 4, tail, length=length, most=most)
    assert (plan.steps(3), plan.limit(3)) == (steps, most)
    request = plan.request(1, 2)
    assert (request.epoch, request.step, request.rank, request.world) == (1, 2, 0, 1)
    assert StreamPlan(StreamOrder(0, steps=3), 4, most=most).most == min(most or 3, 3)
    with pytest.raises(ConfigError, match=r"trainer\.overfit_batches: needs samples by index"):
        StreamPlan(StreamOrder(0), 4, again=True)


@pytest.mark.parametrize("rows", [-1, 2**63])
def test_a_length_that_is_no_number_of_rows_is_refused(rows):
    kind = type("Odd", (), {"__len__": lambda self: rows})
    with pytest.raises(DataError, match=r"Odd\.__len__: "):
        length_of(kind())
    sized = type("Sized", (), {"__len__": lambda self: 2**63 - 1})
    assert length_of(sized()) == 2**63 - 1
    assert length_of(type("Empty", (), {"__len__": lambda self: 0})()) == 0
    assert length_of(object()) is None


def test_a_function_that_yields_is_a_stream():
    def records():
        yield 1

    assert is_stream(records)
    assert not is_stream(lambda: [1])
    assert is_stream(type("Iterated", (), {"__iter__": lambda self: iter([])}))
