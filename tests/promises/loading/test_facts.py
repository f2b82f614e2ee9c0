"""The table, the facts and the classes of datasets of any make, without a sample read."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from penstock.errors import DataError
from penstock.loading import facts
from penstock.loading.facts import Fields


class Rows:
    """A dataset of three rows with any attributes; no row can be read."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __len__(self):
        return 3


LENGTHS = np.array([5, 6, 7])
LABELED = Rows(targets=[0, 2, 1], lengths=LENGTHS, classes=["a", "b", "c"])


def test_a_table_has_a_row_for_each_sample():
    table = pd.DataFrame({"label": [1, 2, 3]})
    assert facts.table_of(Rows(metadata=table, lengths=LENGTHS)) is table
    assert facts.table_of(Rows()) is None
    for dataset, rows in (
        (LABELED, [0, 1, 2]),
        (Subset(LABELED, [2, 0]), [2, 0]),
        (ConcatDataset([LABELED, Subset(LABELED, [1])]), [0, 1, 2, 1]),
    ):
        table = facts.table_of(dataset)
        assert list(table.columns) == ["length", "label"]
        assert table["length"].tolist() == LENGTHS[rows].tolist()
        assert table["label"].tolist() == np.array([0, 2, 1])[rows].tolist()
    mixed = ConcatDataset([LABELED, Rows(targets=[1, 1, 1])])
    assert list(facts.table_of(mixed).columns) == ["label"]
    assert facts.table_of(ConcatDataset([LABELED, Rows()])) is None


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([1, 2, 3], True),
        ((1.5, 2.5, 3.5), True),
        (torch.tensor([True, False, True]), True),
        (np.array(["a", "b", "c"]), True),
        ([1, 2], False),
        ([[1], [2], [3]], False),
        ([[1], [2, 3], [4]], False),
        ({1: 2}, False),
        (None, False),
    ],
)
def test_labels_are_a_value_for_each_row(values, kept):
    for name in ("targets", "labels", "_labels"):
        columns = facts.columns_of(Rows(**{name: values}), Fields())
        assert list(columns) == (["label"] if kept else [])
    second = facts.columns_of(Rows(targets=values, labels=[7, 8, 9]), Fields())
    assert second["label"].tolist() == (np.asarray(values).tolist() if kept else [7, 8, 9])


@pytest.mark.parametrize("lengths", [np.array([1, 2]), np.array([1.0, 2.0, 3.0])])
def test_lengths_are_a_whole_number_for_each_row(lengths):
    message = rf"Rows.lengths has {len(lengths)} values of type {lengths.dtype}; .* each of 3 rows"
    with pytest.raises(DataError, match=message):
        facts.columns_of(Rows(lengths=lengths))
    assert facts.columns_of(Rows(lengths=[1, 2])) == {}  # somebody's own attribute


def test_lengths_alone_are_read_without_a_table():
    assert [*facts.table_for({"length"}, LABELED, Fields())] == ["length", "label"]
    assert facts.table_for({"length"}, Rows(), Fields()) is None


FEATURES, CLASSES = torch.zeros(3, 2, 5), torch.tensor([0, 3, 1])


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Rows(facts={"num_classes": 7}, classes=["a"]), {"num_classes": 7}),
        (Subset(Rows(facts={"num_classes": 7}), [0]), {"num_classes": 7}),
        (LABELED, {"num_classes": 3, "num_outputs": 3}),
        (Subset(LABELED, [0]), {"num_classes": 3, "num_outputs": 3}),
        (ConcatDataset([LABELED, LABELED]), {"num_classes": 3, "num_outputs": 3}),
        (ConcatDataset([LABELED, Rows(targets=[9, 9, 9])]), {"num_classes": 10, "num_outputs": 10}),
        (Rows(num_classes=4), {"num_classes": 4, "num_outputs": 4}),
        (Rows(metadata=None, targets=[0, 1, 2]), {}),
        (Rows(targets=[0, -1, 2]), {}),
        (Rows(targets=[0.5, 1.5, 2.5]), {}),
        (Rows(), {}),
        (TensorDataset(FEATURES), {"num_features": 10}),
        (TensorDataset(CLASSES), {"num_classes": 4, "num_outputs": 4}),
        (
            TensorDataset(FEATURES, CLASSES),
            {"num_classes": 4, "num_outputs": 4, "num_features": 10},
        ),
        (TensorDataset(FEATURES, torch.zeros(3, 6)), {"num_features": 10, "num_outputs": 6}),
        (TensorDataset(torch.zeros(3)), {}),
    ],
)
def test_facts_come_from_classes_labels_and_shapes(dataset, expected):
    assert facts.facts_of(dataset) == expected


def test_classes_are_those_that_all_parts_have():
    assert facts.classes_of(Rows(classes=(1, "b"))) == ["1", "b"]
    assert facts.classes_of(Rows(classes={"a": 1})) == []
    assert facts.classes_of(ConcatDataset([LABELED, LABELED])) == ["a", "b", "c"]
    assert facts.classes_of(ConcatDataset([LABELED, Rows(classes=["a"])])) == []
