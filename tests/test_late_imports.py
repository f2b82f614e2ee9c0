"""Packages that are imported when they are asked for: they are whole, and are there only then."""

import subprocess
import sys
from importlib.util import find_spec

from tests.program import ROOT

# What a first step does with torch, torchvision and torchmetrics, then what needs all of them.
PROGRAM = """
import sys
from penstock import late_imports
late_imports.install()
import torch
from torchvision.transforms import v2
from torchvision import tv_tensors
import torchmetrics
assert hasattr(torchmetrics, "classification") and hasattr(torchmetrics, "regression")
from torchmetrics import Metric

model = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters())
losses = model(torch.ones(4, 3)).sum(1)
losses.backward(torch.full_like(losses, 0.25))
optimizer.step()
optimizer.zero_grad()
metric = torchmetrics.regression.MeanAbsoluteError()
metric.update(torch.ones(2), torch.zeros(2))
assert metric.compute() == 1 and isinstance(metric, Metric)
assert not {"sympy", "scipy", "matplotlib", "torchmetrics.text"} & sys.modules.keys()
with_wrong_shape = torch.ones(2, requires_grad=True) * 2
try:
    with_wrong_shape.backward(torch.ones(3))
except RuntimeError as error:
    assert "Mismatch in shape" in str(error), error

from torch._dynamo.utils import counters  # all of it
import torch._dynamo.config
assert sys.modules["torch._dynamo.utils"] is torch._dynamo.utils
assert torch._dynamo.utils.counters is counters
assert torch._dynamo.graph_break.__module__ == "torch._dynamo.decorators"
assert torch._dynamo.__spec__.loader is torch._dynamo.__loader__
from torch.fx.experimental import symbolic_shapes
assert symbolic_shapes.ShapeEnv and symbolic_shapes.sym_eq.__module__ == symbolic_shapes.__name__

@torch.compile(backend="eager")
def step():
    picture = tv_tensors.wrap(torch.ones(2), like=tv_tensors.Image(torch.zeros(1, 2, 2)))
    return model(torch.ones(4, 3)).sum() + picture.sum()

before = step().item()
step().backward()
optimizer.step()
assert step().item() != before

torchmetrics.MeanMetric, torchmetrics.functional.accuracy
assert torchmetrics.Metric is Metric
assert torchmetrics.functional.__spec__.loader is torchmetrics.functional.__loader__
if "matplotlib" in sys.argv:
    figure, _ = metric.plot()
    assert type(figure).__module__ == "matplotlib.figure"
assert not late_imports._waiting.keys() - {"torchmetrics.utilities.plot"}
"""


def test_late_packages_are_whole_when_they_are_asked_for():
    command = [sys.executable, "-c", PROGRAM, "matplotlib" if find_spec("matplotlib") else ""]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not done.returncode, done.stderr
