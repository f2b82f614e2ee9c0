"""Batches in the hands of others: a batch stays one where its type does, with every field."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.distributed.utils import _apply_to_tensors
from torch.utils import _pytree
from torch.utils.data import default_convert

from penstock import TorchLoader
from penstock.loading.batch import Batch
from penstock.torch_internals import pin_memory
from tests.promises.frameworks.loaders import configured, values


def without_hub(name, package):
    """A module's attribute; skips where the package is not installed."""
    return getattr(pytest.importorskip(package), name)


def accelerate(name):
    return without_hub(name, "accelerate.utils")


def tensors_of(batch):
    return Batch({name: field for name, field in batch.items() if name != "name"})


@pytest.fixture(scope="module")
def batch():
    made = next(iter(configured()))
    return made.replace({**made, "name": ["a", "b", "c", "d"], "nested": {"row": torch.arange(4)}})


KEEPING = {  # by whose hands; the address stays
    "copied": copy.copy,
    "deepcopied": copy.deepcopy,
    "pickled": lambda batch: pickle.loads(pickle.dumps(batch)),
    "default_convert": default_convert,
    "accelerate_sends": lambda batch: accelerate("send_to_device")(batch, torch.device("cpu")),
    "lightning_moves": lambda batch: without_hub(
        "move_data_to_device", "lightning_fabric.utilities.apply_func"
    )(batch, torch.device("cpu")),
}
REBUILDING = {  # of its fields alone, as a dict is
    "by_type": lambda batch: type(batch)({**batch}),
    "of_pairs": lambda batch: type(batch)(list(batch.items())),
    "fsdp": lambda batch: _apply_to_tensors(lambda tensor: tensor, batch),
    "lightning_applies": lambda batch: without_hub("apply_to_collection", "lightning_utilities")(
        batch, torch.Tensor, lambda tensor: tensor
    ),
    "accelerate_slices": lambda batch: accelerate("slice_tensors")(batch, slice(0, 4)),
    "accelerate_pads": lambda batch: accelerate("pad_input_tensors")(tensors_of(batch), 4, 2),
    "accelerate_pads_across": lambda batch: accelerate("pad_across_processes")(tensors_of(batch)),
    "accelerate_concatenates": lambda batch: accelerate("concatenate")([batch]),
    "transformers_detaches": lambda batch: without_hub(
        "nested_detach", "transformers.trainer_pt_utils"
    )(tensors_of(batch)),
}


@pytest.mark.parametrize("hands", [*KEEPING, *REBUILDING])
def test_all_fields_and_the_address_where_the_type_stays(batch, hands):
    other = (KEEPING | REBUILDING)[hands](batch)
    assert values(other) == values(batch)
    assert other["nested"]["row"].tolist() == [0, 1, 2, 3]
    if hands in KEEPING:
        assert type(other) is Batch
        assert (other.request.epoch, other.request.step) == (0, 0)
        np.testing.assert_array_equal(other.indices, batch.indices)
        assert other["name"] == batch["name"]
    else:
        assert getattr(other, "request", None) is None
    other["image"] = None  # and a batch of its own
    assert batch["image"] is not None


def test_pinned_by_torch_it_stays_a_batch(batch, monkeypatch):
    pinned = []  # without an accelerator nothing can be
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(1) or tensor)
    other = pin_memory([batch])[0]
    assert type(other) is Batch
    assert other.request is batch.request
    assert len(pinned) == sum(torch.is_tensor(leaf) for leaf in _pytree.tree_leaves(dict(batch)))


def test_what_frameworks_ask_of_a_loader():
    loader = TorchLoader(configured())
    asked = {
        name: getattr(loader, name)
        for name in (
            "batch_size", "batch_sampler", "drop_last", "generator", "num_workers", "pin_memory",
            "persistent_workers", "prefetch_factor", "timeout", "worker_init_fn",
        )
    }  # fmt: skip
    # As torch has it of a loader that is given whole batches.
    assert asked == {
        "batch_size": None, "batch_sampler": None, "drop_last": False, "generator": None,
        "num_workers": 0, "pin_memory": False, "persistent_workers": False,
        "prefetch_factor": None, "timeout": 0, "worker_init_fn": None,
    }  # fmt: skip
    assert len(loader) == len(loader.sampler) == 6
    assert (loader.sampler.batch_size, loader.sampler.drop_last) == (4, False)
    assert len(loader.dataset) == sum(len(batch["image"]) for batch in loader)
