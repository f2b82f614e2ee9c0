"""The two loaders that frameworks get: the drop-in class, and one that a configuration makes."""

import torch
from torch.utils import data as torch_data
from torch.utils.data import Sampler

from penstock import DataLoader, build_train_loader, compose

SMALL = ["dataset.count=30", "dataset.size=48", "batch.size=4", "loader.num_workers=0"]


class Rows(torch_data.Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        return {"row": index, "drawn": torch.rand(1)}


def dropin(**options):
    return DataLoader(Rows(), batch_size=4, shuffle=True, **{"seed": 3, **options})


def configured(*words, world=None):
    return build_train_loader(compose(*SMALL, *words), world)


MAKERS = {"dropin": dropin, "configured": configured}


def values(batch):
    return {name: field.tolist() for name, field in batch.items() if torch.is_tensor(field)}


def epochs(loader, count=3):
    return [[values(batch) for batch in loader] for _ in range(count)]


class OwnOrder(Sampler):
    """Has set_epoch, as a person writes it: without telling which epoch it was."""

    def __init__(self, rows):
        self.rows, self._seed = rows, 0

    def set_epoch(self, epoch):
        self._seed = epoch

    def __len__(self):
        return self.rows

    def __iter__(self):
        generator = torch.Generator().manual_seed(self._seed)
        return iter(torch.randperm(self.rows, generator=generator).tolist())
