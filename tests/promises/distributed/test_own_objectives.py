"""What compares all samples of a batch, or takes its own steps, does so alike on any ranks."""

import json

import pytest
import torch

from tests.support import own_ranks
from tests.support.torchrun import start


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    own_ranks.main(folder)
    return json.loads((folder / "1.json").read_text())


@pytest.mark.parametrize("size", [2, 3, pytest.param(8, marks=pytest.mark.thorough)])
def test_ranks_learn_and_measure_what_one_alone_does(size, alone, tmp_path):
    """Shares are unequal: of 9 rows, and of 2 in the last batch, where a third rank has none; and
    splits of validation have fewer rows than there are ranks.
    """
    start(size, "-m", "tests.support.own_ranks", str(tmp_path))
    ranks = json.loads((tmp_path / f"{size}.json").read_text())
    assert ranks.keys() == alone.keys() == {"Contrastive", "Adversaries", "measured"}
    for name, expected in alone["measured"].items():
        found = ranks["measured"][name]
        assert found == pytest.approx(expected, rel=1e-5, nan_ok=True), name
        assert len(expected) >= 2
    for name in ("Contrastive", "Adversaries"):
        expected = alone[name]
        assert ranks[name]["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert len(set(expected["losses"])) == own_ranks.STEPS
        for mine, theirs in zip(ranks[name]["weights"], expected["weights"], strict=True):
            torch.testing.assert_close(
                torch.tensor(mine), torch.tensor(theirs), rtol=1e-5, atol=1e-6
            )
