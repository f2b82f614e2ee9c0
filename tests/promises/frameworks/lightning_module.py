"""A module for Lightning's trainer, which keeps its batches."""

import pytorch_lightning as pl
import torch

from tests.promises.frameworks.loaders import values


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def training_step(self, batch, index):
        self.seen.append(values(batch))
        return self.weight.square().sum()

    def validation_step(self, batch, index):
        self.log("rows", float(len(next(iter(batch.values())))))

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
