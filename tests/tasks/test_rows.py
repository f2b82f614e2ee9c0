"""Rows of a batch, as task=replay prints them."""

from types import SimpleNamespace

import numpy as np
import pandas as pd

from penstock.loading.facts import SomeRows
from penstock.tasks.replay import describe_rows


class Rows:
    def __len__(self):
        return 3

    def __getitem__(self, row):
        return {"x": row}


class Some(SomeRows):
    """Every second one."""

    dataset, rows = Rows(), np.array([0, 2])
    fingerprint_with = None

    def __len__(self):
        return 2


def test_rows_of_a_batch_in_words():
    batch = SimpleNamespace(positions=np.array([4, 5]), indices=np.array([1, 0]))
    assert describe_rows(Rows(), batch) == [["position", "index"], ["4", "1"], ["5", "0"]]
    dataset = Rows()
    dataset.metadata = pd.DataFrame(
        {"label": [7, 8, 9], "path": ["a", "b", "c"], "size": [1, 2, 3]}
    )
    assert describe_rows(dataset, batch) == [
        ["position", "index", "path", "label"],
        ["4", "1", "b", "8"],
        ["5", "0", "a", "7"],
    ]
    rows = [["position", "index", "row"], ["4", "1", "2"], ["5", "0", "0"]]
    assert describe_rows(Some(), batch) == rows
