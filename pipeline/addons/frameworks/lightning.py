"""A configuration as a LightningDataModule, for Lightning's own Trainer.

    trainer.fit(module, datamodule=DataModule(compose("sampler=weighted", "batch.size=64")))

Lightning keeps the state of the training loader in its checkpoints, and so resumes at the batch
behind the last one. Each of its ranks gets its share of a batch, however they were started.

It is of `lightning.pytorch` if that is imported, else of `pytorch_lightning`, whichever there is.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock.addons.frameworks.torch_loader import TorchLoader
from penstock.build.data import DataParts

if TYPE_CHECKING:
    from penstock.config.schema import Config
    from penstock.loading.loader import Loader


def _package() -> str:
    names = "lightning.pytorch", "pytorch_lightning"
    imported = [name for name in names if name in sys.modules]
    installed = [name for name in names if find_spec(name.partition(".")[0]) is not None]
    for name in [*imported, *installed]:
        return name
    raise ImportError("penstock.DataModule needs Lightning: pip install lightning")


_LightningDataModule: Any = import_module(_package()).LightningDataModule


class DataModule(_LightningDataModule):
    """The data of a configuration: its training, validation and test splits.

    A split that the configuration does not have has no loader.

    Args:
        config: from `penstock.compose`.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self._loaders: list[Loader] = []

    def setup(self, stage: str) -> None:
        """Look who is who: on each rank, when Lightning has started them."""
        self._parts = DataParts(self.config)

    def train_dataloader(self) -> TorchLoader:
        """Batches of the training split."""
        return self._loader("train")

    def val_dataloader(self) -> TorchLoader | list[TorchLoader]:
        """Batches of the validation split; none with `data.validate=false`."""
        return self._loader("val") if self._parts.val in self._parts.splits else []

    def test_dataloader(self) -> TorchLoader:
        """Batches of the test split."""
        return self._loader("test")

    def predict_dataloader(self) -> TorchLoader:
        """Those of the test split where there is one, else those of validation."""
        return self._loader("val" if self.config.data.test_dataset is None else "test")

    def _loader(self, split: str) -> TorchLoader:
        loader = getattr(self._parts, split).loader()
        made = TorchLoader(loader)
        made.num_workers = loader.options.num_workers  # Lightning warns of none
        self._loaders.append(loader)
        return made

    def teardown(self, stage: str) -> None:
        """End the workers."""
        for loader in self._loaders:
            loader.close()
        self._loaders.clear()
