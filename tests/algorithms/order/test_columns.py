"""Columns that are read by row: lengths of a dataset without a table."""

from __future__ import annotations

import numpy as np

from penstock.addons.tokens.sequence_packing import SequencePacking
from penstock.order.samplers import Bucket, Curriculum, Weighted


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
