"""Rules on keys of datasets and on steps of batches, called one by one."""

import pytest

from penstock.config import data_rules
from penstock.loading.collate import List, Stack
from tests.config.unchecked import COLORS, MIX, NO_STEPS, NORMALIZE, NUMBERS, OTHER, holds, messages
from tests.own_parts import Numbers

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize(
    ("values", "parts", "problems"),
    [
        ({"dataset": {**NUMBERS, "fields": ["x", "y"], "facts": {"num_classes": 3}}}, {}, []),
        ({"dataset": {**NUMBERS, "fields": "x"}}, {}, ["dataset.fields"]),
        ({"dataset": {**NUMBERS, "fields": ["x", 2]}}, {}, ["dataset.fields"]),
        (
            {"dataset": {**NUMBERS, "fields": ["x", "x"]}},
            {},
            [("dataset.fields", "got x, x; every")],
        ),
        ({"dataset": {**NUMBERS, "fields": []}}, {}, [("dataset.fields", "got no name")]),
        (
            {"collate": {"_target_": "penstock.loading.collate.Stack", "fields": 3}},
            {},
            ["collate.fields"],
        ),
        ({"dataset": {**NUMBERS, "facts": {"a": 1.5}}}, {}, ["dataset.facts"]),
        ({"dataset": {**NUMBERS, "facts": [1]}}, {}, ["dataset.facts"]),
        ({"dataset": {**NUMBERS, "facts": {"a": True}}}, {}, ["dataset.facts"]),
        (
            {"dataset": {**NUMBERS, "train": {"filtr": "x"}}},
            {},
            [("dataset.train.filtr", "unknown (did you mean 'filter'?); beside")],
        ),
        ({"dataset": {**NUMBERS, "val": {"split": {}}}}, {}, []),
        (
            {"collate": {"_target_": "penstock.loading.collate.Single"}, "batch.size": 2},
            {},
            [("collate", "batch.size is 2; set batch.size=null")],
        ),
        ({"collate": {"_target_": "penstock.loading.collate.Single"}, "batch.size": None}, {}, []),
        ({"dataset": {**NUMBERS, "fingerprint": "size"}}, {}, [("dataset.fingerprint", "'sizes'")]),
        (
            {"dataset": {**NUMBERS, "fingerprint": "content"}},
            {"dataset": Numbers},
            ["dataset.fingerprint"],
        ),
        (
            {"dataset": {**NUMBERS, "fingerprint": "names"}},
            {"dataset": Numbers},
            ["dataset.fingerprint"],
        ),
        ({"dataset": {**NUMBERS, "fingerprint": "content"}}, {}, []),
        ({"dataset": {**NUMBERS, "fingerprint": "sizes"}}, {"dataset": Numbers}, []),
    ],
)
def test_keys_of_datasets(values, parts, problems):
    base = {"collate": {"_target_": "penstock.loading.collate.Stack"}, "dataset": NUMBERS}
    holds(messages(data_rules.dataset_keys, {**base, **values}, parts), *problems)


@pytest.mark.parametrize(
    ("values", "collate", "size", "problems"),
    [
        ({"transform.train_batch": {"a": COLORS, "off": None}}, Stack, 8, []),
        (
            {"transform.train_batch": {"a": COLORS}},
            Stack,
            None,
            [("transform.train_batch", "size=null")],
        ),
        ({"transform.val_batch": {"a": COLORS}}, Stack, None, ["transform.val_batch"]),
        ({"transform.train_batch": {"off": None}}, List, None, []),
        (
            {"transform.train_batch": {"a": COLORS}},
            List,
            8,
            [("transform.train_batch", "collate=list")],
        ),
        ({"transform.train": {"a": NORMALIZE}}, Stack, 8, []),
        (
            {"transform.train": {"a": NORMALIZE}, "transform.train_batch": {"b": OTHER}},
            Stack,
            8,
            [("transform.train_batch.b", "what transform.train.a has", "transform.train.a=null")],
        ),
        ({"transform.train": {"a": NORMALIZE}, "transform.val_batch": {"b": OTHER}}, Stack, 8, []),
        ({"transform.train_batch": {"m": MIX}}, Stack, 8, []),
        (
            {"transform.val_batch": {"m": MIX}},
            Stack,
            8,
            [("transform.val_batch.m", "of validation")],
        ),
        (
            {"transform.train_batch": {"m": MIX}},
            Stack,
            7,
            [
                (
                    "batch.size",
                    "7 cannot be cut into pairs for 1 process(es)",
                    "mixes pairs; take 6 or 8",
                )
            ],
        ),
        ({"transform.train_batch": {"m": MIX}}, Stack, 1, [("batch.size", "take 2")]),
    ],
)
def test_steps_of_batches(values, collate, size, problems):
    values = {**NO_STEPS, "batch.size": size, **values}
    holds(messages(data_rules.batch_steps, values, {"collate": collate}), *problems)


def test_pairs_of_several_ranks(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    values = {**NO_STEPS, "transform.train_batch": {"m": MIX}}
    for size, ways in ((12, None), (8, "6 or 12"), (20, "18 or 24"), (4, "6")):
        found = messages(data_rules.batch_steps, {**values, "batch.size": size})
        holds(found, *([("batch.size", "for 3 process(es)", f"take {ways}")] if ways else []))


def test_steps_that_make_no_views():
    steps = {"transform.train_batch": {"a": COLORS, "n": OTHER, "off": None}}
    assert messages(data_rules.views, {**steps, "transform.views": 1}) == []
    found = messages(data_rules.views, {**steps, "transform.views": 2})
    holds(found, ("transform.train_batch.a", "transform.train_batch.a=null"))
