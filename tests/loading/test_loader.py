"""The loader: the same batches whoever works on them; order, state, time, failures."""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset
from torchvision.transforms import v2

from penstock.errors import ConfigError, DataError
from penstock.loading.collate import List
from tests import port, toy
from tests.port import Options, SampleError, SharedGeneratorError, WorkerError

MAIN = Options()
AUGMENT = v2.Compose(
    [
        v2.RandomResizedCrop(8),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.3, 0.3),
        v2.ToDtype(torch.float32, scale=True),
        v2.GaussianNoise(),
        v2.RandomErasing(),
    ]
)

OPTIONS = {
    "1 process": Options("process", 1),
    "3 processes": Options("process", 3),
    "far ahead": Options("process", 2, prefetch_factor=7),
    "persistent": Options("process", 2, persistent_workers=True),
    "own generator": Options("process", 2, generator=99),
    "1 thread": Options("thread", 1),
    "3 threads": Options("thread", 3, prefetch_factor=1),
    "no worker": Options("process", 0),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", OPTIONS)
def test_batches_are_the_same_from_any_worker(name):
    step = toy.Keyed() if "thread" in name else AUGMENT
    main = toy.loader(MAIN, step)
    expected = [toy.hashes(main, epoch) for epoch in (0, 1)]
    with toy.loader(OPTIONS[name], step) as loader:
        assert [toy.hashes(loader, epoch) for epoch in (0, 1)] == expected
        assert toy.hashes(loader, 0, start=3) == expected[0][3:]
    assert expected[0] != expected[1]


def test_draws_from_every_global_generator_have_keys():
    expected = toy.hashes(toy.loader(MAIN, toy.Everywhere()))
    assert toy.hashes(toy.loader(Options("process", 3), toy.Everywhere())) == expected


class Seeded:
    """Seeds torch by itself, in the ways in which torchvision's FakeData and people do."""

    def __call__(self, sample):
        before = torch.get_rng_state()
        torch.manual_seed(int(sample["label"]))
        draws = [torch.rand(2)]
        torch.set_rng_state(before)
        with torch.random.fork_rng([]):
            torch.manual_seed(7 + int(sample["label"]))
            draws.append(torch.rand(2))
        seed = torch.tensor([torch.initial_seed() % 1000] * 2)
        return {**sample, "draws": torch.stack([*draws, torch.rand(2), seed])}


def test_what_data_code_seeds_stays_with_it():
    torch.manual_seed(3)
    expected = toy.hashes(toy.loader(MAIN, Seeded()))
    assert torch.initial_seed() == 3
    assert toy.hashes(toy.loader(Options("process", 2), Seeded())) == expected


def test_loading_leaves_the_training_loops_generators_alone():
    torch.manual_seed(0)
    np.random.seed(0)
    expected = torch.rand(3), np.random.rand(3)
    for options, step in (
        (MAIN, AUGMENT),
        (Options("thread", 2), toy.Keyed()),
        (Options("process", 1), AUGMENT),
    ):
        torch.manual_seed(0)
        np.random.seed(0)
        toy.hashes(toy.loader(options, step))
        assert torch.equal(torch.rand(3), expected[0])
        assert np.array_equal(np.random.rand(3), expected[1])


def test_threads_refuse_data_that_draws():
    for step, name in ((toy.Everywhere(), "random and numpy.random"), (toy.TorchOnly(), "torch")):
        with pytest.raises(SharedGeneratorError, match=f"(?s)of {name}.*loader.backend=process"):
            toy.hashes(toy.loader(Options("thread", 2), step))


def test_a_training_loop_may_draw_while_threads_make_keyed_batches():
    """Also where pictures are decoded a batch at a time."""
    expected = toy.hashes(toy.loader(MAIN, toy.Keyed()))
    found = []
    for batch in toy.loader(Options("thread", 2), toy.Keyed()).epoch(0):
        np.random.beta(1, 1), random.random(), torch.rand(1)
        found.append(port.batch_hash([batch]))
    assert found == expected


class Rows(IterableDataset):
    def __iter__(self):
        return iter(range(64))


@pytest.mark.parametrize("tail", ["keep", "drop", "pad"])
def test_one_thread_makes_the_first_batch_of_threads(tail):
    made = []

    def transform(sample):
        made.append(threading.current_thread())
        return sample

    options = Options("thread", 3)
    with port.loader(
        Rows(), size=32, transform=transform, collate=List(), tail=tail, options=options
    ) as loader:
        assert sum(batch.request.valid for batch in loader.epoch(0)) == 64
    first = made[: 32 + 1]  # one sample is compared
    assert len({*first}) == 1
    assert threading.current_thread() not in first


def test_datasets_see_their_worker_as_usual():
    for options, workers in ((MAIN, {-1}), (Options("process", 2), {0, 1})):
        batches = list(toy.loader(options, toy.WorkerSeen()))
        assert {int(w) for batch in batches for w in batch["worker"]} <= workers
        assert all(bool(batch["own"].all()) for batch in batches)
    options = Options("process", 1, worker_init_fn=toy.mark_dataset)
    loader = toy.loader(options, toy.WorkerSeen())
    assert len(list(loader)) == 5  # changing the worker's copy reached the worker's copy only
    assert loader.fetch.dataset.length == 40


def test_iterating_goes_through_the_epochs():
    loader = toy.loader(MAIN)
    first, second = [[b.request.address for b in loader] for _ in range(2)]
    assert first == [(0, step) for step in range(5)]
    assert second == [(1, step) for step in range(5)]
    for _ in loader:
        break
    assert next(iter(loader)).request.address == (3, 0)


def test_state_is_the_next_address_to_deliver_and_not_what_is_prefetched():
    loader = toy.loader(Options("process", 2, prefetch_factor=4), toy.Keyed())
    expected = toy.hashes(loader, 1)
    batches = loader.epoch(1)
    next(batches), next(batches)
    state = loader.state_dict()
    batches.close()
    assert (state["epoch"], state["step"]) == (1, 2)
    other = toy.loader(Options("thread", 1), toy.Keyed())
    other.load_state_dict(state)
    got = [port.batch_hash([batch]) for batch in other]
    assert got == expected[2:]


def test_a_state_of_other_addresses_is_refused():
    loader = toy.loader(MAIN)
    loader.fingerprint = {"seed": "0", "sampler": "random"}
    state = loader.state_dict()
    loader.fingerprint = {"seed": "1", "sampler": "random"}
    with pytest.raises(ConfigError, match=r"seed: is '1' here and was '0'"):
        loader.load_state_dict(state)
    with pytest.raises(ConfigError, match="version: is 1 here and was 9"):
        loader.load_state_dict({**state, "version": 9})


def test_out_of_order_delivery_still_delivers_every_address():
    for backend in ("process", "thread"):
        options = Options(backend, 2, in_order=False)
        addresses = [batch.request.step for batch in toy.loader(options)]
        assert sorted(addresses) == list(range(5))


class Broken:
    """Fails in one way on row 7, or kills its worker."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, sample):
        if int(sample["image"][0, 0, 1]) == 8:
            if self.kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.kind == "sleep":
                time.sleep(30)
            raise ValueError("seven is bad")
        return sample


@pytest.mark.parametrize("name", ["no worker", "3 processes", "3 threads"])
def test_a_failing_transform_is_explained_alike_everywhere(name):
    steps = []
    batches = toy.loader(OPTIONS[name], Broken("raise")).epoch(0)
    with pytest.raises(
        SampleError,
        match=r"sample 7 \(epoch 0, step (\d+), position \d+\): transform failed with ValueError: "
        r"seven is bad[\s\S]*in __call__",
    ) as caught:
        steps.extend(batch.request.step for batch in batches)
    # The batches before it are delivered first.
    assert f"step {len(steps)}," in str(caught.value)


def test_a_killed_worker_is_an_error_and_not_a_hang():
    with pytest.raises(
        WorkerError, match=r"DataLoader worker 0 .* was killed by signal 9 \(SIGKILL\)"
    ):
        toy.hashes(toy.loader(Options("process", 1), Broken("kill")))


def test_timeouts():
    with pytest.raises(WorkerError, match="no sign of life for 1 s"):
        toy.hashes(toy.loader(Options("process", 1, timeout=1), Broken("sleep")))


def test_what_cannot_be_sent_to_a_worker_is_named():
    options = Options("process", 1, multiprocessing_context="spawn")

    class Local:
        def __call__(self, sample):
            return sample

    with pytest.raises(
        ConfigError, match=r"transform: cannot be sent .*'spawn'.*lambda.*top level"
    ):
        toy.loader(options, lambda sample: sample)
    with pytest.raises(ConfigError, match=r"transform: cannot be sent.*<locals>\.Local"):
        toy.loader(options, Local())


def test_stats_tell_waiting_from_working():
    loader = toy.loader(MAIN, Slow())
    for _ in loader.epoch(0):
        time.sleep(0.02)
    stats = loader.stats
    assert (stats.batches, stats.samples) == (5, 40)
    assert 0.04 < stats.wait_seconds < stats.total_seconds
    assert stats.stages["transform"] > 0.04
    assert set(stats.stages) == {"read", "transform", "collate"}


class Slow:
    def __call__(self, sample):
        time.sleep(0.001)
        return sample


def test_workers_end_with_the_loader():
    with toy.loader(Options("process", 2, persistent_workers=True)) as loader:
        list(loader)
        pids = port.worker_pids(loader)
        assert len(pids) == 2
        assert all(_alive(pid) for pid in pids)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_missing_batch_is_a_data_error_of_its_row(tmp_path):
    class Files(toy.Pictures):
        def __getitem__(self, index):
            if index == 3:
                return open(tmp_path / "none.jpg")
            return super().__getitem__(index)

    with pytest.raises(DataError, match=r"sample 3 \(epoch 0, .*FileNotFoundError.*none\.jpg"):
        toy.hashes(toy.loader(MAIN, dataset=Files()))
