"""A configuration as a LightningDataModule, for Lightning's own Trainer.

    trainer.fit(module, datamodule=DataModule(compose("sampler=weighted", "batch.size=64")))

Lightning keeps the state of the training loader in its checkpoints, and so resumes at the batch
behind the last one. Each of its ranks gets its share of a batch, however they were started.

It is of `lightning.pytorch` if that is imported, else of `pytorch_lightning`, whichever there is.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from importlib.util import find_spec

from penstock.addons.frameworks.torch_loader import TorchLoader
from penstock.build.data import DataParts, Split
from penstock.config.schema import Config

# A Trainer knows the LightningDataModule of its own package alone.
if "pytorch_lightning" in sys.modules or find_spec("lightning") is None:
    from pytorch_lightning import LightningDataModule
else:
    from lightning.pytorch import LightningDataModule  # type: ignore


class DataModule(LightningDataModule):
    """The data of a configuration: its training, validation and test splits.

    A split that the configuration does not have has no loader.

    Args:
        config: from `penstock.compose`.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self._loaders = config, ExitStack()

    def setup(self, stage: str) -> None:
        """Look who is who: on each rank, when Lightning has started them."""
        self._parts = DataParts(self.config)

    def train_dataloader(self) -> TorchLoader:
        """Batches of the training split."""
        return self._opened(self._parts.train)

    def val_dataloader(self) -> TorchLoader | list[TorchLoader]:
        """Batches of the validation split; none with `data.validate=false`."""
        return self._opened(self._parts.val) if self._parts.val in self._parts.splits else []

    def test_dataloader(self) -> TorchLoader:
        """Batches of the test split."""
        return self._opened(self._parts.test)

    def _opened(self, split: Split) -> TorchLoader:
        return TorchLoader(self._loaders.enter_context(split.loader()))

    def teardown(self, stage: str) -> None:
        """End the workers."""
        self._loaders.close()
