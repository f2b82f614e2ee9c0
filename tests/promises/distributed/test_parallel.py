"""How a model is spread over the ranks; here over one rank of a real group."""

import pytest
from torch import nn

from penstock.distributed import parallel
from penstock.distributed.group import Group
from penstock.distributed.parallel import Parallel
from penstock.distributed.world import World


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(2, 2)
        self.body = nn.ModuleDict({"layers": nn.Sequential(nn.Linear(2, 2), nn.ReLU())})
        self.norm = nn.BatchNorm1d(2)


@pytest.mark.parametrize(
    ("sync", "device", "synchronous"),
    [(True, "cuda:0", True), (False, "cuda:0", False), (True, "cpu", False)],
)
def test_batch_norms_measure_the_global_batch_on_gpus_only(sync, device, synchronous, monkeypatch):
    monkeypatch.setattr(nn.Module, "to", lambda model, device: model)
    group = Group(World(device=device))
    model = parallel.prepare(Model(), Parallel("ddp", sync_batchnorm=sync), group)
    assert isinstance(model.norm, nn.SyncBatchNorm) == synchronous
