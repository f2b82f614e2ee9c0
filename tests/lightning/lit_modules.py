"""LightningModules as people write them; trusted by the tests that name this file."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional as F
from torchmetrics import Accuracy


class Classifier(pl.LightningModule):
    """Automatic optimization: one optimizer, a schedule by steps, numbers and a metric."""

    def __init__(self, width=8, every="step"):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3)
        )
        self.accuracy = Accuracy("multiclass", num_classes=3)

    def forward(self, rows):
        return self.layers(rows)

    def training_step(self, batch, batch_idx):
        rows, labels = batch
        loss = F.cross_entropy(self(rows), labels)
        self.log("train_loss", loss, prog_bar=True)
        self.log_dict({"epoch": float(self.current_epoch), "step": float(self.global_step)})
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        rows, labels = batch
        logits = self(rows)
        self.accuracy(logits, labels)
        self.log("val_loss", F.cross_entropy(logits, labels), on_epoch=True)
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.2, momentum=0.9)
        total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=int(total))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": self.hparams.every},
        }


class Adversaries(pl.LightningModule):
    """Manual optimization: two optimizers, which take turns, and a schedule that it moves."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh())
        self.head = nn.Linear(4, 3)

    def training_step(self, batch, batch_idx):
        rows, labels = batch
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        telling = F.cross_entropy(self.head(self.encoder(rows).detach()), labels)
        first.zero_grad()
        self.manual_backward(telling)
        first.step()
        self.untoggle_optimizer(first)
        fooling = -0.1 * F.cross_entropy(self.head(self.encoder(rows)), labels)
        second.zero_grad()
        self.manual_backward(fooling)
        second.step()
        self.lr_schedulers().step()
        self.log_dict({"telling": telling, "fooling": fooling, "rank": float(self.global_rank)})

    def validation_step(self, batch, batch_idx):
        rows, labels = batch
        self.log("val_loss", F.cross_entropy(self.head(self.encoder(rows)), labels))

    def configure_optimizers(self):
        first = torch.optim.Adam(self.head.parameters(), 0.02)
        second = torch.optim.SGD(self.encoder.parameters(), 0.1)
        return [first, second], [torch.optim.lr_scheduler.ExponentialLR(first, 0.9)]


class Hooked(Classifier):
    def on_train_epoch_end(self):
        raise AssertionError("not called")


class Curious(Classifier):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, self.trainer.callbacks)


class Wordless(Classifier):
    def training_step(self, batch, batch_idx):
        return None


class Unevenly(Classifier):
    def configure_optimizers(self):
        return [torch.optim.SGD(self.head.parameters(), 0.1) for self.head in self.layers[1::2]]
