"""Hugging Face's `datasets`, `transformers` and `evaluate` in one process with ours.

Both have folders called datasets, and whoever was imported first used to win. These tests run where
the three are installed, and are left out elsewhere.
"""

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

import penstock

THEIRS = ("datasets", "transformers", "evaluate", "accelerate")
HOME = Path(penstock.__file__).parent.parent  # the checkout, or site-packages

needs_them = pytest.mark.skipif(
    not all(map(find_spec, THEIRS)), reason="Hugging Face's packages are not installed"
)

OURS = "import penstock, penstock.command, penstock.datasets.sequences, penstock.build.data"
IMPORTS = "import datasets, transformers, evaluate"

ROWS = """
import datasets
from torch.utils.data import Dataset


class Rows(Dataset):
    '''A datasets.Dataset of x, float32 [4], and a label.'''

    columns = ("label",)

    def __init__(self, split="train", count=40):
        rows = {"x": [[row, row % 2, 1, 0] for row in range(count)],
                "label": [row % 2 for row in range(count)]}
        kept = datasets.Dataset.from_dict(rows).with_format("torch")
        self.rows = kept.map(lambda row: {"x": row["x"].float() / 40})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[int(index)]
        return {"x": row["x"], "label": int(row["label"])}

    @property
    def metadata(self):
        return self.rows.to_pandas()[["label"]]

    @property
    def facts(self):
        return {"num_features": 4, "num_classes": 2, "num_outputs": 2}
"""

GROUP = """# @package _global_
defaults:
  - override /transform: none
  - override /model: linear
  - override /objective: classification
dataset: {_target_: theirs.Rows}
objective: {inputs: [x]}
"""

ONE_PROCESS = """
import os
import sys

import torch
from theirs import Rows
from penstock import build_train_loader, command, compose
from penstock.loading.dataloader import DataLoader

rows = Rows()
seen = [batch["label"] for batch in DataLoader(rows, batch_size=8, shuffle=True, num_workers=2)]
assert sorted(torch.cat(seen).tolist()) == [0] * 20 + [1] * 20, seen
words = ["--trust", "theirs", "--config-dir", "groups", "dataset=theirs", "batch.size=8"]
assert command.main([*words, "sampler=weighted", "task=digest", "steps=2"]) == 0
assert command.main([*words, "trainer=quick", "trainer.max_steps=2", "loader.num_workers=1"]) == 0

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

tiny = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                  intermediate_size=8, max_position_embeddings=8)
texts = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3]] * 8, "labels": [0, 1] * 4})
options = TrainingArguments("trained", max_steps=1, report_to=[], use_cpu=True, save_strategy="no",
                            per_device_train_batch_size=4)
done = Trainer(BertForSequenceClassification(tiny), options, train_dataset=texts).train()
assert done.global_step == 1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(4, 2)

    def forward(self, x, label):
        scores = self.last(x)
        return {"loss": torch.nn.functional.cross_entropy(scores, label), "logits": scores}


class Ours(Trainer):
    # It rebuilds each batch by type(batch)({...}).
    def get_train_dataloader(self):
        return build_train_loader(compose("dataset=theirs", config_dir="groups"))


os.environ["PENSTOCK_TRUST"] = "theirs"
options = TrainingArguments("trained", max_steps=3, report_to=[], use_cpu=True, save_strategy="no")
done = Ours(Net(), options).train()
assert done.global_step == 3
metric = evaluate.EvaluationModule.__module__
assert datasets.Dataset.__module__ == "datasets.arrow_dataset" and metric.startswith("evaluate.")
print("all", done.global_step)
"""


def run_in(folder, code, home=HOME):
    """Exit code and output of a fresh process that finds both."""
    # -P: nothing is imported from a folder by chance; the copy of ours is the one that is tested.
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{home}",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "home"),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_package_called_datasets_is_found_before_and_after_ours(tmp_path):
    """What holds of Hugging Face's holds of anybody's."""
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").write_text("WHOSE = 'theirs'\n")
    ours = "import penstock.datasets.files"
    for order in (f"import datasets; {ours}", f"{ours}; import datasets"):
        assert run_in(tmp_path, f"{order}; print(datasets.WHOSE)") == "theirs\n"


@needs_them
@pytest.mark.parametrize(
    "order", [f"{IMPORTS}\n{OURS}", f"{OURS}\n{IMPORTS}"], ids=["theirs first", "ours first"]
)
def test_both_work_in_one_process(order, tmp_path):
    (tmp_path / "theirs.py").write_text(ROWS)
    (tmp_path / "groups" / "dataset").mkdir(parents=True)
    (tmp_path / "groups" / "dataset" / "theirs.yaml").write_text(GROUP)
    out = run_in(tmp_path, f"{order}\n{ONE_PROCESS}")
    assert "total " in out
    assert out.splitlines()[-1] == "all 1"
