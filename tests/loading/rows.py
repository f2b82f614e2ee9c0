"""Rows to be read one by one, and draws that are only noted."""

import torch

from penstock.errors import DataError


class Draws:
    """No generator at all; it notes the keys that it is given."""

    def __init__(self):
        self.keys = []

    def seed(self, key):
        self.keys.append(key)

    def save(self):
        return None

    def moved(self, before):
        return []


class Rows:
    """Row n is a tensor of n; some are bad."""

    def __init__(self, bad=()):
        self.bad, self.read = bad, []

    def __len__(self):
        return 100

    def __getitem__(self, row):
        self.read.append(row)
        if row in self.bad:
            raise DataError(f"row {row} is bad")
        return {"x": torch.tensor([float(row)])}


class Many(Rows):
    def __getitems__(self, rows):
        if set(self.bad) & set(rows) and len(rows) > 1:
            raise DataError("one of them")
        return [self[row] for row in rows]
