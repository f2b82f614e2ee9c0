"""Generators that parts hold themselves are seeded for each sample; what has no seed is found."""

import os
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset
from torchvision.transforms import v2

from penstock.errors import ConfigError
from penstock.loading.bad_samples import SampleError
from penstock.loading.batch import batch_hash
from penstock.loading.collate import Stack
from penstock.loading.dataloader import DataLoader
from penstock.loading.fetch import Compose, Fetch
from penstock.loading.loader import Loader
from penstock.loading.stream import StreamFetch
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Plan, StreamOrder, StreamPlan
from penstock.order.samplers import Random
from penstock.order.seeding import SharedGeneratorError, scope
from penstock.transforms.batch import BatchCompose
from tests.support import toy

PLAN = Plan(Random(24, 0), 6)
OF_THE_MODULE = np.random.default_rng()


def drawn(generator):
    """A number from whichever generator it is."""
    if isinstance(generator, torch.Generator):
        return torch.rand((), generator=generator).item()
    if isinstance(generator, np.random.BitGenerator):
        return float(generator.random_raw() >> 12)
    return generator.random()


class Holds:
    """A transform with a generator of its own."""

    def __init__(self, generator):
        self.rng = generator

    def __call__(self, sample):
        return {**sample, "drawn": drawn(self.rng)}


class HoldsMany(Holds):
    """One of them in a list in a dict, as augmentations hold others."""

    def __init__(self, generator):
        self.inner = {"steps": [None, Holds(generator)]}

    def __call__(self, sample):
        return self.inner["steps"][1](sample)


class InSlots:
    __slots__ = ("rng",)
    __init__, __call__ = Holds.__init__, Holds.__call__


class OfTheClass:
    rng = np.random.default_rng()
    __call__ = Holds.__call__


class Later:
    """Makes its generator with its first sample."""

    rng = None

    def __call__(self, sample):
        if self.rng is None:
            self.rng = np.random.default_rng()
        return {**sample, "drawn": drawn(self.rng)}


def of_the_module(sample):
    return {**sample, "drawn": through_another()}


def through_another():
    return drawn(OF_THE_MODULE)


def with_argument(sample, rng):
    return {**sample, "drawn": drawn(rng)}


def in_closure(rng):
    return lambda sample: {**sample, "drawn": drawn(rng)}


class Rows(Dataset):
    """A dataset with a generator of its own."""

    def __init__(self, generator=None):
        self.generator = generator or np.random.default_rng()

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {"x": index, "drawn": drawn(self.generator)}


GENERATORS = {
    "default_rng": np.random.default_rng,
    "philox": lambda: np.random.Generator(np.random.Philox()),
    "sfc": lambda: np.random.Generator(np.random.SFC64()),
    "twister": lambda: np.random.Generator(np.random.MT19937()),
    "bits": np.random.PCG64,
    "RandomState": np.random.RandomState,
    "random": random.Random,
    "torch": torch.Generator,
}
HOLDERS = {
    "instance": lambda: Holds(np.random.default_rng()),
    "inside": lambda: HoldsMany(random.Random()),
    "later": Later,
    "argument": lambda: partial(with_argument, rng=torch.Generator()),
    "method": lambda: Holds(random.Random()).__call__,
    "torchvision": lambda: v2.Lambda(Holds(np.random.default_rng()), dict),
}


def fetch_of(step, dataset=None, hashed=True):
    steps = {} if step is None else {"noise": step}
    return Fetch(dataset or toy.Sequences(), Compose(steps), list_of_drawn, 0, hashed=hashed)


def list_of_drawn(samples):
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def hashes(fetch, steps):
    with scope():
        return {step: batch_hash([fetch(PLAN.request(0, step))]) for step in steps}


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_that_a_transform_holds_depends_on_the_address_alone(kind):
    make = GENERATORS[kind]
    forwards = hashes(fetch_of(Holds(make())), range(4))
    assert forwards == hashes(fetch_of(Holds(make())), [3, 1, 0, 2])
    assert len(set(forwards.values())) == 4
    values = fetch_of(Holds(make()))(PLAN.request(0, 0))["drawn"]
    assert len(set(values)) == 6  # each sample has numbers of its own
    assert fetch_of(Holds(make()))(PLAN.request(1, 0))["drawn"] != values


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_that_a_dataset_holds_depends_on_the_address_alone(kind):
    make = GENERATORS[kind]
    for wrapped in (lambda rows: rows, lambda rows: Subset(rows, range(24))):
        one, other = (fetch_of(None, wrapped(Rows(make()))) for _ in range(2))
        assert hashes(one, range(4)) == hashes(other, [2, 3, 0, 1])


def test_what_a_seed_means_is_pinned():
    """An update of Penstock must not change it; numpy promises that its generators stay."""
    batch = fetch_of(Holds(np.random.default_rng()), hashed=False)(PLAN.request(0, 0))
    assert batch["drawn"][:2] == [0.4521690194759198, 0.9165570023945903]
    batch = fetch_of(Holds(random.Random()), hashed=False)(PLAN.request(0, 0))
    assert batch["drawn"][:2] == [0.4113953334367988, 0.3621249339213779]


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_generator_is_found_wherever_it_is_held(holder):
    make = HOLDERS[holder]
    assert hashes(fetch_of(make()), range(3)) == hashes(fetch_of(make()), [2, 0, 1])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("holder", ["instance", "later"])
def test_worker_processes_give_what_the_main_process_gives(holder):
    def run(workers):
        options = LoaderOptions("process" if workers else "main", workers)
        fetch = fetch_of(HOLDERS[holder](), Rows())
        with Loader(PLAN, fetch, options) as loader:
            return [batch_hash([batch]) for epoch in (0, 1) for batch in loader.epoch(epoch)]

    assert run(0) == run(2)


def test_threads_refuse_a_generator_that_they_would_share():
    options = LoaderOptions("thread", 2)
    for step in (Holds(torch.Generator()), Later()):
        with (
            Loader(PLAN, fetch_of(step), options) as loader,
            pytest.raises(
                SharedGeneratorError, match=r"share the generator in transform\.noise\.rng"
            ),
        ):
            list(loader.epoch(0))


class Numbers:
    """A stream whose records are drawn from a generator that it keeps."""

    def __init__(self):
        self.rng = np.random.default_rng()

    def __iter__(self):
        for number in range(20):
            yield {"x": number, "drawn": self.rng.random()}


def test_a_stream_with_a_generator_is_the_same_from_every_address():
    plan = StreamPlan(StreamOrder(0, buffer=8), 4, length=20)

    def found(steps):
        fetch = StreamFetch(Numbers(), None, list_of_drawn, 0, True, plan=plan)
        return {step: batch_hash([fetch(plan.request(0, step, 0, 1))]) for step in steps}

    assert found(range(5)) == found([0, 2, 3]) | found([4]) | found([1])


# What has no seed.


class Anew:
    """Makes a generator at each call, without a seed."""

    def __call__(self, sample):
        return {**sample, "drawn": np.random.default_rng().random()}


class OfTheSystem:
    def __init__(self):
        self.rng = random.SystemRandom()

    def __call__(self, sample):
        return {**sample, "drawn": self.rng.random()}


class Counts:
    calls = 0

    def __call__(self, sample):
        self.calls += 1
        return {**sample, "drawn": self.calls}


class AnewInRow(Rows):
    def __getitem__(self, index):
        return {"x": index, "drawn": int.from_bytes(os.urandom(4))}


class AnewInRows(AnewInRow):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Kept(Dataset):
    """Hands out the same tensors again."""

    def __init__(self):
        self.rows = [{"x": torch.zeros(2) + row} for row in range(24)]

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return self.rows[index]


def brighten(sample):
    sample["x"] += 1
    return sample


UNLIKE = {
    "anew": (Anew(), None),
    "system": (OfTheSystem(), None),
    "counter": (Counts(), None),
    "class": (OfTheClass(), None),
    "slots": (InSlots(np.random.default_rng()), None),
    "module": (of_the_module, None),
    "closure": (in_closure(np.random.default_rng()), None),
    "row": (None, AnewInRow()),
    "rows at once": (None, AnewInRows()),
    "place": (brighten, Kept()),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_a_hash_of_what_has_no_seed_is_refused(case):
    step, dataset = UNLIKE[case]
    field = "x" if case == "place" else "drawn"
    said = rf"sample \d+ \(epoch 0, position 0\) has another '{field}' when it is made again"
    with scope(), pytest.raises(SampleError, match=said):
        fetch_of(step, dataset)(PLAN.request(0, 0))


def test_a_trial_leaves_the_batch_alone():
    """Also where a transform writes into rows that are kept, which the trial finds."""
    dataset = Kept()
    batch = fetch_of(brighten, dataset, hashed=False)(PLAN.request(0, 0))
    assert "unrepeatable" in batch.warnings
    assert all(
        int(row[0]) == index + 1
        for row, index in zip(batch["x"], batch.indices.tolist(), strict=True)
    )


def test_stacked_batches_are_tried_as_well():
    fetch = Fetch(Rows(), Compose({"noise": Anew()}), Stack(), 0)
    assert "drawn" in fetch(PLAN.request(0, 0)).warnings["unrepeatable"]


def test_a_dataloader_seeds_them():
    def passed(workers):
        dataset = Rows(torch.Generator().manual_seed(3))
        loader = DataLoader(dataset, batch_size=4, num_workers=workers)
        return [batch["drawn"].tolist() for _ in range(2) for batch in loader]

    torch.manual_seed(0)
    alone = passed(0)
    torch.manual_seed(0)
    assert alone == passed(2)
    assert alone[:6] != alone[6:]


def test_a_transform_of_whole_batches_with_a_generator_is_refused():
    class Step:
        def __init__(self):
            self.rng = np.random.default_rng()

        def __call__(self, batch, random):
            return batch

    with pytest.raises(ConfigError, match=r"a generator in gamma\.rng, a transform of whole"):
        BatchCompose({"gamma": Step()}, 0)
