"""A node that names another `_target_` is the node as it was written, wherever it is written."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

import penstock
from penstock.config import whole_nodes
from penstock.runs.resumption import with_overrides_of_run
from tests.program import run

# Where a node stands, and one of another `_target_` that fits there.
NODES = {
    "model": {"_target_": "torch.nn.Linear", "in_features": 3, "out_features": 136},
    "objective.loss": {"_target_": "torch.nn.HuberLoss", "reduction": "none"},
    "objective.metrics.nme": {"_target_": "torchmetrics.regression.MeanAbsoluteError"},
    "objective": {
        "_target_": "penstock.training.objective.Regression",
        "loss": {"_target_": "torch.nn.HuberLoss", "delta": 0.5},
        "metrics": {},
        "inputs": ["image"],
        "target": "landmarks",
    },
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1},
    "scheduler": {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 3},
    "sampler": {"_target_": "penstock.order.samplers.Sequential"},
    "collate": {"_target_": "penstock.loading.collate.Pad", "fields": ["image"]},
    "tracker": {"_target_": "penstock.addons.trackers.tracker.Nothing"},
    "dataset": {"_target_": "penstock.datasets.face_landmarks.FaceLandmarks", "root": "faces"},
    "transform.train.flip": {"_target_": "torchvision.transforms.v2.RandomVerticalFlip"},
    "transform.train.crop": {"_target_": "torchvision.transforms.v2.CenterCrop", "size": 48},
    "transform.val.resize": {"_target_": "torchvision.transforms.v2.CenterCrop", "size": 48},
}


def flow(node):
    """A node as it stands on a command line."""
    return yaml.safe_dump(node, default_flow_style=True, width=1000).strip()


def found(config, key):
    node = config.plain()
    for name in key.split("."):
        node = node[name]
    return node


def nested(key, node):
    for name in reversed(key.split(".")):
        node = {name: node}
    return node


@pytest.fixture
def experiment(tmp_path):
    """Write an experiment file; returns the folder for --config-dir."""

    def write(content):
        path = tmp_path / "conf" / "experiment" / "mine.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# @package _global_\n" + yaml.safe_dump(content))
        return str(tmp_path / "conf")

    return write


@pytest.mark.one_in(4)
@pytest.mark.parametrize("key", NODES)
def test_a_node_is_replaced_on_the_command_line_and_in_a_file(key, experiment):
    node = NODES[key]
    same = ("task=digest", "run_dir=x", "scheduler=cosine")  # which reads nothing of other nodes
    before = penstock.compose(*same)
    for config in (
        penstock.compose(*same, f"{key}={flow(node)}"),
        penstock.compose(*same, "experiment=mine", config_dir=experiment(nested(key, node))),
    ):
        assert found(config, key) == node
        plain, kept = config.plain(), before.plain()
        del plain[key.split(".")[0]], kept[key.split(".")[0]]
        assert plain == kept
        assert list(config.transform.train) == list(before.transform.train)


TARGETS = st.sampled_from(["a.A", "b.B", "c.C", None])
NAMES = st.sampled_from(["x", "y", "z"])
TREES = st.recursive(
    st.integers(0, 3) | st.none(),
    lambda inner: st.tuples(TARGETS, st.dictionaries(NAMES, inner, max_size=3)).map(
        lambda made: {**({"_target_": made[0]} if made[0] else {}), **made[1]}
    ),
    max_leaves=12,
)


def expected(old, new):
    """The rule, on plain values."""
    if not isinstance(new, dict):
        return new
    target = new.get("_target_")
    if not isinstance(old, dict) or (target and old.get("_target_") != target):
        return new
    return {**old, **{name: expected(old.get(name), value) for name, value in new.items()}}


@settings(max_examples=120, deadline=None)
@given(old=st.dictionaries(NAMES, TREES), new=st.dictionaries(NAMES, TREES))
def test_merging_follows_the_rule_in_any_tree(old, new):
    config, addition = OmegaConf.create({"top": old}), OmegaConf.create({"top": new})
    whole_nodes.merge(config, addition)
    assert OmegaConf.to_container(config) == {"top": expected(old, new)}
    assert OmegaConf.to_container(addition) == {"top": new}


def test_the_same_target_is_merged_and_takes_arguments_that_the_yaml_does_not_list():
    config = penstock.compose("optimizer={_target_: torch.optim.AdamW, lr: 1, amsgrad: true}")
    assert config.optimizer == {
        "_target_": "torch.optim.AdamW",
        "lr": 1,
        "betas": [0.9, 0.999],
        "weight_decay": 0.01,
        "amsgrad": True,
    }
    with pytest.raises(penstock.errors.ConfigError, match="unknown argument of AdamW 'amsgrat'"):
        penstock.compose("optimizer={_target_: torch.optim.AdamW, amsgrat: true}")


def test_a_node_for_each_split_replaces_the_one_for_both(experiment):
    faces = {"_target_": "penstock.datasets.synthetic_faces.SyntheticFaces", "root": "x"}
    node = {"train": faces, "val": {**faces, "seed": 1}}
    assert penstock.compose(f"dataset={flow(node)}").dataset == node
    config = penstock.compose("experiment=mine", config_dir=experiment({"dataset": node}))
    assert config.dataset == node
    assert penstock.compose(f"dataset={flow(node)}", f"dataset={flow(faces)}").dataset == faces


def test_a_node_takes_the_place_of_an_interpolation_and_leaves_alone_where_that_led():
    step = {"_target_": "penstock.transforms.audio.LogMel", "rate": 8000, "n_mels": 20}
    given = ("dataset=spoken_digits", f"transform.val.features={flow(step)}")
    before = penstock.compose("dataset=spoken_digits").transform.train["features"]
    config = penstock.compose(*given)
    assert config.transform.train["features"] == before
    assert config.transform.val["features"] == step


def test_later_words_change_what_earlier_ones_replaced():
    config = penstock.compose(
        "model={_target_: torch.nn.Linear, in_features: 3}",
        "+model.out_features=2",
        "optimizer={_target_: torch.optim.SGD, lr: 1}",
        "scheduler=none",
        "optimizer={_target_: torch.optim.Adam}",
    )
    assert config.model == {"_target_": "torch.nn.Linear", "in_features": 3, "out_features": 2}
    assert config.optimizer == {"_target_": "torch.optim.Adam"}


def test_a_key_that_is_null_can_be_left_out():
    config = penstock.compose("~dataset.root", "~transform.train.crop", "task=digest")
    assert "root" not in config.dataset
    assert "crop" not in config.transform.train


def test_an_empty_mapping_on_the_command_line_empties(capsys):
    words = ["objective.metrics={}", "transform.val={}"]
    config = penstock.compose(*words).plain()
    assert config["objective"]["metrics"] == config["transform"]["val"] == {}
    assert config["transform"]["train"]
    more = "+objective.metrics.mse={_target_: torchmetrics.MeanSquaredError}"
    config = penstock.compose(*words, more)
    assert list(config.plain()["objective"]["metrics"]) == ["mse"]
    assert "metrics: {}" in run(capsys, "objective.metrics={}", "--cfg", "job").out


def test_hydra_composes_what_preflight_checked(capsys, tmp_path, monkeypatch, experiment):
    """`--cfg job` is hydra's own composition, through the loader that it uses for a run."""
    monkeypatch.chdir(tmp_path)
    folder = experiment({"optimizer": NODES["optimizer"]})
    words = [f"{key}={flow(NODES[key])}" for key in ("model", "objective.loss", "collate")]
    done = run(capsys, "--config-dir", folder, "experiment=mine", *words, "--cfg", "job")
    shown = yaml.safe_load(done.out)
    assert done.code == 0, done.err
    for key in ("model", "collate", "optimizer"):
        assert shown[key] == NODES[key]
    assert shown["objective"]["loss"] == NODES["objective.loss"]


@pytest.mark.stress
def test_a_run_continues_with_the_nodes_that_it_was_started_with(faces, tmp_path, capsys):
    loss = {"_target_": "torch.nn.HuberLoss", "delta": 0.5}
    step = {"_target_": "torchvision.transforms.v2.RandomInvert", "_before_": "normalize"}
    words = [
        f"objective.loss={flow(loss)}",
        f"+transform.train.invert={flow(step)}",
        "loader=debug",
        "trainer=quick",
        "run_dir=here",
    ]
    done = run(capsys, *faces, *words)
    assert done.code == 0, done.err
    written = yaml.safe_load((tmp_path / "here" / "config.yaml").read_text())
    assert written["objective"]["loss"] == loss
    assert list(written["transform"]["train"]) == ["crop", "resize", "flip", "invert", "normalize"]
    again = penstock.compose(*with_overrides_of_run(["resume=here"]))
    own = {
        name: value
        for name, value in again.plain().items()
        if name not in ("resume", "run_dir", "task")
    }
    assert own == {name: written[name] for name in own}
    other = penstock.compose(
        *with_overrides_of_run(["resume=here", "objective.loss={_target_: torch.nn.MSELoss}"])
    )
    assert other.objective["loss"] == {"_target_": "torch.nn.MSELoss"}
