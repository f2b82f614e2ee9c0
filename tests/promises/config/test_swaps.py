"""Swaps by name: a dataset's choices leave those of a command line alone."""

import pytest
import yaml

import penstock
from penstock.build.data import DataParts
from tests.formats.datasets import test_peoples_datasets as people
from tests.promises.config.test_conf import CONF

ONE = ["loader=debug", "batch.size=4", "task=digest"]


@pytest.mark.parametrize("options", [["collate=list"], ["transform=none"], ["collate=pad"]])
def test_texts_can_be_swapped(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = [word for word in people.csv(tmp_path) if word.startswith("dataset.")]
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
