"""torchmetrics is imported when it is asked for: it is whole, and is there only then."""

import subprocess
import sys

from tests.program import ROOT

# What a first step does with torchmetrics, then what needs all of it.
PROGRAM = """
import inspect, sys, warnings
from concurrent.futures import ThreadPoolExecutor
from penstock import late_imports
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


def test_late_packages_are_whole_when_they_are_asked_for():
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not done.returncode, done.stderr
