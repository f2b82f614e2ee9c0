"""torchmetrics and torch's compiler are imported when they are asked for, and are whole then."""

import subprocess
import sys

from tests.support.program import ROOT

# A batch for a program of one's own, to which metrics would add 1.3 s, pandas and pyarrow 0.5 s and
# 20 MiB; what a first step does with torchmetrics; then what needs all of it.
PROGRAM = """
import inspect, penstock, sys, warnings
from concurrent.futures import ThreadPoolExecutor
from penstock import late_imports

words = ["task=digest", f"dataset.root={sys.argv[1]}", "dataset.count=9", "loader=debug"]
config = penstock.compose(*words, "batch.size=2", "trainer.device=cpu")
next(iter(penstock.build_train_loader(config)))
assert not {"torchmetrics", "pandas", "pyarrow"} & sys.modules.keys()
late_imports.install()
import torch
from torchmetrics import Metric, functional
from torchmetrics.regression import MeanAbsoluteError
from penstock.training.metrics import NormalizedMeanError

metric = MeanAbsoluteError()
metric.update(torch.ones(2), torch.zeros(2))
assert metric.compute() == 1 and isinstance(metric, Metric)
assert issubclass(NormalizedMeanError, Metric)
with warnings.catch_warnings(record=True):
    inspect.getmodule(inspect.currentframe())
assert not {"scipy", "transformers", "torchmetrics.text"} & sys.modules.keys()

import torchmetrics.retrieval  # whose modules ask the package for Metric
names = ["MeanMetric", "text", "metric", "utilities", "RetrievalMAP", "__version__"] * 4
with ThreadPoolExecutor(len(names)) as pool:
    found = list(pool.map(lambda name: getattr(torchmetrics, name), names))
assert torchmetrics.Metric is Metric is torchmetrics.metric.Metric
assert torchmetrics.functional is functional is sys.modules["torchmetrics.functional"]
assert issubclass(torchmetrics.MeanMetric, Metric) and torchmetrics.functional.accuracy
assert torchmetrics.classification.Accuracy is torchmetrics.Accuracy
assert not hasattr(torchmetrics, "nothing") and not hasattr(torchmetrics.functional, "nothing")
late_imports.install()
assert torchmetrics is sys.modules["torchmetrics"]
"""


def test_late_packages_are_whole_when_they_are_asked_for(tmp_path):
    """And are not asked for by a program of one's own that makes a batch."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not done.returncode, done.stderr


COMPILES = """
import sys
from penstock import late_imports
late_imports.install()
import torch, torchvision.tv_tensors
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
ranks = torch.nn.parallel.DistributedDataParallel(model)
ranks(torch.ones(1, 2)).sum().backward()
torch.distributed.destroy_process_group()
waits = [name for name, one in sys.modules.items() if "_waiting" in vars(one)]
assert {"torch._dynamo", "torch._dynamo.utils"} <= {*waits}, waits
print(torch.compile(lambda x: x * 2 + 1, backend="eager")(torch.ones(2)).tolist())
optimizer.step()
boxes = torch.tensor([[0, 0.0, 0, 4, 4]])
print(torchvision.ops.roi_align(torch.ones(1, 3, 8, 8), boxes, 2).shape)
import torch._dynamo.eval_frame
print(torch._dynamo.disable.__module__)
"""


def test_torchs_compiler_comes_when_something_is_compiled():
    words = [sys.executable, "-c", COMPILES]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    shape = "torch.Size([1, 3, 2, 2])"
    assert done.stdout.splitlines() == ["[3.0, 3.0]", shape, "torch._dynamo.decorators"]
