"""Choosing trackers: one or several by name, of one's own, and to whom they may send."""

import importlib.machinery
import importlib.util
import re

import pytest

import penstock
from penstock.config import endpoints
from penstock.errors import ConfigError

TENSORBOARD = "penstock.addons.trackers.tensorboard.TensorBoard"
OWN = "tests.trackers.test_guarded_trackers.Failing"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in (
        "PENSTOCK_ALLOW_ENDPOINT",
        "MLFLOW_TRACKING_URI",
        "WANDB_BASE_URL",
        "WANDB_MODE",
        "PENSTOCK_SAID",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")


def chosen(*words, **options):
    return penstock.compose(*words, **options).tracker


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], ["tensorboard"]),
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


@pytest.mark.thorough
def test_one_of_ones_own_takes_the_place_of_all(tmp_path):
    assert chosen(f"tracker={{_target_: {OWN}, at: x}}") == {"_target_": OWN, "at": "x"}
    (tmp_path / "tracker").mkdir()
    (tmp_path / "tracker" / "own.yaml").write_text(f"_target_: {OWN}\nat: x\n")
    assert chosen("tracker=own", config_dir=str(tmp_path)) == {"_target_": OWN, "at": "x"}
    with pytest.raises(ConfigError, match=r"tracker: .*# @package tracker\.NAME"):
        chosen("tracker=[tensorboard,own]", config_dir=str(tmp_path))
    (tmp_path / "tracker" / "own.yaml").write_text(
        f"# @package tracker.own\n_target_: {OWN}\nat: x\n"
    )
    assert list(chosen("tracker=[tensorboard,own]", config_dir=str(tmp_path))) == [
        "tensorboard",
        "own",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tracker=wandbb"], "wandb"),
        (["tracker=[tensorboard,tb]"], "tensorboard"),
        (["tracker.tensorboard.x=1"], "tracker.tensorboard"),
        (["tracker.tensorboard.flush=1"], "flush_seconds"),
        (["tracker=tensorboard", "+tracker.tensorboard.x=1"], "x"),
        (["+tracker.own={_target_: penstock.addons.trackers.observing.Trackers}"], "not a tracker"),
        (["+tracker.own=3"], "mapping with _target_"),
        (["+tracker.own={_target_: os.system}"], "may not be called"),
    ],
)
def test_mistakes_are_named(words, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        chosen(*words)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_package_that_is_missing_is_named_with_its_extra(name, monkeypatch):
    there = importlib.util.find_spec

    def find(wanted, package=None):
        if wanted == name:  # a folder of that name is found as a namespace
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        return there(wanted, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(
        ConfigError, match=rf"tracker\.{name}: needs.*pip install -e '\.\[{name}\]'"
    ):
        chosen(f"tracker={name}")
    chosen(f"tracker={name}", "task=digest")


ELSEWHERE = [
    "https://mlflow.example.org",
    "http://10.0.0.7:5000",
    "postgresql://u:p@db/x",
    "https://user:hidden@localhost:5000",
    "https://localhost@evil.org",
]


@pytest.mark.parametrize("uri", ELSEWHERE)
def test_a_server_is_named_on_the_command_line(uri, monkeypatch):
    with pytest.raises(ConfigError, match=r"tracker\.mlflow\.uri: sends this run's") as refused:
        chosen("tracker=mlflow", f"tracker.mlflow.uri='{uri}'")
    assert "hidden" not in str(refused.value)
    monkeypatch.setenv("PENSTOCK_ALLOW_ENDPOINT", "mlflow.example.org,10.0.0.7:5000")
    if uri in ELSEWHERE[:2]:
        chosen("tracker=mlflow", f"tracker.mlflow.uri='{uri}'")


@pytest.mark.parametrize(
    "uri",
    [
        "http://localhost:5000",
        "http://127.0.0.1:5000",
        "databricks",
        "sqlite:///runs.db",
        "file:runs",
        "runs",
    ],
)
def test_this_machine_is_free(uri):
    chosen("tracker=mlflow", f"tracker.mlflow.uri='{uri}'")


def test_variables_of_the_environment_are_not_sent(monkeypatch):
    monkeypatch.setenv("SECRET_OF_MINE", "abcdef")
    with pytest.raises(ConfigError, match=r"would send SECRET_OF_MINE .* to a tracker's server"):
        chosen("tracker=wandb", "tracker.wandb.project=${oc.env:SECRET_OF_MINE}")
    with pytest.raises(ConfigError, match=r"tracker\.wandb\.base_url: sends"):
        chosen("tracker=wandb", "tracker.wandb.base_url=https://elsewhere.org")


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["tracker=wandb"], "https://api.wandb.ai (tracker.wandb)"),
        (["tracker=mlflow", "tracker.mlflow.uri=http://localhost:5000"], "http://localhost:5000"),
        (["tracker=mlflow"], "https://***@mine.org"),
        (["tracker=wandb", "tracker.wandb.mode=offline"], None),
        (["tracker=[tensorboard,none]"], None),
    ],
)
def test_what_is_sent_is_announced(words, place, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:hidden@mine.org")
    said = list(endpoints.notices(penstock.compose(*words).plain()))
    assert len(said) == (place is not None)
    assert not place or (said[0].startswith("notice: ") and place in said[0])
