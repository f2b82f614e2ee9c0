"""Swaps by name: a dataset's choices leave those of a command line alone."""

import pytest
import yaml

import penstock
from penstock.build.data import DataParts
from tests.support.shipped import CONF

ONE = ["loader=debug", "batch.size=4", "task=digest"]


@pytest.mark.parametrize("options", [["collate=list"], ["transform=none"], ["collate=pad"]])
def test_texts_can_be_swapped(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{'ab'[row % 2]},{' word' * (1 + row % 5)}" for row in range(16)]
    (tmp_path / "texts.csv").write_text("\n".join(["label,text", *rows]) + "\n")
    root = ["dataset.root=texts.csv", "dataset.cache_dir=cache"]
    config = penstock.compose("dataset=delimited_text", *root, *ONE, *options)
    with DataParts(config).train.loader() as loader:
        batch = next(iter(loader))
    assert isinstance(batch["text"], list)
    assert isinstance(batch["label"], list) == (options == ["collate=list"])


def test_a_file_of_another_collate_function_never_remains():
    """A dataset sets no argument of a group that somebody may swap."""
    for path in (CONF / "dataset").glob("*.yaml"):
        tree = yaml.safe_load(path.read_text())
        assert not {"collate", "sampler", "model"} & set(tree), path.name


# hydra's name for the folder of a run
