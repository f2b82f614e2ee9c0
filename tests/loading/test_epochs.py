"""An epoch of a loader in this process: its time, its shares, what hears of it, what it refuses."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from penstock import installed
from penstock.distributed.world import World
from penstock.errors import ConfigError, DataError
from penstock.files.batch_bytes import at_hand
from penstock.loading import loader as module
from penstock.loading import transfer
from penstock.loading.autotune import Auto
from penstock.loading.bad_samples import Budget, rule
from penstock.loading.batch import TAKEN
from penstock.loading.collate import Stack
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.sampled_rows import SampleRequest
from penstock.loading.stream_fetch import StreamFetch
from penstock.loading.workers.backends import MainBackend
from penstock.loading.workers.options import LoaderOptions
from penstock.order.plan import Plan
from penstock.order.samplers import Sequential
from penstock.order.skipped import Skipped
from penstock.order.streams import StreamOrder, StreamPlan
from tests.loading.rows import Rows


class Data(Rows):
    """So many rows; reading one takes a second of the clock."""

    draws = False

    def __init__(self, length=10, bad=(), clock=None):
        super().__init__(bad)
        self.length, self.clock = length, clock or SimpleNamespace(now=0.0)

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        self.clock.now += 1
        return super().__getitem__(row)


class Records:
    """A stream of so many records."""

    draws = False

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return ({"x": float(number)} for number in range(self.count))


def over(dataset, size=4, tail="keep", bad=None, skipped=None, **arguments):
    plan = Plan(Sequential(len(dataset)), size, tail, skipped=skipped)
    fetch = Fetch(dataset, None, Stack(), 0, **({"bad": bad} if bad else {}))
    return Loader(plan, fetch, **arguments)


def stream(count, tail="keep", options=None):
    order = StreamOrder(0)
    fetch = StreamFetch(Records(count), None, Stack(), 0, order=order, batch_size=4, tail=tail)
    return Loader(StreamPlan(order, 4, tail), fetch, options)


def rows(batches):
    return [batch.indices.tolist() for batch in batches]


WHOLE = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_time_is_what_the_consumer_waits_and_all_of_it(clock):
    loader, seen = over(Data(clock=clock)), []
    for batch in loader.epoch(0):
        stats = loader.stats
        seen.append((stats.batches, stats.samples, stats.wait_seconds, stats.total_seconds))
        assert len(batch.indices) in (4, 2)
        clock.now += 10
    assert seen == [(1, 4, 4, 4), (2, 8, 8, 18), (3, 10, 10, 30)]
    assert (loader.stats.total_seconds, loader.stats.wait_share) == (40, 0.25)
    assert module.LoaderStats().wait_share == 0


def test_moving_a_batch_counts_as_its_transfer(clock, monkeypatch):
    moved = module.Batch.to

    def to(batch, device):
        clock.now += 3
        return moved(batch, device)

    monkeypatch.setattr(module.Batch, "to", to)
    loader = over(Data(), world=World(device="meta"))
    batches = list(loader.epoch(0))
    assert [batch.timing["transfer"] for batch in batches] == [3, 3, 3]
    assert {batch["x"].device.type for batch in batches} == {"meta"}
    assert loader.stats.stages["transfer"] == 9


@pytest.mark.parametrize(
    ("pin", "accelerator", "device", "pins", "moves", "ahead"),
    [
        (True, True, "cuda:0", True, True, True),
        (True, False, "cuda:0", False, False, False),
        (False, True, "cuda:0", False, False, False),
        (True, True, "cpu", True, False, True),
        (True, True, "meta", True, False, False),
    ],
)
def test_pinned_batches_of_a_cuda_device_are_moved_ahead(
    monkeypatch, pin, accelerator, device, pins, moves, ahead
):
    monkeypatch.setattr(module, "has_accelerator", lambda: accelerator)
    monkeypatch.setattr(transfer, "Transfer", lambda device: (device, "moves"))
    loader = over(Data(), options=LoaderOptions(pin_memory=pin), world=World(device=device))
    assert (loader._pin, loader._moved_ahead) == (pins, ahead)
    assert loader._transfer == ((device, "moves") if moves else None)


class Exchange:
    """Takes the batches of one step from somebody else."""

    def __init__(self, taken=None):
        self.heard, self.taken = [], taken

    def begin(self, *told):
        self.heard.append(("begin", *told))

    def move(self, *address):
        self.heard.append(address)

    def end(self):
        self.heard.append("end")

    def batch(self, make, request):
        batch = make()
        return batch.replace(timing={TAKEN: 1.0}) if request.step == self.taken else batch


def test_an_exchange_hears_of_each_batch():
    exchange = Exchange(taken=1)
    loader = over(Data(), options=LoaderOptions(num_workers=3), exchange=exchange)
    loader.begin(0)
    assert loader._begun is None
    assert rows(loader.epoch(0)) == WHOLE
    assert loader.stats.shared == 1
    assert exchange.heard == [("begin", 0, 0, 3, 3), (0, 1), (0, 2), (0, 3)]
    assert rows(loader.epoch(2, 2)) == WHOLE[2:]
    assert exchange.heard[4:] == [("begin", 2, 2, 3, 3), (2, 3)]
    loader.close()
    assert exchange.heard[-1] == "end"
    over(Data()).close()
    over(Data(), options=LoaderOptions(keyed=False))
    with pytest.raises(ConfigError, match="keyed by sample"):
        over(Data(), options=LoaderOptions(keyed=False), exchange=exchange)


class Ahead:
    """Notes what is fetched ahead."""

    def __init__(self, plan, dataset, rank, world, options):
        self.told, self.heard, self.arguments = [], [], (rank, world, options.num_workers)

    def requests(self, epoch, step, requests):
        self.heard.append((epoch, step))
        for request in requests:
            self.told.append(request.step)
            yield request

    def delivered(self, step):
        self.heard.append(step)

    def close(self):
        self.heard.append("close")

    def __enter__(self):
        self.heard.append("enter")

    def __exit__(self, *_):
        self.heard.append("exit")


class Remote(Data):
    remote_files = ()


def test_files_are_fetched_ahead_of_a_dataset_that_has_some_at_addresses(monkeypatch):
    addons = {
        "without": SimpleNamespace(ahead=""),
        "first": SimpleNamespace(ahead=f"{__name__}:Ahead"),
        "second": SimpleNamespace(ahead="nowhere:Nothing"),
    }
    monkeypatch.setattr(installed, "addons", lambda: addons)
    loader = over(Remote(), world=World(rank=1, size=2))
    loader.begin(0)
    assert loader._begun is None
    assert loader._ahead.arguments == (1, 2, 0)
    assert rows(loader.epoch(0, 1)) == [[6, 7], [9]]
    loader.close()
    assert loader._ahead.told == [1, 2]
    assert loader._ahead.heard == ["enter", (0, 1), 1, 2, "exit", "close"]
    assert over(Data())._ahead is None
    del addons["first"], addons["second"]
    assert over(Remote())._ahead is None


class Lanes:
    shares = ((0, 2), (1, 2))

    def together(self, parts):
        assert [len(part.indices) for part in parts] in ([2, 2], [1, 1])
        return parts[0].replace(indices=np.concatenate([part.indices for part in parts]))


def test_the_shares_of_a_rank_are_put_together_or_one_is_asked_for():
    loader = over(Data(), lanes=Lanes(), batch_transform=lambda batch: batch.replace({"y": 1}))
    batches = list(loader.epoch(0))
    assert rows(batches) == WHOLE
    assert [list(batch) for batch in batches] == [["y"]] * 3
    assert (loader.stats.batches, loader.stats.samples) == (3, 10)
    second = [[2, 3], [6, 7], [9]]
    loader.begin(0)
    assert rows(loader.epoch(0, share=(1, 2))) == second  # and not what was begun for all
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize(
    ("start", "share", "is_begun"),
    [(0, None, True), (0, (1, 2), True), (1, None, False), (0, (0, 2), False)],
)
def test_what_was_begun_is_used_where_it_is_what_is_asked_for(monkeypatch, start, share, is_begun):
    loader, asked = over(Data(), world=World(rank=1, size=2)), []
    loader.begin(0)
    begun, results = loader._begun[1], loader._results
    monkeypatch.setattr(loader, "_results", lambda *told: asked.append(told) or results(*told))
    own = {(0, 2): [[0, 1], [4, 5], [8]]}.get(share, [[2, 3], [6, 7], [9]])
    assert rows(loader.epoch(0, start, share)) == own[start:]
    assert len(asked) == (0 if is_begun else 1)
    assert begun.gi_frame is None  # it has ended or was closed


def test_leaving_an_epoch_gives_the_next_address_and_ends_it():
    loader = over(Data())
    batches = loader.epoch(3, 1)
    next(batches)
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (3, 2)
    assert [batch.request.address for batch in loader] == [(4, 0), (4, 1), (4, 2)]
    loader.load_state_dict({**loader.state_dict(), "epoch": 7, "step": 2})
    assert [batch.request.address for batch in loader] == [(7, 2)]


def test_a_begun_epoch_that_nobody_asks_for_is_dropped():
    loader = over(Data())
    loader.begin(2)
    first = loader._begun
    loader.begin(3)
    assert loader._begun is first
    loader.close()
    assert loader._begun is None
    assert first[1].gi_frame is None


class Told:
    """A tuner that says beforehand behind which of all batches there are how many workers."""

    def __init__(self, changes):
        self.changes, self.count, self.workers, self.epochs = changes, 0, 1, 0

    def begin_epoch(self):
        self.epochs += 1

    def delivered(self, batches, waited, elapsed):
        self.count += 1
        if self.count in self.changes:
            self.workers = self.changes[self.count]
        return self.count in self.changes


class Dying(MainBackend):
    """As many of its workers have died as it has, when it is closed."""

    def __init__(self, fetch, options, pin):
        super().__init__(fetch)
        self.workers = options.num_workers

    def close(self):
        self.deaths = self.workers


@pytest.mark.parametrize("lanes", [None, Lanes()])
def test_other_workers_continue_behind_the_last_batch(monkeypatch, lanes):
    opened = []
    monkeypatch.setattr(
        module, "open_backend", lambda *told: opened.append(Dying(*told)) or opened[-1]
    )
    loader = over(Data(), options=LoaderOptions(num_workers=1, auto=Auto(9)), lanes=lanes)
    assert loader._tuner.workers == 1
    loader._tuner = tuner = Told({1: 2, 2: 5, 4: 3})
    loader.begin(0)
    assert loader._begun is None  # where workers are tuned
    assert rows(loader.epoch(0)) == WHOLE
    assert [backend.workers for backend in opened] == [1, 2, 5]
    assert (loader.stats.deaths, loader.deaths) == (3, 3)
    assert rows(loader.epoch(1)) == WHOLE
    assert [backend.workers for backend in opened] == [1, 2, 5, 3]
    assert (tuner.epochs, tuner.count) == (2, 6)
    assert (loader.stats.deaths, loader.deaths) == (5, 8)
    assert loader.options.num_workers == 3
    opened[-1].deaths = 2
    batches = loader.epoch(2)
    next(batches)
    assert (loader.stats.deaths, loader.deaths) == (0, 10)
    opened[-1].deaths = 3
    next(batches)
    assert loader.stats.deaths == 1


def test_a_loader_that_is_not_tuned_has_no_tuner():
    assert over(Data(), options=LoaderOptions("process", 0))._tuner is None


def test_more_bad_samples_than_the_budget_end_the_run_behind_their_batch():
    bad = rule("skip", {}, Sequential(10), 10, 0)
    loader = over(Data(bad=(1, 5, 9)), bad=bad, budget=Budget(2, "train", lambda epoch: 10))
    batches, seen = loader.epoch(0), []
    with pytest.raises(DataError, match=r"3 bad samples in epoch 0 .*\(10 samples\)"):
        seen.extend(map(rows, ([batch] for batch in batches)))
    assert seen == [[[0, 2, 3]], [[4, 6, 7]], [[8]]]
    loader.plan.most = 2
    assert rows(loader.epoch(1)) == [[0, 2, 3], [4, 6, 7]]  # a new epoch has a budget of its own


@pytest.mark.parametrize(("asked", "batches"), [(0, 0), (1, 1), (2, 2)])
def test_a_dataset_must_keep_its_length(asked, batches):
    loader, seen = over(Data(length=8)), []
    epoch = loader.epoch(0)
    seen.extend(next(epoch) for _ in range(asked))
    loader.fetch.dataset.length = 9
    with pytest.raises(DataError, match="had 8 rows when its order was made, and has 9 now"):
        seen.extend(epoch)
    assert len(seen) == batches


def test_the_length_is_looked_at_with_the_last_batch_and_behind_an_error():
    """Whoever counts batches does not ask for the end."""
    loader = over(Data(length=8))
    epoch = loader.epoch(0)
    next(epoch)
    read, loader.fetch.dataset.length = loader.fetch.dataset.read, 7
    with pytest.raises(DataError, match="had 8 rows"):
        next(epoch)
    assert read == [*range(8)]
    loader = over(Data(length=8, bad=(5,)))
    epoch = loader.epoch(0)
    next(epoch)
    loader.fetch.dataset.length = 5
    with pytest.raises(DataError, match="had 8 rows"):
        next(epoch)


def test_the_length_is_not_looked_at_between_batches():
    loader = over(Data())
    epoch = loader.epoch(0)
    next(epoch)
    loader.fetch.dataset.length = 9
    next(epoch)


def empty(tail):
    return over(Data(length=3 if tail == "drop" else 0), tail=tail)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: empty("drop"),
            r"batch.tail: drop leaves out what is less than a batch of 4, and epoch 0 of Data has",
        ),
        (lambda: empty("keep"), r"sampler: the sampler gives no row of Data in epoch 0"),
        (lambda: stream(0), r"dataset: Records gives no record in epoch 0"),
        (lambda: stream(3, "drop"), r"batch.tail: drop leaves out .* epoch 0 of Records has"),
    ],
)
def test_an_epoch_without_a_batch_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        list(make().epoch(0))
    assert list(make().epoch(0, 1)) == []  # the rest of one may have none


def test_an_epoch_may_have_no_batch_where_all_are_skipped():
    loader = over(Data(), skipped=Skipped.of([[[0, 0], [1, 0]], [[1, 1], [1, 2]]]))
    assert list(loader.epoch(0)) == []
    assert rows(loader.epoch(1)) == [WHOLE[0], WHOLE[2]]
    assert loader.stats.batches == 2


def test_a_stream_is_delivered_in_order():
    assert [len(batch["x"]) for batch in stream(9).epoch(0)] == [4, 4, 1]
    with pytest.raises(ConfigError, match=r"loader.in_order: must be true for a stream"):
        stream(9, options=LoaderOptions(in_order=False))
    over(Data(), options=LoaderOptions(in_order=False))


def test_marks_of_the_data_are_asked_for_behind_the_first_batch_or_now(caplog):
    loader = over(Data(), sample=SampleRequest.of(10))
    batches = loader.epoch(0)
    next(batches)
    assert loader.seen is None
    next(batches)
    known = loader.seen
    assert [word.split(":")[0] for word in known["rows"].split()] == [str(n) for n in range(10)]
    read = len(loader.fetch.dataset.read)
    assert loader.look() is known
    assert len(loader.fetch.dataset.read) == read
    loader = over(Data(), sample=SampleRequest.of(10))
    loader.begin(0)
    begun = loader._begun[1]
    assert loader.look() == known
    assert begun.gi_frame is None
    assert over(Data()).look() == {}
    loader._note(module.Failure(SampleRequest.of(1), ValueError("no")))
    assert loader.seen == {}
    assert "the content of the dataset is not known: no" in caplog.text


def test_each_kind_of_warning_is_logged_once(caplog):
    loader = over(Data())
    work = loader.fetch.work

    def warned(request, *rest):
        return work(request, *rest).replace(warnings={"a": f"of {request.step}", "b": "always"})

    loader.fetch.work = warned
    list(loader.epoch(0))
    assert caplog.messages == ["of 0", "always"]


def test_so_many_differences_of_a_state_are_named():
    state = over(Data(), fingerprint={f"{n:03}": "x" for n in range(60)}).state_dict()
    with pytest.raises(ConfigError) as caught:
        over(Data(), fingerprint={"000": "y"}).load_state_dict(state)
    assert str(caught.value).count("when the state was saved") == 50
    assert "000: is 'y' here and was 'x'" in str(caught.value)
    assert "001: is None here and was 'x'" in str(caught.value)
    assert "049: " in str(caught.value)
    long = {"k" * 300: "x"}
    with pytest.raises(ConfigError) as caught:
        over(Data()).load_state_dict({**state, "fingerprint": long})
    assert str(caught.value).startswith("k" * 200 + ": ")
    for damaged in ({"epoch": -1}, {"step": "1"}, {"fingerprint": 3}):
        with pytest.raises(ConfigError, match="the loader state is damaged"):
            over(Data(), fingerprint={"000": "x"}).load_state_dict({**state, **damaged})
    assert json.loads(json.dumps(over(Data()).state_dict())) == {
        "version": 1,
        "epoch": 0,
        "step": 0,
        "fingerprint": {},
    }


def test_costs_of_rows_tell_a_backend_what_will_take_long(monkeypatch):
    loader, heard = over(Data(), costs=[1.0] * 9 + [100.0]), []
    run = loader._backend.run
    monkeypatch.setattr(loader._backend, "run", lambda asked: heard.append(asked) or run(asked))
    assert rows(loader.epoch(0)) == WHOLE
    assert [heard[0].expects(loader.plan.request(0, step)) for step in range(3)] == [0, 0, 1]
    other = over(Data())
    monkeypatch.setattr(other._backend, "run", loader._backend.run)
    list(other.epoch(0))
    assert heard[1].expects is None


def test_a_batchs_transform_has_its_share_of_the_memory():
    def transform(batch):
        return batch.replace({"most": at_hand().most})

    loader = over(Data(), batch_transform=transform)
    assert next(loader.epoch(0))["most"] == loader.fetch.most_bytes
