"""Data and models that are bound by what they are built for: a core, the time to answer, training.

    dataset   reads a row by waiting (`sleep`), and computing on a core (`burn`), milliseconds each
    model     a linear layer whose forward pass waits, as for a device that computes meanwhile

`overrides(case)` is the command line for "training", "decoding" and "latency".
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

CASES: dict[str, tuple[float, float, float]] = {  # ms of sleep, ms of burning a sample; ms a step
    "training": (0.0, 0.05, 20.0),
    "decoding": (0.0, 1.0, 4.0),
    "latency": (5.0, 0.0, 5.0),
}
BATCH = 8


class Rows(Dataset):  # type: ignore[type-arg]
    """Rows that take as long as they are told to.

    Args:
        sleep: milliseconds of waiting, as for a store far away.
        burn: milliseconds of a core, with the interpreter's lock released for most of it.
        size: rows.
    """

    def __init__(self, split: str = "train", sleep: float = 0, burn: float = 0, size: int = 100000):
        self.sleep, self.burn = sleep / 1000, burn / 1000
        self.size = size if split == "train" else 8
        self.classes = ["even", "odd"]
        self.facts = {"num_classes": 2, "num_outputs": 2, "num_features": 4}
        self.fingerprint = f"rows-{sleep}-{burn}-{self.size}"
        self._numbers = np.arange(20000, dtype=np.float64)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.sleep:
            time.sleep(self.sleep)
        began = time.thread_time()
        while time.thread_time() - began < self.burn:
            np.sqrt(self._numbers)
        return {"x": torch.full((4,), float(index % 2)), "label": index % 2}


class Waiting(nn.Module):
    """Linear, after `milliseconds` of waiting."""

    def __init__(self, milliseconds: float = 5.0) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.seconds = milliseconds / 1000

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return self.linear(x)


def overrides(case: str, module: str = __name__) -> list[str]:
    """The command line of a case, without its task."""
    sleep, burn, step = CASES[case]
    return [
        f"dataset._target_={module}.Rows",
        *(f"~dataset.{key}" for key in ("root", "count", "size", "seed", "reader")),
        f"+dataset.sleep={sleep}",
        f"+dataset.burn={burn}",
        "transform=none",
        f"batch.size={BATCH}",
        "model=linear",
        f"model._target_={module}.Waiting",
        f"+model.milliseconds={step}",
        "objective=classification",
        "objective.inputs=[x]",
        "objective.target=label",
        "trainer.progress=none",
        "scheduler=none",
        "trainer.device=cpu",
    ]
