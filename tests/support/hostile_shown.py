"""Parts that train well, and in which all that is only shown fails."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from penstock.training.objective import Regression


class Odd:
    """A field's value of a class that nothing can draw, name or store."""

    def __str__(self):
        raise RuntimeError("has no name")


class Rows(Dataset):
    """4 numbers, and beside them a dict of these and of something odd."""

    def __init__(self, split="train"):
        self.first = 0 if split == "train" else 100

    def __len__(self):
        return 12

    def __getitem__(self, row):
        x = torch.arange(4.0) / 4 + (self.first + row) / 100
        return {"input": x, "rows": {"x": x, "odd": Odd()}, "target": x.sum()}


def collate(samples):
    fields = {name: torch.stack([one[name] for one in samples]) for name in ("input", "target")}
    return {"rows": [one["rows"] for one in samples], **fields}


class Net(nn.Module):
    """Of `in_the_way`, makes folders where files of the run come, when it is first validated."""

    def __init__(self, in_the_way=()):
        super().__init__()
        self.layer, self.in_the_way = nn.Linear(4, 1), in_the_way

    def forward(self, x):
        if not self.training:
            for name in self.in_the_way:
                Path("run", name, "in the way").mkdir(parents=True, exist_ok=True)
        return self.layer(x).squeeze(1)


class Goal(Regression):
    """Its input is a list; two losses a sample in validation, no constant, and no comparison."""

    def outputs(self, model, batch):
        return model(torch.stack([one["x"] for one in batch["rows"]]))

    def by_sample(self, losses, batch):
        raise IndexError("no sample has a loss")

    def baseline(self, batches):
        raise RuntimeError("no constant")

    def comparisons(self, train, val):
        raise OSError("nothing to compare with")


class Tracker:
    """Raises at each of its calls."""

    def __init__(self, at="log"):
        self.at = at

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*given):
            if name == self.at:
                raise SystemExit(f"the tracker fails in {name}")

        return call
