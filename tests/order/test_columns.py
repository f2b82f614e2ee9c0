"""Columns that are read by row: lengths of a dataset without a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset

from penstock.addons.tokens.sequence_packing import SequencePacking
from penstock.errors import DataError
from penstock.loading.facts import columns_of, table_of
from penstock.order.samplers import Bucket, Curriculum, Weighted


class Texts(Dataset[dict[str, Any]]):
    """Rows of unequal length, without a table."""

    def __init__(self, lengths: Any = (3, 1, 4, 1, 5, 9, 2, 6)) -> None:
        self.lengths = np.asarray(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": np.full(self.lengths[index], index)}


def test_samplers_choose_by_lengths_as_by_a_column_of_a_table() -> None:
    import pandas as pd

    lengths = np.random.default_rng(0).integers(1, 50, 300).astype(np.int32)
    table = pd.DataFrame({"length": lengths})
    told = {"length": lengths}
    for make in (
        lambda t: Bucket(300, 1, t, 8),
        lambda t: Curriculum(300, 1, t),
        lambda t: SequencePacking(300, 1, t, 4, 64, window=100),
        lambda t: Weighted(300, 1, t, column=None, weights="length"),
    ):
        ours, theirs = make(told), make(table)
        assert ours.size(0) == theirs.size(0)
        if isinstance(ours, (Bucket, SequencePacking)):
            rows = [
                [one.batch(0, step)[1].tolist() for step in range(one.size(0))]
                for one in (ours, theirs)
            ]
        else:
            rows = [one.indices(0, 0, 300).tolist() for one in (ours, theirs)]
        assert rows[0] == rows[1]


def test_lengths_stand_in_the_table_of_a_dataset_that_has_none() -> None:
    table = table_of(Texts())
    assert table is not None
    assert table["length"].tolist() == [3, 1, 4, 1, 5, 9, 2, 6]
    chosen = columns_of(Subset(ConcatDataset([Texts(), Texts([7])]), [8, 5]))
    assert chosen["length"].tolist() == [7, 9]
    assert columns_of(ConcatDataset([Texts(), [1, 2]])) == {}  # type: ignore[list-item]


@pytest.mark.parametrize("lengths", [[1.0, 2.0], ["a", "b"]])
def test_lengths_that_are_no_whole_numbers_are_refused(lengths: list[Any]) -> None:
    with pytest.raises(DataError, match=r"Texts\.lengths has 2 values"):
        columns_of(Texts(lengths))


def test_too_few_lengths_are_refused() -> None:
    dataset = Texts()
    dataset.lengths = dataset.lengths[:3]
    dataset.__class__ = type("Wrapped", (Texts,), {"__len__": lambda _: 8})
    with pytest.raises(DataError, match=r"Wrapped\.lengths has 3 values .* 8 rows"):
        columns_of(dataset)
