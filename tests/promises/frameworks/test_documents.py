"""The examples of docs/dataloader.md run, each where its framework is installed."""

import importlib.util
import re

import pytest
import torch

from penstock import build_train_loader, compose
from tests.promises.frameworks.loaders import Rows
from tests.support.ports import free_port
from tests.support.program import ROOT

TEXT = (ROOT / "docs" / "dataloader.md").read_text()
PARTS = {
    title: re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    for title, part in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
}
NEEDED = {
    "Accelerate": ["accelerate"],
    "transformers.Trainer": ["accelerate", "transformers"],
    "Lightning": ["pytorch_lightning"],
    "Fabric": ["lightning_fabric"],
    "A script under torchrun": [],
    "Ray Train": ["ray"],
    "PyTorch's imagenet example": [],
}
SLOW = {"Ray Train": pytest.mark.stress, "transformers.Trainer": pytest.mark.thorough}


def examples():
    made = []
    for title in NEEDED:
        slow = [SLOW[title]] if title in SLOW else []
        marks = [pytest.mark.filterwarnings("ignore::Warning"), *slow]
        made.append(pytest.param(title, marks=marks))
    return made


class Row(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, row, drawn):
        return {"loss": (self.weight * drawn - row[:, None]).square().mean()}


def names(title):
    if title == "transformers.Trainer":
        return {"model": Row(), "rows": Rows()}
    if title == "Lightning":
        from tests.promises.frameworks.lightning_module import Module

        return {"module": Module()}
    batch = first_batch()
    outputs = batch["landmarks"].flatten(1).shape[1]
    linear = torch.nn.Linear(batch["image"].flatten(1).shape[1], outputs)
    model = torch.nn.Sequential(torch.nn.Flatten(), linear)
    return {"torch": torch, "train_dataset": Rows(), "model": model}


def first_batch():
    words = "dataset.count=30", "dataset.size=48", "loader.num_workers=0"
    return next(iter(build_train_loader(compose(*words))))


def test_no_example_is_longer_than_fifteen_lines():
    assert list(PARTS)[-len(NEEDED) :] == list(NEEDED)
    assert all(len(code.splitlines()) <= 15 for codes in PARTS.values() for code in codes)


@pytest.mark.parametrize("title", examples())
def test_an_example(title, tmp_path, monkeypatch):
    for name in NEEDED[title]:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    (code,) = PARTS[title]
    small = '"dataset.count=30", "dataset.size=48", "batch.size=8", "loader.num_workers=0"'
    code = code.replace(', "loader.num_workers=2"', "").replace('"batch.size=64"', small)
    code = code.replace(
        ', "loader.num_workers=0", "loader.num_workers=0"', ', "loader.num_workers=0"'
    )
    if title == "A script under torchrun":
        for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("MASTER_PORT", str(free_port()))
    scope = {"__name__": "example", **names(title)}
    try:
        exec(code, scope)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    left = {path.name for path in tmp_path.iterdir()}
    if title == "Accelerate":
        assert left == {"state"}
        assert (tmp_path / "state" / "dl_state_dict.bin").exists()
    if title == "A script under torchrun":
        assert scope["state"]["epoch"] == 1
    if title == "Ray Train":
        assert scope["result"].error is None
    if title == "transformers.Trainer":
        assert (tmp_path / "run" / "checkpoint-12").exists()
    if title == "PyTorch's imagenet example":
        assert len(scope["train_loader"]) == 6
