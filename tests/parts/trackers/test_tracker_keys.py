"""Choosing trackers: one or several by name, or of one's own."""

import re
import sys

import pytest

import penstock
from penstock.errors import ConfigError

OWN = "tests.parts.trackers.test_guarded_trackers.Failing"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in (
        "PENSTOCK_ALLOW_ENDPOINT MLFLOW_TRACKING_URI WANDB_BASE_URL WANDB_MODE PENSTOCK_SAID"
    ).split():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")


def chosen(*words, **options):
    return penstock.compose(*words, **options).tracker


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], ["none"]),
        (["tracker=tensorboard"], ["tensorboard"]),
        (["tracker=none"], ["none"]),
        (["tracker=[]"], []),
        (["tracker=[tensorboard,mlflow]"], ["tensorboard", "mlflow"]),
        (["tracker=[tensorboard,wandb]", "tracker.tensorboard=null"], ["tensorboard", "wandb"]),
        (["tracker=[tensorboard,wandb]", "~tracker.wandb"], ["tensorboard"]),
        (
            ["tracker=tensorboard", f"+tracker.own={{_target_: {OWN}, at: x}}"],
            ["tensorboard", "own"],
        ),
    ],
)
@pytest.mark.one_in(3)
def test_one_or_several_by_name(words, names):
    assert list(chosen(*words)) == names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tracker=wandbb"], "wandb"),
        (["tracker=[tensorboard,tb]"], "tensorboard"),
        (["tracker.tensorboard.x=1"], "tracker.tensorboard"),
        (["tracker=tensorboard", "tracker.tensorboard.flush=1"], "flush_seconds"),
        (["tracker=tensorboard", "+tracker.tensorboard.x=1"], "x"),
        (
            ["+tracker.own={_target_: penstock.addons.trackers.tracker.Tracked}"],
            "so it is not called",
        ),
        (["+tracker.own=3"], "valid dictionary"),
        (["+tracker.own={_target_: os.system}"], "may not be called"),
    ],
)
def test_mistakes_are_named(words, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        chosen(*words)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "penstock.addons.trackers.wandb", raising=False)
    with pytest.raises(ConfigError, match=r"tracker\.wandb\._target_: .*pip install wandb"):
        chosen("tracker=wandb")
