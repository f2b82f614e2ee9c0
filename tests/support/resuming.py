"""Fits over every kind of sampler and dataset, that can be left at any step and gone on with.

`Case(...).fit(folder, ...)` trains a small network with dropout and batch norm on augmented data.
Leaving is a real request to stop, as a signal makes it; going on reads a real checkpoint.
"""

from dataclasses import dataclass, field

import pandas as pd
import torch
from torch import nn
from torch.utils.data import Dataset
from torchmetrics.regression import MeanSquaredError

from penstock.addons.tokens.flatten import Flatten
from penstock.addons.tokens.sequence_packing import SequencePacking
from penstock.order.samplers import Bucket, Identity, Random, Sequential, Subset, Weighted
from tests import port
from tests.port import Observer, Options, Regression, Supervised, next_tokens, token_losses
from tests.support import streams

LENGTH, SIZE, EPOCHS = 22, 4, 3


def row(index):
    x = torch.tensor([index % 3, index % 5, index % 7], dtype=torch.float32)
    return {"x": x, "y": x.sum() / 10}


class Rows(Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return row(index)


class ManyRows(Rows):
    """Reads a batch at once."""

    def __getitems__(self, indices):
        return [row(index) for index in indices]


class Numbers:
    """A stream's records as rows."""

    def __call__(self, sample):
        return row(int(sample["x"]))


class Noise:
    """An augmentation that draws."""

    def __call__(self, sample):
        return {**sample, "x": sample["x"] + 0.1 * torch.randn(3)}


class Both:
    def __call__(self, sample):
        return Noise()(Numbers()(sample))


TABLE = pd.DataFrame(
    {"length": [i % 6 + 1 for i in range(LENGTH)], "label": [i % 6 for i in range(LENGTH)]}
)


class Texts(Dataset):
    """Documents of unequal length."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return {"tokens": torch.arange(index, index + 5 * TABLE["length"][index] - 5) % 17}


class Drop:
    """An augmentation of tokens that draws."""

    def __call__(self, sample):
        tokens = sample["tokens"]
        return {"tokens": tokens.masked_fill(torch.rand(len(tokens)) < 0.1, 17)}


class Predictor(nn.Module):
    """Predicts a token from the one before it and its place."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(18, 8), nn.Embedding(25, 8)
        self.head = nn.Linear(8, 18)

    def forward(self, tokens, positions):
        return self.head(torch.tanh(self.tokens(tokens) + self.places(positions)))


class NextTokens(Supervised):
    """A loss a token, as of a language model."""

    def losses(self, outputs, batch):
        return token_losses(outputs, next_tokens(batch))

    def measured(self, outputs, batch):
        goals = next_tokens(batch)
        here = goals >= 0
        return outputs.argmax(-1)[here].float(), goals[here].float()

    def by_sample(self, losses, batch):
        return losses[:0].long(), losses[:0]


SAMPLERS = {
    "sequential": lambda: Sequential(LENGTH),
    "random": lambda: Random(LENGTH, 0),
    "subset": lambda: Subset(LENGTH, 0, indices=list(range(0, LENGTH, 2)), shuffle=True),
    "weighted": lambda: Weighted(LENGTH, 0, weights=[1.0 + i % 3 for i in range(LENGTH)]),
    "torch's random": lambda: lambda: torch.utils.data.RandomSampler(range(LENGTH)),
    "torch's weighted": lambda: (
        lambda: torch.utils.data.WeightedRandomSampler([1.0 + i % 3 for i in range(LENGTH)], 18)
    ),
    "bucket": lambda: Bucket(LENGTH, 0, TABLE, SIZE),
    "identity": lambda: Identity(LENGTH, 0, TABLE, identities=2, samples=2),
}
STREAMS = {
    "plain": streams.Plain,
    "sharded": streams.Sharded,
    "drawing": streams.Drawing,
}
OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9, nesterov=True),
    "adamw": lambda weights: torch.optim.AdamW(weights, 0.01),
    "adam, amsgrad": lambda weights: torch.optim.Adam(weights, 0.01, amsgrad=True),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, 0.01, momentum=0.5),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, 0.05),
    "nadam": lambda weights: torch.optim.NAdam(weights, 0.01),
    "asgd": lambda weights: torch.optim.ASGD(weights, 0.01),
    "adafactor": lambda weights: torch.optim.Adafactor(weights, 0.01),
}
SCHEDULERS = {
    "none": lambda optimizer: None,
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.05, total_steps=200
    ),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
    "plateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
}


class Written(Observer):
    """Every step and record, as they are written down."""

    def __init__(self):
        self.steps, self.records = [], []

    def on_steps(self, steps):
        self.steps += steps

    def on_epoch_end(self, record):
        timed = (
            "seconds",
            "samples_per_second",
            "tokens_per_second",
            "wait_share",
            "worker_deaths",
        )
        kept = {k: v for k, v in record.items() if k not in timed and not k.startswith("ms/")}
        self.records.append(kept)


@dataclass
class Case:
    sampler: str = "random"
    stream: str | None = None
    dataset: type = Rows
    optimizer: str = "adamw"
    scheduler: str = "none"
    buffer: int = 0
    options: dict = field(default_factory=dict)
    reduction: str = "none"
    balance: str | None = None  # what a row costs, by which ranks are balanced
    plain: bool = False  # no dropout and no batch norm, which depend on who has which share
    packed: dict | None = None  # options of packed sequences
    pad_to: int | None = None  # of their blocks

    def loader(self, world=None, size=None, val=False, **options):
        size, options = size or SIZE, Options(**options)
        if self.packed is not None:
            length = {"column": "length", "tokens": 16, "window": 9, **self.packed}
            table = pd.DataFrame({"length": 5 * TABLE["length"] - 5})
            order = Sequential(LENGTH) if val else None
            return port.loader(
                Texts(),
                SequencePacking(LENGTH, 0, table, size, order=order, **length),
                size,
                transform=None if val else Drop(),
                collate=Flatten(labels=True, pad_to=self.pad_to),
                balance=self.balance,
                options=options,
                world=world,
            )
        if val:
            return port.loader(
                self.dataset(), Sequential(LENGTH), size, options=options, world=world
            )
        if self.stream is not None:
            return port.loader(
                STREAMS[self.stream](LENGTH),
                size=size,
                transform=Both(),
                buffer=self.buffer,
                shuffle_shards=True,
                options=options,
                world=world,
            )
        return port.loader(
            self.dataset(),
            SAMPLERS[self.sampler](),
            size,
            transform=Noise(),
            balance=self.balance,
            columns={"length": TABLE.length.to_numpy()},
            options=options,
            world=world,
        )

    def model(self):
        torch.manual_seed(0)
        if self.packed is not None:
            return Predictor()
        if self.plain:
            return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        return nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)
        )

    def objective(self):
        loss = nn.MSELoss(reduction=self.reduction)
        if self.packed is not None:
            return NextTokens(loss, {"mse": MeanSquaredError()}, ["tokens", "position_ids"], "")
        return Regression(loss, {"mse": MeanSquaredError()}, ["x"], "y")

    def optimizer_of(self, weights):
        return OPTIMIZERS[self.optimizer](weights)

    def scheduler_of(self, optimizer):
        return SCHEDULERS[self.scheduler](optimizer)

    def fit(self, folder, stop=None, resume=None, options=None, **more):
        """Train; returns weights (those of this rank), what was written, result, stopped."""
        written = Written()
        options = {"max_epochs": EPOCHS, "log_every": 3, **self.options, **(options or {})}
        weights, result, stopped, written.asked = port.fit(
            self, folder, stop, resume, options, observers=[written], **more
        )
        return weights, written, result, stopped

    def going_on(self, folder, stops, loadings=()):
        """A fit that is left after each of `stops` steps of a process, and then ends."""
        steps, records = [], []
        state = None
        for number, stop in enumerate([*stops, None]):
            loading = loadings[number % len(loadings)] if loadings else {}
            weights, written, result, stopped = self.fit(folder, stop, state, **loading)
            steps += written.steps
            records += written.records
            if not stopped:
                break
            state = port.newest(folder)
        return weights, steps, records, result
