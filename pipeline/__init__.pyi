from penstock.addons.frameworks.lightning import DataModule as DataModule
from penstock.addons.frameworks.torch_loader import TorchLoader as TorchLoader
from penstock.build.data import build_train_loader as build_train_loader
from penstock.build.data import build_val_loader as build_val_loader
from penstock.config.compose import compose as compose
from penstock.distributed.parallel import gathered as gathered
from penstock.loading.dataloader import DataLoader as DataLoader
from penstock.loading.loader import Loader as Loader
from penstock.runs.run import Run as Run

__version__: str
