"""The loader: the same batches whoever works on them; order, state, time, failures."""

import time

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from penstock.errors import ConfigError
from tests import port
from tests.port import Options, SampleError
from tests.support import toy

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


def test_threads_that_deliver_out_of_order_deliver_every_address():
    batches = toy.loader(Options("thread", 2, in_order=False))
    assert sorted(batch.request.step for batch in batches) == list(range(5))


class Broken:
    """Fails on row 7."""

    def __call__(self, sample):
        if int(sample["image"][0, 0, 1]) == 8:
            raise ValueError("seven is bad")
        return sample


@pytest.mark.parametrize("name", ["no worker", "3 processes", "3 threads"])
def test_a_failing_transform_is_explained_alike_everywhere(name):
    steps = []
    batches = toy.loader(OPTIONS[name], Broken()).epoch(0)
    with pytest.raises(
        SampleError,
        match=r"sample 7 \(epoch 0, step (\d+), position \d+\): transform failed with ValueError: "
        r"seven is bad[\s\S]*in __call__",
    ) as caught:
        steps.extend(batch.request.step for batch in batches)
    # The batches before it are delivered first.
    assert f"step {len(steps)}," in str(caught.value)


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
