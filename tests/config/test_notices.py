"""Notices, each with a configuration for which there is none."""

import pytest

from penstock.config import notices
from penstock.distributed import world
from tests.config.unchecked import BY_BUCKET, NO_STEPS, NUMBERS, RANDOM, STREAM, changed, holds

pytestmark = pytest.mark.usefixtures("alone")

IDENTITY = {"_target_": "penstock.order.samplers.Identity", "identities": 4, "samples": 3}
NVJPEG = {"_target_": "penstock.transforms.device_decoding.DecodeBatch"}


@pytest.mark.parametrize(
    ("values", "problems"),
    [
        ({"loader.pin_memory": True}, [("loader.pin_memory", "there is no accelerator")]),
        ({"loader.pin_memory": False}, []),
        ({"loader.num_workers": 8, "loader.backend": "process"}, []),
        (
            {"loader.num_workers": 9, "loader.backend": "process"},
            [("loader.num_workers", "9 processes for 4 cores")],
        ),
        ({"loader.num_workers": 9, "loader.backend": "auto"}, ["loader.num_workers"]),
        ({"loader.num_workers": 9, "loader.backend": "thread"}, []),
        ({"loader.num_workers": "auto", "loader.backend": "process"}, []),
        ({"batch.balance": "length", "distributed.strategy": "none"}, ["batch.balance"]),
        ({"batch.balance": "length", "distributed.strategy": "ddp"}, []),
        ({"sampler": IDENTITY, "batch.size": 12}, []),
        (
            {"sampler": IDENTITY, "batch.size": 8},
            [("batch.size", "Identity makes training batches of 12 rows, sampler.identities=4 x ")],
        ),
        ({"sampler": IDENTITY, "batch.size": None}, []),
        ({"sampler": BY_BUCKET, "batch.size": 8}, []),
        ({"sampler": RANDOM, "batch.size": 8}, []),
        ({"transform.train_batch": {"d": NVJPEG}}, [("transform", "there is no GPU here")]),
        ({"transform.val_batch": {"d": NVJPEG}}, ["transform"]),
    ],
)
def test_notices(values, problems):
    holds(list(notices.find(changed({"loader.pin_memory": None, **NO_STEPS, **values}))), *problems)


def test_files_that_a_gpu_decodes(monkeypatch):
    monkeypatch.setattr(world, "has_accelerator", lambda: True)
    values = {**NO_STEPS, "transform.train_batch": {"d": NVJPEG, "off": None}}
    for device, where, reason in (
        ("cuda", "device", None),
        ("cpu", "device", "there is no GPU here"),
        ("cuda", "loader", "transform.batch_on=loader"),
    ):
        config = changed(
            {
                **values,
                "loader.pin_memory": True,
                "trainer.device": device,
                "transform.batch_on": where,
            }
        )
        holds(list(notices.find(config)), *([("transform", reason)] if reason else []))


def test_processes_of_slurm_that_do_nothing(monkeypatch):
    for idle, strategy, said in (
        ("4 tasks", "none", True),
        ("4 tasks", "ddp", False),
        ("2 machines", "ddp", True),
        ("", "none", False),
    ):
        monkeypatch.setattr(world, "outside_of_srun", lambda idle=idle: idle)
        found = list(notices.find(changed({**NO_STEPS, "distributed.strategy": strategy})))
        holds(found, *([("Slurm", f"the job has {idle}, and")] if said else []))


class Other:
    """A dataset that mixes none."""


class Mixed:
    """A dataset that mixes streams."""

    mixes_streams = True


@pytest.mark.parametrize(
    ("kind", "sources", "said"),
    [
        ("Mixed", {"a": NUMBERS}, True),
        ("Mixed", {"a": NUMBERS, "b": STREAM}, False),
        ("Mixed", {"a": NUMBERS, "b": {"_target_": "no.such"}}, False),
        ("Mixed", {}, False),
        ("Other", {"a": NUMBERS}, False),
    ],
)
def test_sources_of_a_mixture_that_are_all_rows(kind, sources, said):
    node = {"_target_": f"tests.config.test_notices.{kind}", "sources": sources}
    found = list(notices.find(changed({**NO_STEPS, "dataset": node})))
    assert ["dataset: all sources have rows" in text for text in found] == [True] * said
