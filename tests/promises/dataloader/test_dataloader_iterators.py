"""DataLoader: what a pass is, whoever else holds the loader, the dataset or the iterator."""

import json

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from penstock.loading.dataloader import DataLoader
from tests.support.torch_style import Squares, children, plain, rest_after


class Rewinding(IterableDataset):
    """Its own iterator, which begins again whenever `iter()` is called on it."""

    def __init__(self, length=10):
        self.length, self.at, self.begun = length, 0, 0

    def __iter__(self):
        self.at = 0
        self.begun += 1
        return self

    def __next__(self):
        if self.at == self.length:
            raise StopIteration
        self.at += 1
        return self.at - 1


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("size", [None, 4])
def test_a_dataset_that_is_its_own_iterator_is_begun_once_a_pass(workers, size):
    dataset = Rewinding()
    loader = DataLoader(dataset, size, num_workers=workers)
    expected = list(range(10)) if size is None else [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    for epoch in (1, 2):
        found = [
            batch if size is None else batch.tolist()
            for _, batch in zip(range(20), loader, strict=False)
        ]
        assert found == expected
        assert workers or dataset.begun == epoch


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_end_with_their_last_holder(persistent):
    before = set(children())
    loader = DataLoader(Squares(100), 2, num_workers=1, persistent_workers=persistent)
    for _ in loader:
        break
    assert (set(children()) > before) == persistent
    state = loader.state_dict()
    assert state["step"] == 1
    batches = iter(loader)
    next(batches)
    del loader
    next(batches)
    assert set(children()) > before
    del batches
    assert set(children()) == before


@pytest.mark.one_in(3)
@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_persistent_workers_go_on_from_their_state(epochs):
    def make():
        return DataLoader(
            Squares(draws=True), 5, shuffle=True, num_workers=1, persistent_workers=True
        )

    loader = make()
    for _ in range(epochs):
        list(loader)
    state, rest = rest_after(loader, 2)
    following = plain(list(loader))
    torch.manual_seed(5)
    other = make()
    other.load_state_dict(state)
    assert [plain(list(other)), plain(list(other))] == [rest, following]


# Whoever is ready first.


class GoesOn(IterableDataset):
    """Begins where its last state says in each epoch, as streams of Hugging Face do."""

    def __init__(self, rows=24):
        self.rows, self.start, self.at, self.epoch = rows, 0, 0, 0

    def set_epoch(self, epoch):
        self.start, self.epoch = (self.start if epoch == self.epoch else 0), epoch

    def __iter__(self):
        info = get_worker_info()
        own = range(info.id, self.rows, info.num_workers) if info else range(self.rows)
        for row in range(self.start, len(own)):
            self.at = row + 1
            yield 1000 * self.epoch + own[row]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.start = self.at = state["at"]


def shuffled_stream(seed=1):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": list(range(24))}).to_iterable_dataset(num_shards=2)
    return rows.shuffle(seed=seed, buffer_size=7)


@pytest.mark.parametrize("dataset", [GoesOn, shuffled_stream])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_epochs_behind_a_resumed_one_are_whole(dataset, workers, persistent):
    def made(state=None):
        loader = DataLoader(dataset(), 3, num_workers=workers, persistent_workers=persistent)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        return loader

    def part(loader, count):
        batches = iter(loader)
        return plain([next(batches) for _ in range(count)]), loader.state_dict()

    loader = made()
    whole = [plain(list(loader)) for _ in range(3)]
    assert [len(batches) for batches in whole] == [8, 8, 8]
    first, state = part(made(), 4)
    second, state = part(made(state), 2)
    loader = made(state)
    rest = [plain(list(loader)) for _ in range(3)]
    assert [first + second + rest[0], *rest[1:]] == whole


@pytest.mark.parametrize("dataset", [GoesOn, shuffled_stream])
def test_a_stream_resumes_in_the_epoch_that_it_was_told(dataset):
    found = []
    for _ in range(2):
        loader = DataLoader(dataset(), 3)
        loader.dataset.set_epoch(2)
        found.append(plain(list(loader)))
        batches = iter(loader)
        found.append(plain([next(batches)]))
        state = loader.state_dict()
        found[-1] += plain(list(batches))
    assert found[:2] == found[2:]
    assert found[0] != found[1]
    resumed = DataLoader(dataset(), 3)
    resumed.load_state_dict(state)
    assert plain(list(resumed)) == found[1][1:]


def test_persistent_workers_serve_two_iterators_at_once():
    loader = DataLoader(Squares(), 5, num_workers=1, persistent_workers=True)
    older = iter(loader)
    first = next(older).tolist()
    whole = plain(list(loader))
    assert [first, *plain(list(older))] == whole
