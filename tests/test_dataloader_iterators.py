"""DataLoader: what a pass is, whoever else holds the loader, the dataset or the iterator."""

import pytest
from torch.utils.data import IterableDataset, Sampler

from pipeline.dataloader import DataLoader
from tests.test_dataloader import Squares


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


class RewindingSampler(Sampler):
    def __init__(self, length):
        self.rows = Rewinding(length)

    def __iter__(self):
        return iter(self.rows)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("size", [None, 4])
def test_a_dataset_that_is_its_own_iterator_is_begun_once_a_pass(workers, size):
    dataset = Rewinding()
    loader = DataLoader(dataset, size, num_workers=workers)
    expected = list(range(10)) if size is None else [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    for epoch in (1, 2):
        found = [batch if size is None else batch.tolist() for _, batch in zip(range(20), loader)]
        assert found == expected
        assert workers or dataset.begun == epoch


def test_a_sampler_that_is_its_own_iterator_is_begun_once_a_pass():
    loader = DataLoader(Squares(10), 4, sampler=RewindingSampler(10))
    assert [len(batch) for _, batch in zip(range(20), loader)] == [4, 4, 2]
