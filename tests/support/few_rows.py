"""A dataset and a stream of a few rows, and the words of a run on them."""

import torch
from torch.utils.data import Dataset, IterableDataset


class Rows(Dataset):
    """Numbers; so many to train on and so many to validate."""

    facts = {"num_classes": 2, "num_outputs": 2, "num_features": 1}

    def __init__(self, split="train", rows=8, val_rows=4):
        self.rows = rows if split == "train" else val_rows
        self.read = 0

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        self.read += 1
        return {"input": torch.tensor([float(row)]), "target": row % 2}

    @property
    def metadata(self):
        import pandas as pd

        return pd.DataFrame({"length": range(self.rows), "label": [0] * self.rows})


class Records(IterableDataset):
    """The same as a stream."""

    facts = Rows.facts

    def __init__(self, split="train", rows=8, val_rows=4):
        self.records = rows if split == "train" else val_rows

    def __iter__(self):
        for row in range(self.records):
            yield {"input": torch.tensor([float(row)]), "target": row % 2}


def words(kind=Rows, **arguments):
    given = "".join(f", {name}: {value}" for name, value in arguments.items())
    target = f"{__name__}.{kind.__name__}"
    return [
        "~dataset",
        f"+dataset={{_target_: {target}{given}}}",
        "transform=none",
        "model=linear",
        "objective=classification",
        "objective.inputs=[input]",
        "objective.target=target",
        "loader=debug",
        "run_dir=run",
        "batch.size=4",
        "trainer=quick",
        "tracker=none",
        "trainer.pictures=false",
        "trainer.report=false",
        "trainer.progress=none",
        *(["sampler=stream"] if kind is Records else []),
    ]
