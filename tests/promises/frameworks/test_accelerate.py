"""In Accelerate's loop: `prepare` keeps the loader, states resume it, skipping is a jump."""

import pytest
import torch

from penstock import DataLoader, TorchLoader
from tests.promises.frameworks.loaders import MAKERS, Rows, values

accelerate = pytest.importorskip("accelerate")
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402


@pytest.fixture
def accelerator(monkeypatch):
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    return accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)


def prepared(accelerator, kind):
    loader = TorchLoader(MAKERS[kind]())
    assert accelerator.prepare(loader) is loader
    return loader


def test_prepare_keeps_the_loader_and_gradients_accumulate_as_ever(accelerator, kind, references):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = prepared(accelerator, kind)
    model, optimizer = accelerator.prepare(model, optimizer)
    for reference in references[kind]:
        synced = []
        for step, batch in enumerate(loader, start=1):
            assert values(batch) == reference[step - 1]
            with accelerator.accumulate(model):
                synced.append(accelerator.sync_gradients)
            state = accelerator.gradient_state
            assert state.end_of_dataloader == (step == len(loader))
            assert state.remainder == len(loader.dataset) % 4
        assert synced == [
            step % 4 == 0 or step == len(loader) for step in range(1, len(loader) + 1)
        ]
    assert accelerator.prepare(loader) is loader
    assert isinstance(loader, torch.utils.data.DataLoader)


@pytest.mark.parametrize("skips", [False, True])
def test_its_checkpoints_resume_it(accelerator, kind, references, tmp_path, skips):
    flat = [batch for epoch in references[kind] for batch in epoch]
    steps = len(references[kind][0])
    loader = prepared(accelerator, kind)
    made = 0
    for _ in range(2):
        for _ in loader:
            made += 1
            accelerator.save_state(str(tmp_path / str(made)))
    for at in (1, steps - 1, steps, steps + 2):
        other = accelerate.Accelerator(cpu=True)
        loader = prepared(other, kind)
        other.load_state(str(tmp_path / str(at)))
        rest = accelerate.skip_first_batches(loader, at % steps) if skips else loader
        batches = [values(batch) for batch in rest]
        batches += [values(batch) for batch in loader]
        assert batches == flat[at : at + len(batches)]
        assert len(batches) == 2 * steps - at % steps


def test_skipping_is_a_jump_and_its_state_is_saved(accelerator, kind, references, tmp_path):
    loader = prepared(accelerator, kind)
    loader.set_epoch(1)
    skipped = accelerate.skip_first_batches(loader, 2)
    for step, batch in enumerate(skipped, start=2):
        assert values(batch) == references[kind][1][step]
        if step == 3:
            accelerator.save_state(str(tmp_path))
    assert [values(batch) for batch in loader] == references[kind][2]
    accelerator.load_state(str(tmp_path))
    assert [values(batch) for batch in loader] == references[kind][1][4:]


def test_a_loader_that_is_not_seeded_has_the_order_that_it_has_elsewhere(accelerator):
    def rows(loader):
        torch.manual_seed(7)
        return [[batch["row"].tolist() for batch in loader] for _ in range(2)]

    options = {"batch_size": 4, "shuffle": True}
    reference = rows(DataLoader(Rows(), **options))
    assert rows(accelerator.prepare(TorchLoader(DataLoader(Rows(), **options)))) == reference


class Counted(torch.utils.data.TensorDataset):
    def set_epoch(self, epoch):
        self.epoch = epoch


def test_samplers_and_datasets_of_one_s_own_hear_of_each_epoch(accelerator):
    def rows(kind):
        dataset = Counted(torch.arange(16))
        sampler = torch.utils.data.DistributedSampler(dataset, 1, 0, shuffle=True)
        batches = torch.utils.data.BatchSampler(sampler, 4, drop_last=False)
        loader = accelerator.prepare(kind(dataset, batch_sampler=batches))
        return [([batch[0].tolist() for batch in loader], dataset.epoch) for _ in range(3)]

    reference = rows(torch.utils.data.DataLoader)
    assert len({str(epoch) for epoch, _ in reference}) == 3
    assert rows(DataLoader) == reference
