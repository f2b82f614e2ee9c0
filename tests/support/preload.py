"""What programs of tests import: `tests.support.warm` has its server import this once.

An import that starts a thread would make the server unsafe to fork, so libraries that do so are
left to the programs.
"""

import contextlib
import gc
import importlib
import pkgutil
from pathlib import Path

import penstock
import penstock.datasets
from penstock import late_imports

late_imports.install()  # as a command line does

# What runs import when they get there, beside all modules of Penstock.
LATE = (
    "hydra.main",
    "hydra._internal.core_plugins.basic_launcher",
    "PIL.JpegImagePlugin",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.launcher.api",
    "torch.nn.parallel",
    "torchvision.models",
)

# Half of the seconds, and few programs of the tests need them.
SELDOM = (
    *("albumentations", "audio", "frameworks", "sweeps.optuna_sweeper", "trackers", "vision"),
    *("predicting", "transformers"),
)


def load(package):
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not found.name.removeprefix("penstock.addons.").startswith(SELDOM):
            with contextlib.suppress(ImportError):  # of extras that are not installed
                module = importlib.import_module(found.name)
                if found.ispkg:
                    load(module)


for name in LATE:
    importlib.import_module(name)
load(penstock)
load(penstock.datasets)
threads = len(list(Path("/proc/self/task").iterdir())) if Path("/proc/self/task").exists() else 1
assert threads == 1, f"a process of {threads} threads cannot be forked safely"
gc.freeze()  # a collection in a program would copy every page
