"""DataLoader: torch's arguments and meaning, torchdata's states, on our backends."""

import collections
import contextlib
import copy
import gc
import gzip
import json
import os
import random
import re
import signal
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)

from penstock.loading.dataloader import DataLoader
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.seeding import SharedGeneratorError
from tests.support import toy
from tests.support.deaths import until
from tests.support.torch_style import Sleeping, Squares, children, everything, plain, rest_after

Pair = collections.namedtuple("Pair", "a b")


class Kinds(Dataset):
    """Samples of every kind that torch's collate function knows."""

    def __len__(self):
        return 5

    def __getitem__(self, row):
        return {
            "tensor": torch.full((2,), row),
            "array": np.full(3, row, np.float32),
            "int": row,
            "float": row / 2,
            "text": f"row {row}",
            "pair": Pair(row, torch.tensor(row)),
            "tuple": (row, "t"),
            "list": [row, 1.0],
            "bytes": b"x",
            "scalar": np.int16(row),
        }


class Many(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, row):
        raise AssertionError("one by one")

    def __getitems__(self, rows):
        return [10 * row for row in rows]


class OddError(Exception):
    """Cannot be made of one message."""

    def __init__(self, row, why):
        super().__init__(f"row {row}: {why}")


class Failing(Dataset):
    def __init__(self, error=ValueError, at=5):
        self.error, self.at = error, at

    def __len__(self):
        return 10

    def __getitem__(self, row):
        if row == self.at:
            raise OddError(row, "odd") if self.error is OddError else self.error(f"row {row}")
        return row


class Divided(IterableDataset):
    """Numbers, of which each worker gives every n-th."""

    def __init__(self, length=23):
        self.length = length

    def __iter__(self):
        info = get_worker_info()
        first, by = (info.id, info.num_workers) if info else (0, 1)
        yield from range(first, self.length, by)


class Undivided(IterableDataset):
    def __init__(self, length=6, claimed=None):
        self.length, self.claimed = length, claimed

    def __iter__(self):
        return iter(range(self.length))

    def __len__(self):
        if self.claimed is None:
            raise TypeError
        return self.claimed


class Drawing(Divided):
    """Random numbers, from every generator; and from one of its own, seeded as torch advises."""

    def __iter__(self):
        info = get_worker_info()
        own = np.random.default_rng(info.seed if info else 0)
        for number in super().__iter__():
            drawn = torch.rand(()).item() + random.random() + np.random.rand()
            yield number, drawn, own.random()


class Counting(IterableDataset):
    """Has a state of its own, and knows how far it was read and how often."""

    def __init__(self, length=12):
        self.length = length
        self.at = self.rounds = self.opened = 0

    def __iter__(self):
        self.opened += 1
        info = get_worker_info()
        offset = 100 * info.id if info else 0
        while self.at < self.length:
            self.at += 1
            yield offset + self.at, self.rounds
        self.at, self.rounds = 0, self.rounds + 1

    def state_dict(self):
        return {"at": self.at, "rounds": self.rounds}

    def load_state_dict(self, state):
        self.at, self.rounds = state["at"], state["rounds"]


class Walk:
    """A random walk, which cannot be gone on with but from its state."""

    def __init__(self, steps):
        self.place, self.left = 0, steps

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        self.place += int(torch.randint(-5, 6, ()))
        return self.place

    def state_dict(self):
        return {"place": self.place, "left": self.left}

    def load_state_dict(self, state):
        self.place, self.left = state["place"], state["left"]


class Walks(IterableDataset):
    def __iter__(self):
        return Walk(11)


class Shuffled(Sampler):
    """Draws with `random`, as people's samplers do."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        rows = list(range(self.length))
        random.shuffle(rows)
        return iter(rows)

    def __len__(self):
        return self.length


class Resumable(Sampler):
    """Counts epochs, and has a state; drawing again what was drawn would show."""

    def __init__(self, length):
        self.length, self.at, self.epoch, self.drawn = length, 0, 0, 0

    def __iter__(self):
        while self.at < self.length:
            self.at += 1
            self.drawn += 1
            yield (self.at * 7 + self.epoch) % self.length
        self.at, self.epoch = 0, self.epoch + 1

    def __len__(self):
        return self.length

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at, self.epoch = state["at"], state["epoch"]


class Endless(Sampler):
    def __iter__(self):
        while True:
            yield [1, 2]


def first(samples):
    return samples[0]


def same(samples):
    return samples


def collate_fails(samples):
    raise LookupError(f"{len(samples)} samples")


def init_fails(worker):
    raise OSError(f"worker {worker}")


def divide(worker):
    """A `worker_init_fn` that gives each worker its part of an `Undivided`."""
    info = get_worker_info()
    info.dataset.length = info.dataset.length * (worker + 1)


class WhoWorks(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, row):
        info = get_worker_info()
        if info is None:
            return -1, 0, True, os.getpid()
        return info.id, info.num_workers, isinstance(info.dataset, WhoWorks), os.getpid()


class Dying(Dataset):
    """Kills its process, once for each file that is there to be taken away."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 12

    def __getitem__(self, row):
        if row == 7 and get_worker_info() is not None:
            for path in sorted(self.folder.iterdir()):
                path.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return row


class Slow(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, row):
        if row == 0:
            time.sleep(0.5)
        return row


def theirs(*args, **kwargs):
    return plain(list(torch_data.DataLoader(*args, **kwargs)))


# Batches, as torch gives them.


def _named(value):
    """A test's name, the same in every process that collects it: without addresses."""
    return re.sub(r"<(?:function )?([\w.]+)[^>]*>", r"\1", str(value))


ARGUMENTS = [
    {},
    {"batch_size": 3},
    {"batch_size": 3, "drop_last": True},
    {"batch_size": None},
    {"batch_size": 4, "shuffle": True},
    {"batch_size": 6, "sampler": range(0, 20, 3)},
    {"batch_sampler": [[3, 1], [2], [19, 0, 5]]},
    {"batch_size": None, "sampler": [[1, 2], 3]},
    {"batch_size": 4, "sampler": SubsetRandomSampler(range(5, 15))},
    {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * 20, 9)},
    {"batch_size": 4, "sampler": RandomSampler(range(20), True, 50)},
    {"batch_sampler": BatchSampler(RandomSampler(range(20)), 3, True)},
    {"batch_size": 20, "collate_fn": first},
    {"batch_size": 100, "collate_fn": same},
]


class Doubles(Squares):
    def __getitem__(self, row):
        return [2 * one for one in row] if isinstance(row, list) else 2 * row


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=_named)
def test_the_batches_are_torchs_in_torchs_order(arguments):
    torch.manual_seed(5)
    expected = theirs(Doubles(), **arguments)
    torch.manual_seed(5)
    found = everything(Doubles(), **arguments)
    if "Sampler" in str(arguments) or arguments.get("shuffle"):  # an order of our own
        found, expected = ([len(batch) for batch in batches] for batches in (found, expected))
    assert found == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_of_every_kind_are_collated_as_torch_does(workers):
    for size in (2, None):
        ours = list(DataLoader(Kinds(), size, num_workers=workers))
        torchs = list(torch_data.DataLoader(Kinds(), size))
        assert plain(ours) == plain(torchs)
        for mine, their in zip(ours, torchs, strict=True):
            for name in their:
                assert type(mine[name]) is type(their[name]), name
                if isinstance(their[name], torch.Tensor):
                    assert mine[name].dtype == their[name].dtype


def test_datasets_made_of_datasets_are_read_as_they_are():
    numbers = TensorDataset(torch.arange(6), torch.arange(6) * 2)
    halves = random_split(Squares(), [5, 15], torch.Generator().manual_seed(0))
    for dataset in (
        numbers,
        ConcatDataset([numbers, numbers]),
        Subset(Squares(), [4, 2]),
        halves[0],
        StackDataset(a=numbers, b=Squares(6)),
        ChainDataset([Undivided(3), Undivided(2)]),
    ):
        assert everything(dataset, 4) == theirs(dataset, 4)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_reads_many_at_once_is_asked_for_many(workers):
    assert everything(Many(), 4, num_workers=workers)[2] == [80, 90]


def test_rows_may_be_anything_that_the_dataset_takes():
    table = {"a": 1, ("b", 2): 2, None: 3}
    for workers in (0, 1):
        assert everything(table, 2, sampler=list(table), num_workers=workers) == [[1, 2], [3]]
        assert everything(table, None, sampler=list(table), num_workers=workers) == [1, 2, 3]
    assert everything(Squares(), 2, sampler=torch.tensor([3, 4, 5])) == [[9, 16], [25]]


def test_an_endless_sampler_is_drawn_as_far_as_it_is_asked_for():
    loader = DataLoader(Squares(), batch_sampler=Endless(), num_workers=2)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(5)] == [[1, 4]] * 5
    with pytest.raises(TypeError):
        len(loader)


# Iterable datasets.


@pytest.mark.one_in(5)
@pytest.mark.parametrize("size", [None, 1, 4])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_iterable_dataset_is_read_as_its_workers_divide_it(size, workers):
    batches = everything(Divided(), size, num_workers=workers)
    assert batches == theirs(Divided(), size, num_workers=workers)
    assert sorted(np.hstack(batches).tolist()) == list(range(23))


def test_the_last_batch_of_every_worker_can_be_dropped():
    batches = everything(Divided(), 4, num_workers=3, drop_last=True)
    assert [len(batch) for batch in batches] == [4] * 5
    assert batches == theirs(Divided(), 4, num_workers=3, drop_last=True)


def test_what_does_not_divide_itself_comes_once_a_worker():
    assert everything(Undivided(3), None, num_workers=2) == [0, 0, 1, 1, 2, 2]
    assert len(list(DataLoader(Undivided(4, claimed=4), 2, num_workers=2))) == 4


def test_a_worker_init_fn_can_divide_the_dataset():
    batches = everything(Undivided(2), None, num_workers=2, worker_init_fn=divide)
    assert sorted(batches) == [0, 0, 1, 1, 2, 3]


# Length, attributes and arguments.


@pytest.mark.parametrize("size", [1, 3, 20, 21, None])
@pytest.mark.parametrize("drop", [False, True])
def test_the_length_is_torchs(size, drop):
    drop = drop and size is not None
    for dataset in (Squares(), Undivided(20, claimed=20)):
        ours = DataLoader(dataset, size, drop_last=drop)
        assert len(ours) == len(torch_data.DataLoader(dataset, size, drop_last=drop))
        assert len(list(ours)) == len(ours)


def test_a_length_that_nobody_knows_is_a_type_error():
    with pytest.raises(TypeError):
        len(DataLoader(Undivided()))
    with pytest.raises(TypeError):
        len(DataLoader(Squares(), sampler=iter([1, 2])))


def test_a_length_that_lies_ends_nothing():
    class Lying(Shuffled):
        def __len__(self):
            return 3

    loader = DataLoader(Squares(), sampler=Lying(7))
    assert len(loader) == 3
    assert len(list(loader)) == 7


def test_it_is_a_dataloader_with_its_attributes():
    dataset, generator = Squares(), torch.Generator()
    loader = DataLoader(
        dataset, 4, True, num_workers=2, generator=generator, timeout=9, worker_init_fn=divide,
        pin_memory=False, prefetch_factor=3, multiprocessing_context="fork",
        persistent_workers=True,
    )  # fmt: skip
    assert isinstance(loader, torch_data.DataLoader)
    assert loader.dataset is dataset
    assert isinstance(loader.sampler, RandomSampler)
    assert isinstance(loader.batch_sampler, BatchSampler)
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (4, 2, False)
    assert (loader.timeout, loader.prefetch_factor, loader.persistent_workers) == (9, 3, True)
    assert loader.multiprocessing_context.get_start_method() == "fork"
    assert loader.generator is generator
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset"):
        with pytest.raises(ValueError, match=name):
            setattr(loader, name, None)


CONTRADICTIONS = [
    *(({name: value}, ValueError) for name, value in (
        ("num_workers", -1), ("timeout", -1), ("prefetch_factor", 2), ("persistent_workers", True),
        ("batch_size", 0), ("multiprocessing_context", "fork"),
    )),
    *(({"batch_sampler": [[1]], name: value}, ValueError) for name, value in (
        ("batch_size", 2), ("shuffle", True), ("drop_last", True),
    )),
    ({"shuffle": True, "sampler": [1]}, ValueError),
    ({"batch_size": None, "drop_last": True}, ValueError),
    ({"multiprocessing_context": "knife", "num_workers": 1}, ValueError),
    ({"multiprocessing_context": 3, "num_workers": 1}, TypeError),
    ({"no_such": 1}, TypeError),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error"), CONTRADICTIONS, ids=_named)
def test_what_torch_refuses_is_refused(arguments, error):
    with pytest.raises(error):
        DataLoader(Squares(), **arguments)
    for words in ({"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}):
        with pytest.raises(ValueError, match="IterableDataset"):
            DataLoader(Divided(), **words)


# Workers.


def test_workers_know_who_they_are():
    seen = [tuple(batch) for batch in everything(WhoWorks(), None, num_workers=2)]
    assert {row[:3] for row in seen} <= {(0, 2, True), (1, 2, True)}  # whoever is free
    assert {row[3] for row in seen}.isdisjoint({os.getpid()})
    assert {tuple(row)[:2] for row in everything(WhoWorks(), None)} == {(-1, 0)}


def test_a_context_of_multiprocessing_starts_the_processes():
    context = torch.multiprocessing.get_context("fork")
    batches = everything(Squares(), 7, num_workers=1, multiprocessing_context=context)
    assert batches == theirs(Squares(), 7)


def test_what_cannot_be_pickled_works_where_processes_are_forked():
    class Local(Squares):
        pass

    dataset = Local()
    dataset.open = lambda: None
    arguments = {"num_workers": 1, "collate_fn": lambda samples: len(samples)}
    assert everything(dataset, 8, multiprocessing_context="fork", **arguments) == [8, 8, 4]


def test_a_sampler_may_make_up_its_attributes():
    """As a Mock does, and a proxy: each has another `sampler`, without end."""
    mock = MagicMock()
    mock.__iter__.return_value = [3, 1]
    for sampler in (mock, MadeUp()):
        assert list(DataLoader(range(5), sampler=sampler, batch_size=None)) == [3, 1]


class MadeUp:
    def __getattr__(self, name):
        return MadeUp()

    def __iter__(self):
        return iter([3, 1])


def test_several_iterators_of_one_loader_do_not_meet():
    for workers in (0, 2):
        loader = DataLoader(Squares(), 5, num_workers=workers)
        pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
        assert [a for a, _ in pairs] == [b for _, b in pairs] == theirs(Squares(), 5)


def test_no_process_stays_behind():
    before = set(children())
    loader = DataLoader(Squares(), 2, num_workers=2)
    batches = iter(loader)
    next(batches)
    del batches, loader
    kept = DataLoader(Squares(), 2, num_workers=2, persistent_workers=True)
    list(kept)
    del kept
    assert set(children()) <= before


def test_a_finished_iterator_stays_finished():
    batches = iter(DataLoader(Squares(2), num_workers=1))
    assert len(list(batches)) == 2
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)


@pytest.mark.parametrize("in_order", [False, True])
def test_batches_may_come_in_the_order_in_which_they_are_ready(in_order):
    batches = everything(Slow(), 1, num_workers=2, in_order=in_order)
    assert sorted(batches) == [[row] for row in range(8)]
    assert (batches[0] == [0]) == in_order


# Errors.


@pytest.mark.parametrize("error", [ValueError, KeyError, FileNotFoundError, ZeroDivisionError])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_comes_in_its_own_type_and_the_epoch_is_not_over_in_the_state(error, workers):
    loader = DataLoader(Failing(error), 2, num_workers=workers)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(error) as caught:
        next(batches)
    assert "row 5" in str(caught.value)
    if workers:
        assert re.search("DataLoader worker process [01]", str(caught.value))
        assert "in __getitem__" in str(caught.value)
    assert next(batches, None) is None
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (0, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stop_iteration_of_a_sample_does_not_end_the_epoch(workers):
    with pytest.raises(RuntimeError, match="StopIteration"):
        everything(Failing(StopIteration), num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_collating_and_of_starting_come_too(workers):
    with pytest.raises(LookupError, match="3 samples"):
        everything(Squares(), 3, collate_fn=collate_fails, num_workers=workers)
    if workers:
        with pytest.raises(OSError, match="worker 0"):
            everything(Squares(), num_workers=1, worker_init_fn=init_fails)


def test_an_error_of_the_sampler_comes_where_it_is_drawn():
    def rows():
        yield from (0, 1)
        raise OSError("no more rows")

    for workers in (0, 1):
        batches = iter(DataLoader(Squares(), sampler=rows(), num_workers=workers))
        with pytest.raises(OSError, match="no more rows"):
            list(batches)
        with pytest.raises(StopIteration):
            next(batches)


def test_an_iterable_dataset_may_fail_in_the_middle():
    class Cut(IterableDataset):
        def __iter__(self):
            yield 1
            raise EOFError("cut off")

    for workers in (0, 1):
        batches = iter(DataLoader(Cut(), None, num_workers=workers))
        assert next(batches) == 1
        with pytest.raises(EOFError, match="cut off"):
            next(batches)
        assert list(batches) == []


def test_a_worker_that_is_killed_costs_no_batch(tmp_path, caplog):
    (tmp_path / "once").touch()
    batches = everything(Dying(tmp_path), 2, num_workers=2)
    assert batches == theirs(Dying(tmp_path), 2)
    assert "SIGKILL" in caplog.text


def test_a_worker_that_hangs_is_a_runtime_error_after_the_timeout():
    with pytest.raises(RuntimeError, match=r"no sign of life for 0\.3 s"):
        everything(Sleeping(), num_workers=1, worker_timeout=0.3)


class Threaded(Squares):
    """Works in a thread of its own, as libraries such as polars do."""

    def __init__(self):
        super().__init__()
        self.pool = ThreadPoolExecutor(1)
        self.pool.submit(int).result()

    def __getitem__(self, row):
        return self.pool.submit(super().__getitem__, row).result()


def test_what_waits_for_a_thread_that_a_fork_left_behind_is_named_and_ends(caplog):
    options = {"multiprocessing_context": "fork", "worker_timeout": 1}
    loader = DataLoader(Threaded(), 4, num_workers=1, **options)
    with pytest.raises(RuntimeError, match="forkserver") as raised:
        list(loader)
    assert re.search(r"test_dataloader\.py\", line \d+ in __getitem__", str(raised.value))
    assert "forkserver" in caplog.messages[0]  # at the first of three


def test_an_interrupt_leaves_no_worker():
    ours, theirs = torch.multiprocessing.Pipe()
    program = torch.multiprocessing.get_context("fork").Process(target=_interrupted, args=(theirs,))
    program.start()
    assert ours.recv() == [0, 1]
    os.kill(program.pid, signal.SIGINT)
    assert ours.recv() == "interrupted"
    assert ours.recv() == []
    program.join(600)
    assert program.exitcode == 0


def _interrupted(pipe):
    # Python leaves SIGINT ignored where a shell did, as for what it starts in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for batch in DataLoader(Squares(10**6), 2, num_workers=2):
            if batch[0] == 0:
                pipe.send(batch.tolist())
    except KeyboardInterrupt:
        pipe.send("interrupted")
    gc.collect()
    until(lambda: not torch.multiprocessing.active_children())  # a killed process needs a moment
    pipe.send(list(children()))


# States.


MAPS = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "seeded": {"shuffle": True, "seed": 4},
    "not batched": {"batch_size": None, "shuffle": True},
    "dropped": {"drop_last": True},
    "generator": {"shuffle": True, "generator": 9},
    "own sampler": {"sampler": Shuffled},
    "batches": {"batch_sampler": True},
    "with a state": {"sampler": Resumable},
    "with replacement": {"sampler": "replaced"},
}


def map_loader(kind, workers=0, length=20, **more):
    arguments = {"batch_size": 3} | MAPS[kind] | more
    if "generator" in arguments:
        arguments["generator"] = torch.Generator().manual_seed(arguments["generator"])
    if isinstance(arguments.get("sampler"), type):
        arguments["sampler"] = arguments["sampler"](length)
    if arguments.get("sampler") == "replaced":
        arguments["sampler"] = RandomSampler(range(length), True, 40)
    if "batch_sampler" in arguments:
        del arguments["batch_size"]
        arguments["batch_sampler"] = BatchSampler(RandomSampler(range(length)), 3, False)
    return DataLoader(Squares(length, draws=True), num_workers=workers, **arguments)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", MAPS)
def test_the_rest_of_an_epoch_follows_from_its_state_at_every_step(kind):
    steps = len(plain(list(map_loader(kind))))
    for step in range(steps + 1):
        for every in (1, 4):
            random.seed(step)
            state, expected = rest_after(map_loader(kind, snapshot_every_n_steps=every), step)
            random.seed(99)
            torch.manual_seed(99)
            other = map_loader(kind)
            other.load_state_dict(state)
            # Behind the last batch the next epoch begins.
            assert step == steps or plain(list(other)) == expected, (step, every)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", ["shuffled", "with a state"])
def test_the_rest_is_the_same_with_any_workers_and_threads(kind):
    for before in (0, 2):
        state, expected = rest_after(map_loader(kind, before), 3)
        for workers in (0, 1, 3):
            other = map_loader(kind, workers)
            other.load_state_dict(state)
            assert plain(list(other)) == expected, (before, workers)


def test_behind_the_last_batch_the_next_epoch_begins_whether_its_end_was_asked_for_or_not():
    for workers in (0, 2):
        loader = map_loader("shuffled", workers)
        states = []
        for _ in loader:
            states.append(loader.state_dict())
        assert states[-1] == loader.state_dict()
        following = plain(list(loader))
        other = map_loader("shuffled", workers)
        other.load_state_dict(states[-1])
        assert plain(list(other)) == following


def test_a_state_can_be_taken_before_the_first_batch_and_while_one_is_pending():
    loader = map_loader("shuffled")
    before = loader.state_dict()
    expected = plain(list(loader))
    other = map_loader("shuffled")
    next(iter(other))
    other.load_state_dict(before)
    assert other.state_dict() == before
    batches = iter(other)
    assert other.state_dict()["step"] == 0
    assert plain(list(batches)) == expected


def test_a_state_is_not_changed_by_what_comes_after_it():
    for loader in (map_loader("with a state"), DataLoader(Counting(), None, num_workers=1)):
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        kept = copy.deepcopy(state)
        next(batches)
        assert state == kept
        assert loader.state_dict() != kept


def test_batches_that_came_early_do_not_come_again():
    loader = DataLoader(Slow(), num_workers=2, in_order=False)
    batches = iter(loader)
    found = [next(batches).item() for _ in range(3)]
    assert 0 not in found
    state = json.loads(json.dumps(loader.state_dict()))
    other = DataLoader(Slow())
    other.load_state_dict(state)
    assert sorted(found + [batch.item() for batch in other]) == list(range(8))


def test_a_distributed_sampler_continues_in_its_epoch():
    def make():
        sampler = DistributedSampler(Squares(), num_replicas=2, rank=1, seed=3)
        return DataLoader(Squares(), 2, sampler=sampler), sampler

    loader, sampler = make()
    sampler.set_epoch(5)
    state, expected = rest_after(loader, 2)
    other, sampler = make()
    other.load_state_dict(state)
    assert plain(list(other)) == expected
    assert sampler.epoch == 5
    sampler.set_epoch(6)
    assert plain(list(other)) != expected


def test_a_state_of_another_loader_is_refused():
    state = DataLoader(Squares(), 3).state_dict()
    with pytest.raises(ValueError, match="batch_size is 4 and was 3"):
        DataLoader(Squares(), 4).load_state_dict(state)
    with pytest.raises(ValueError, match="samples is 21 and was 20"):
        DataLoader(Squares(21), 3).load_state_dict(state)
    with pytest.raises(ValueError, match="version is 4 and was None"):
        DataLoader(Squares(), 3).load_state_dict({"_snapshot": {}})
    with pytest.raises(ValueError, match="seed is 2 and was"):
        DataLoader(Squares(), 3, seed=2).load_state_dict(state)


def test_a_seed_makes_epochs_that_nothing_else_changes():
    torch.manual_seed(0)
    a = [plain(list(map_loader("seeded"))) for _ in range(2)]
    torch.manual_seed(1)
    b = [plain(list(map_loader("seeded", 2))) for _ in range(2)]
    assert a == b
    loader = map_loader("seeded")
    assert plain(list(loader)) == a[0]
    assert plain(list(loader)) != a[0]


STREAMS = {"draws": Drawing, "has a state": Counting, "iterator with a state": Walks}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("size", [None, 4])
def test_the_rest_of_a_stream_follows_from_its_state_at_every_step(kind, size):
    def make(every=1):
        return DataLoader(
            STREAMS[kind](),
            size,
            generator=torch.Generator().manual_seed(1),
            snapshot_every_n_steps=every,
        )

    steps = len(list(make()))
    for step in range(steps + 1):
        for every in (0, 1, 3):
            state, expected = rest_after(make(every), step)
            other = make()
            other.load_state_dict(state)
            assert plain(list(other)) == expected, (step, every)


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", STREAMS)
def test_the_rest_of_a_stream_is_the_same_with_other_workers(kind):
    def make(workers):
        return DataLoader(STREAMS[kind](), 4, num_workers=workers, seed=6, snapshot_every_n_steps=2)

    for before in (0, 2, 3):
        state, expected = rest_after(make(before), 4 if before else 2)
        assert expected
        for workers in (0, 1, 2):
            other = make(workers)
            other.load_state_dict(state)
            assert plain(list(other)) == expected, (before, workers)
            assert len(list(other)) > 0  # the next epoch is divided among those there are now


class Keyword(Exception):
    def __init__(self, *, path):
        super().__init__(f"{path} is broken")


class WithMessage(Exception):
    message = "its class has one"

    def __init__(self, path, code):
        super().__init__(path, code)


def local_class():
    class Local(Exception):
        pass

    return Local("scan17")


def with_a_note():
    error = ValueError("x")
    error.add_note("scan17")
    return error


MADE = {
    "local": local_class,
    "keyword": lambda: Keyword(path="scan17"),
    "with a message": lambda: WithMessage("scan17", 3),
    "group": lambda: ExceptionGroup("scan17", [ValueError("x"), OSError("y")]),
    "base group": lambda: BaseExceptionGroup("two", [KeyboardInterrupt("scan17")]),
    "exit": lambda: SystemExit("scan17"),
    "note": with_a_note,
}


class Raising(Squares):
    def __init__(self, kind):
        super().__init__(4)
        self.kind = kind

    def __getitem__(self, row):
        raise MADE[self.kind]()


@pytest.mark.parametrize("kind", MADE)
def test_the_text_of_a_samples_error_arrives_whatever_its_class(kind):
    with pytest.raises((RuntimeError, ValueError), match="scan17"):
        list(DataLoader(Raising(kind), batch_size=2, num_workers=1))


class Opened(Dataset):
    """Rows of a file that was opened before there were workers; also inside of other things."""

    def __init__(self, path, opening):
        self.opened = [opening(path)]

    def __len__(self):
        return 200

    def __getitem__(self, row):
        file = self.opened[0]
        file = file if hasattr(file, "seek") else file.extractfile("rows")
        file.seek(row * 512)
        return row, int.from_bytes(file.read(8), "little")


@pytest.fixture
def row_files(tmp_path):
    rows = b"".join(row.to_bytes(8, "little") * 64 for row in range(200))
    (tmp_path / "rows").write_bytes(rows)
    (tmp_path / "rows.gz").write_bytes(gzip.compress(rows))
    with tarfile.open(tmp_path / "rows.tar", "w") as archive:
        archive.add(tmp_path / "rows", "rows")
    return tmp_path


OPENINGS = {
    "rows": partial(open, mode="rb", buffering=0),
    "rows.gz": gzip.open,
    "rows.tar": tarfile.open,
}


@pytest.mark.parametrize("name", OPENINGS)
def test_a_file_that_was_open_before_the_fork_gives_each_worker_its_rows(name, row_files):
    data = Opened(row_files / name, OPENINGS[name])
    with contextlib.closing(data.opened[0]):
        loader = DataLoader(data, batch_size=8, num_workers=3, multiprocessing_context="fork")
        for rows, values in loader:
            assert rows.tolist() == values.tolist()


def test_threads_do_not_share_the_position_of_a_file(row_files):
    data = Opened(row_files / "rows", OPENINGS["rows"])
    refused = pytest.raises(SharedGeneratorError, match=r"dataset\.opened\[0\], a file")
    with contextlib.closing(data.opened[0]), refused:
        list(toy.loader(LoaderOptions("thread", 2), dataset=data))
