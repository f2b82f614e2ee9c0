"""Splits and samples as the build makes them of a configuration, part by part."""

import numpy as np
import pandas as pd
import pytest
from torch.utils.data import IterableDataset

from penstock.build.data import DataParts
from penstock.build.samples import Yielded, collate_of, dataset_of, fields_of
from penstock.distributed.world import World
from penstock.errors import ConfigError
from penstock.loading.named_fields import OwnCollate
from tests.config.unchecked import NO_STEPS, NUMBERS, RANDOM, changed

pytestmark = pytest.mark.usefixtures("alone")

HERE = "tests.config.test_build_data"
STACK = {"_target_": "penstock.loading.collate.Stack"}


def numbers():
    yield from range(3)


def once():
    return iter(range(3))


def joined(samples):
    return samples


class Whole(IterableDataset):
    def __iter__(self):
        return self

    def __next__(self):
        return 1


class Told:
    """Rows with facts and a table."""

    facts = {"num_classes": 3}
    fingerprint = "ab"

    def __init__(self, size=8):
        self.metadata = pd.DataFrame(
            {"cost": np.arange(size) * 0.5, "name": ["a"] * size, "is_odd": [True] * size}
        )

    def __len__(self):
        return len(self.metadata)

    def __getitem__(self, row):
        return {"x": float(row), "label": row % 3}


TOLD = {"_target_": f"{HERE}.Told"}


def parts(device="cpu", **values):
    base = {"dataset": TOLD, "sampler": RANDOM, "collate": STACK, **NO_STEPS}
    return DataParts(changed({**base, **values}), World(device=device))


def test_splits():
    data = parts()
    assert [split.name for split in data.splits] == ["train", "val"]
    assert data.split("train") is data.train
    assert data.split("other") is data.val
    assert data.split("test").steps == data.val.steps == "val"
    assert data.train.steps == "train"
    alone = parts(dataset={**TOLD, "val": None})
    assert [split.name for split in alone.splits] == ["train"]
    assert alone.train.node == ("dataset", TOLD)
    with pytest.raises(ConfigError, match=r"dataset\.val: is null, so there are no rows"):
        _ = alone.val.node


def test_nodes_of_splits():
    data = parts(dataset={"train": TOLD, "val": NUMBERS})
    assert data.train.node == ("dataset.train", TOLD)
    assert data.val.node == ("dataset.val", NUMBERS)
    with pytest.raises(ConfigError, match=r"dataset\.test: is missing, and .* that split$"):
        _ = data.split("test").node
    with pytest.raises(ConfigError, match=r"dataset\.val: is missing, .*; null trains without val"):
        _ = parts(dataset={"train": TOLD}).val.node


@pytest.mark.parametrize(
    ("size", "val_size", "sizes"), [(8, None, (8, 8)), (8, 3, (8, 3)), (None, 3, (1, 1))]
)
def test_rows_of_batches(size, val_size, sizes):
    data = parts(**{"batch.size": size, "batch.val_size": val_size})
    assert (data.train.batch_size, data.val.batch_size) == sizes


@pytest.mark.parametrize(
    ("where", "device", "is_so"),
    [
        ("device", "cpu", True),
        ("device", "cuda", True),
        ("auto", "cpu", False),
        ("auto", "cuda", True),
        ("loader", "cuda", False),
    ],
)
def test_where_batches_are_transformed(where, device, is_so):
    assert parts(device, **{"transform.batch_on": where}).on_device == is_so


def test_facts():
    assert parts().facts == {"num_outputs": 3, "num_classes": 3}
    more = parts(dataset={**TOLD, "facts": {"num_classes": 5, "num_features": 2}}).facts
    assert more == {"num_outputs": 5, "num_classes": 5, "num_features": 2}
    other = parts(dataset={**TOLD, "facts": {"num_outputs": 7}}).facts
    assert other == {"num_outputs": 7, "num_classes": 3}


def test_a_fact_that_is_missing_is_named():
    node = {"_target_": "torch.nn.Linear", "in_features": 1}
    assert parts().make_with_facts("model", node, False).out_features == 3
    with pytest.raises(ConfigError, match=r"model.*: needs in_features, which Told does not tell"):
        parts().make_with_facts("model", {"_target_": "torch.nn.Linear"}, False)


def test_datasets_without_an_epoch():
    data = parts()
    assert "has rows by index, and no length" in str(data.train.empty(None))
    for name, way in (("train", "is divided"), ("val", "dataset.val=null"), ("test", "test_fract")):
        text = str(data.split(name).empty(0))
        assert f"Told has no rows for the {name} split" in text
        assert way in text


def test_functions_that_yield_are_streams():
    stream = dataset_of({"_target_": f"{HERE}.numbers"}, "dataset", {})
    assert isinstance(stream, Yielded)
    assert [list(stream), list(stream)] == [[0, 1, 2]] * 2
    with pytest.raises(ConfigError, match="once gives a range_iterator, which can be read once"):
        dataset_of({"_target_": f"{HERE}.once"}, "dataset", {})
    assert isinstance(dataset_of({"_target_": f"{HERE}.Whole"}, "dataset", {}), Whole)
    assert len(dataset_of({**TOLD, "size": 3}, "dataset", {"lazy": True})) == 3


@pytest.mark.parametrize(
    ("objective", "usual"),
    [
        ({}, ["input", "target"]),
        ({"inputs": ["x", "x_lengths", "y"], "target": "t"}, ["x", "y", "t"]),
        ({"inputs": ["x"], "target": "x"}, ["x"]),
        ({"inputs": []}, ["input", "target"]),
    ],
)
def test_names_of_positions(objective, usual):
    fields = fields_of(changed({"objective": objective, "dataset": {**TOLD, "fields": ["a"]}}))
    assert (fields.given, fields.usual) == (("a",), tuple(usual))


def test_functions_that_collate():
    config = changed({"collate": STACK, "dataset": TOLD})
    fields = fields_of(config)
    assert type(collate_of(config, fields)).__name__ == "Stack"
    own = {"_target_": f"{HERE}.joined"}
    for size, one in ((None, True), (4, False)):
        made = collate_of(changed({"collate": own, "batch.size": size}), fields)
        assert isinstance(made, OwnCollate)
        assert made.one == one


def test_entries_of_fingerprints():
    data = parts(**{"batch.val_size": 3})
    train, val = data.train.fingerprint, data.val.fingerprint
    assert train["dataset"] == val["dataset"]
    assert train["sampler._target_"] == RANDOM["_target_"]
    assert "sampler._target_" not in val
    assert val["batch.val_size"] == "3"
    assert "batch.val_size" not in train
    assert "decoder" not in train
