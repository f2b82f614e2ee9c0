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

# What runs import when they get there, beside all modules of Penstock.
LATE = (
    "hydra.main",
    "hydra._internal.core_plugins.basic_launcher",
    "PIL.JpegImagePlugin",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.fsdp",
    "torch.distributed.launcher.api",
    "torch.nn.parallel",
    "torchmetrics",
    "torchvision.models",
)

# One second of seven, and no program of the tests needs them.
SELDOM = {
    f"penstock.addons.{name}"
    for name in ("trackers.mlflow", "trackers.wandb", "sweeps.optuna_sweeper")
}

modules = [*LATE]
for package in (penstock, penstock.datasets):
    walked = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    modules += [module.name for module in walked if module.name not in SELDOM]
for name in modules:
    # Of extras that are not installed; trackers name theirs in a ConfigError.
    with contextlib.suppress(ImportError, penstock.errors.ConfigError):
        importlib.import_module(name)
threads = len(list(Path("/proc/self/task").iterdir())) if Path("/proc/self/task").exists() else 1
assert threads == 1, f"a process of {threads} threads cannot be forked safely"
gc.freeze()  # a collection in a program would copy every page
