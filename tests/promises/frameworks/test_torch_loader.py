"""A loader as torch's DataLoader: whatever is put together from its parts has the same batches."""

import pytest
from torch.utils import data as torch_data
from torch.utils.data import DistributedSampler

from penstock import DataLoader, TorchLoader
from penstock.distributed.world import World
from tests.promises.frameworks import loops
from tests.promises.frameworks.loaders import MAKERS, OwnOrder, configured, epochs, values


class Stream(torch_data.IterableDataset):
    def __iter__(self):
        return iter(range(10))


def test_it_is_a_dataloader_with_the_loader_s_batches(kind, references):
    loader = TorchLoader(MAKERS[kind]())
    assert isinstance(loader, torch_data.DataLoader)
    assert isinstance(loader.sampler, DistributedSampler)  # which nobody divides again
    assert len(loader) == len(references[kind][0])
    rows = sum(len(next(iter(batch.values()))) for batch in references[kind][0])
    assert len(loader.dataset) == rows
    assert loader.sampler.batch_size == 4
    assert epochs(loader) == references[kind]


@pytest.mark.parametrize("epoch", [0, 2])
def test_what_is_put_together_from_its_parts_has_its_batches_and_may_begin_anywhere(
    kind, references, epoch
):
    loader = TorchLoader(MAKERS[kind]())
    loader.set_epoch(epoch)
    made, read = [], loader.loader.epoch
    loader.loader.epoch = lambda *address: made.append(address) or read(*address)

    class Skipping(torch_data.BatchSampler):
        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            return (address for number, address in enumerate(self.sampler) if number >= 2)

    for batching in ("batch_sampler", "sampler"):
        loader.set_epoch(epoch)
        options = {"batch_size": None} if batching == "sampler" else {}
        options |= {batching: Skipping(loader.sampler), "collate_fn": loader.collate_fn}
        parts = torch_data.DataLoader(loader.dataset, **options)
        assert [values(batch) for batch in parts] == references[kind][epoch][2:]
    assert made == [(epoch, 2)] * 2


def test_leaving_an_epoch_ends_it_and_a_state_resumes_it(kind, references):
    loader = TorchLoader(MAKERS[kind]())
    first, second, _ = references[kind]
    for step, batch in enumerate(loader):
        assert values(batch) == first[step]
        if step == 2:
            state = loader.state_dict()
            break
    assert [values(batch) for batch in loader] == second
    other = TorchLoader(MAKERS[kind]())
    other.load_state_dict(state)
    other.set_epoch(0)  # of whoever counts from 0
    assert [values(batch) for batch in other] == first[3:]
    other.set_epoch(1)
    assert [values(batch) for batch in other] == second


@pytest.mark.parametrize("behind", [1, 4])
def test_epochs_that_are_counted_from_0_go_on_from_a_state(kind, references, behind):
    loader = TorchLoader(MAKERS[kind]())
    for _ in loader:
        pass
    rest = iter(loader)
    for _ in range(behind):
        next(rest)
    other = TorchLoader(MAKERS[kind]())
    other.load_state_dict(loader.state_dict())
    other.set_epoch(0)
    assert [values(batch) for batch in other] == references[kind][1][behind:]
    other.set_epoch(1)
    assert [values(batch) for batch in other] == references[kind][2]


def test_a_stream_is_read_on(kind):
    loader = TorchLoader(DataLoader(Stream(), batch_size=3))
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    rest = iter(loader)
    next(rest)
    state = loader.state_dict()
    other = TorchLoader(DataLoader(Stream(), batch_size=3))
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == [[3, 4, 5], [6, 7, 8], [9]]
    parts = torch_data.DataLoader(
        other.dataset, sampler=other.sampler, batch_size=None, collate_fn=other.collate_fn
    )
    assert [batch.tolist() for batch in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_a_rank_has_its_share():
    whole = [values(batch)["landmarks"] for batch in configured()]
    shares = [TorchLoader(configured("distributed=ddp", world=World(rank, 2))) for rank in (0, 1)]
    halves = [[values(batch)["landmarks"] for batch in loader] for loader in shares]
    assert [a + b for a, b in zip(*halves, strict=True)] == whole


def as_fabric(loader, count):
    for number in range(count):  # from 0 in every process
        loader.sampler.set_epoch(number)
        for batch in loader:
            yield loops.digest(batch), loader.state_dict()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("done", [1, 2, 3, 4, 6])
def test_fabric_continues_with_the_epoch_of_a_sampler(done, own):
    def divided():
        divided = DistributedSampler(loops.Rows(), 2, 0)
        sampler = OwnOrder(len(divided)) if own else divided
        return DataLoader(loops.Rows(), batch_size=loops.SIZE, sampler=sampler, seed=3)

    whole = list(as_fabric(divided(), 4))
    assert len({seen for seen, _ in whole}) == len(whole) == 12
    resumed = divided()
    resumed.load_state_dict(whole[done - 1][1])
    rest = [seen for seen, _ in as_fabric(resumed, 4 - done // 3)]
    assert rest == [seen for seen, _ in whole[done:]]
