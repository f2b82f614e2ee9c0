"""Documents whose tokens tell where they are from."""

import numpy as np
import pandas as pd
import torch

from penstock.errors import DataError


class Documents:
    """Row i has tokens 1000 i, 1000 i + 1 ...; `bad` rows cannot be read."""

    draws = False

    def __init__(self, lengths, bad=()):
        self.lengths, self.bad = np.asarray(lengths), frozenset(bad)

    def __len__(self):
        return len(self.lengths)

    @property
    def metadata(self):
        return pd.DataFrame({"length": self.lengths})

    def __getitem__(self, index):
        if index in self.bad:
            raise DataError("cut off")
        return {"tokens": 1000 * index + torch.arange(int(self.lengths[index])), "label": index}


def lengths_of(count=200, seed=0, most=150):
    return np.random.default_rng(seed).integers(0, most, count)
