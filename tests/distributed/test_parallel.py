"""How a model is spread over the ranks; here over one rank of a real group."""

import pytest
import torch
from torch import distributed, nn

from penstock.distributed import parallel
from penstock.distributed.group import Group
from penstock.distributed.parallel import Parallel
from penstock.distributed.world import World


@pytest.fixture
def single():
    """A group of one rank."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield Group(World(), distributed.new_group(backend="gloo"))
    distributed.destroy_process_group()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(2, 2)
        self.body = nn.ModuleDict({"layers": nn.Sequential(nn.Linear(2, 2), nn.ReLU())})
        self.norm = nn.BatchNorm1d(2)


def test_layers_are_sharded_before_the_model(single):
    from torch.distributed.fsdp import FSDPModule

    model = parallel.prepare(Model(), Parallel("fsdp"), single)
    sharded = [name for name, part in model.named_modules() if isinstance(part, FSDPModule)]
    assert sharded == ["", "body.layers.0"]
    whole = {name: value.full_tensor().detach().clone() for name, value in model.named_parameters()}
    shards = parallel.like(whole | {"other": torch.ones(1)}, dict(model.named_parameters()))
    for name, value in model.named_parameters():
        assert torch.equal(shards[name].to_local(), value.to_local())
        assert shards[name].placements == value.placements
    assert type(shards["other"]) is torch.Tensor
    assert parallel.like(shards, dict(model.named_parameters())) == shards  # sharded already
    assert parallel.like(whole, {}) == whole


def test_what_is_not_spread_stays_as_it_is(single):
    for strategy, group in (("none", single), ("ddp", Group()), ("none", Group())):
        model = Model()
        assert parallel.prepare(model, Parallel(strategy), group) is model
        assert parallel.wrap(model, Parallel(strategy), group) is model
        assert type(model.stem) is nn.Linear
    model = Model()
    wrapped = parallel.wrap(model, Parallel("ddp", find_unused_parameters=True), single)
    assert isinstance(wrapped, nn.parallel.DistributedDataParallel)
    assert wrapped.module is model
    assert wrapped.find_unused_parameters
    assert wrapped.device_ids is None


@pytest.mark.parametrize(
    ("sync", "device", "synchronous"),
    [(True, "cuda:0", True), (False, "cuda:0", False), (True, "cpu", False)],
)
def test_batch_norms_measure_the_global_batch_on_gpus_only(sync, device, synchronous, monkeypatch):
    monkeypatch.setattr(nn.Module, "to", lambda model, device: model)
    group = Group(World(device=device))
    model = parallel.prepare(Model(), Parallel("ddp", sync_batchnorm=sync), group)
    assert isinstance(model.norm, nn.SyncBatchNorm) == synchronous
