"""To a device: copies run one ahead, and every batch arrives as it was."""

import pytest
import torch

from penstock.distributed.world import World
from penstock.loading.loader import Loader, Transfer
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Plan
from penstock.order.samplers import Random
from penstock.transforms.batch import BatchCompose
from penstock.transforms.batch_colors import BatchNormalize
from tests.support import toy

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_one_is_begun_before_the_last_is_given():
    log = []

    def begun():
        for number in range(4):
            log.append(f"begin {number}")
            yield number

    for number in Transfer("meta")(begun()):
        log.append(f"give {number}")
    order = "begin 0, give 0, begin 1, begin 2, give 1, begin 3, give 2, give 3"
    assert log == order.split(", ")
    for count in range(4):
        assert list(Transfer("meta")(range(count))) == list(range(count))


def loader_on(device, options, compose=None):
    plan, fetch = Plan(Random(40, 0), 8), toy.loader().fetch
    return Loader(plan, fetch, options, World(device=device), batch_transform=compose)


OPTIONS = {
    "main": LoaderOptions(pin_memory=True),
    "thread": LoaderOptions("thread", 2, pin_memory=True),
    "process": LoaderOptions("process", 2, pin_memory=True),
    "unpinned": LoaderOptions(),
}


@needs_gpu
@pytest.mark.parametrize("name", OPTIONS)
def test_every_batch_arrives_as_it_was(name):
    with loader_on("cpu", LoaderOptions()) as expected, loader_on("cuda", OPTIONS[name]) as found:
        for epoch in range(3):
            for there, here in zip(found.epoch(epoch), expected.epoch(epoch), strict=True):
                assert there["image"].device.type == "cuda"
                torch.cuda._sleep(2_000_000)  # the consumer is behind the copies
                assert torch.equal(there["image"].cpu(), here["image"])
                assert torch.equal(there["label"].cpu(), here["label"])
                assert there.hashes == here.hashes


@needs_gpu
def test_bytes_cross_and_become_floats_there():
    compose = BatchCompose({"normalize": BatchNormalize()}, 0)
    with loader_on("cuda", OPTIONS["main"], compose) as found:
        batch = next(iter(found))
    assert batch["image"].dtype == torch.float32
    with loader_on("cpu", LoaderOptions(), compose) as expected:
        torch.testing.assert_close(batch["image"].cpu(), next(iter(expected))["image"])
