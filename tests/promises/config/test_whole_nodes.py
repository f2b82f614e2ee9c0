"""A node that names another `_target_` is the node as it was written, wherever it is written."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.config import compose
from tests.support.program import run

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
    "tracker": {"_target_": "penstock.addons.trackers.tracker.Tracker"},
    "dataset": {"_target_": "penstock.datasets.face_landmarks.FaceLandmarks", "root": "faces"},
    "transform.train.flip": {"_target_": "torchvision.transforms.v2.RandomVerticalFlip"},
    "transform.train.crop": {"_target_": "torchvision.transforms.v2.CenterCrop", "size": 48},
    "transform.val.resize": {"_target_": "torchvision.transforms.v2.CenterCrop", "size": 48},
}


def flow(node):
    """A node as it stands on a command line."""
    return yaml.safe_dump(node, default_flow_style=True, width=1000).strip()


def found(config, key):
    node = config.model_dump()
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
        plain, kept = config.model_dump(), before.model_dump()
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


@settings(max_examples=12, deadline=None)  # 0.2 s each
@given(old=st.dictionaries(NAMES, TREES), new=st.dictionaries(NAMES, TREES))
def test_merging_follows_the_rule_in_any_tree(old, new, tmp_path_factory):
    folder = tmp_path_factory.mktemp("conf")
    (folder / "old.yaml").write_text(yaml.safe_dump({"top": old}))
    (folder / "new.yaml").write_text(yaml.safe_dump({"defaults": ["old", "_self_"], "top": new}))
    config, problems, _ = compose.load([f"hydra.searchpath=['{folder}']"], "new")
    values = compose.resolved(config, problems)
    assert values == {"top": expected(old, new)}, problems


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


def test_a_node_takes_the_place_of_an_interpolation_and_leaves_alone_where_that_led():
    step = {"_target_": "penstock.addons.audio.transforms.LogMel", "rate": 8000, "n_mels": 20}
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


def test_an_empty_mapping_on_the_command_line_empties(capsys):
    words = ["objective.metrics={}", "transform.val={}"]
    config = penstock.compose(*words).model_dump()
    assert config["objective"]["metrics"] == config["transform"]["val"] == {}
    assert config["transform"]["train"]
    more = "+objective.metrics.mse={_target_: torchmetrics.MeanSquaredError}"
    config = penstock.compose(*words, more)
    assert list(config.model_dump()["objective"]["metrics"]) == ["mse"]
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


@pytest.fixture
def run_folder(tmp_path):
    """A run's folder, as far as composing reads it."""
    words = ["seed=3", "loader=debug", "batch.size=8", "tracker=none", "run_dir=old"]
    words.append(f"objective.loss={flow(NODES['objective.loss'])}")
    values = compose.resolved(*compose.load(words)[:2])
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "run" / "manifest.json").write_text('{"overrides": ["--config-dir=/", "nonsense"]}')
    return tmp_path / "run"


@pytest.mark.parametrize("key", ["resume", "run"])
def test_a_run_is_the_base_and_what_is_typed_lies_on_top(key, run_folder):
    task = ["task=validate"] if key == "run" else []
    config = penstock.compose(*task, f"{key}={run_folder}", "trainer.max_epochs=7", "run_dir=new")
    assert (config.seed, config.batch.size, config.trainer.max_epochs) == (3, 8, 7)
    assert config.objective["loss"] == NODES["objective.loss"]
    assert config.loader.num_workers == 0, "a section of the run"
    assert (config.task, config.run_dir) == (task[0][5:] if task else "fit", "new")


def test_a_choice_takes_that_section_of_a_fresh_composition(run_folder):
    words = [f"resume={run_folder}", "loader=fast"]
    config, fresh = penstock.compose(*words), penstock.compose("loader=fast")
    assert config.loader == fresh.loader
    assert (config.seed, config.batch.size) == (3, 8)
    again = penstock.compose(f"resume={run_folder}", "loader=default")
    assert again.loader == penstock.compose().loader, "the default, too"
    other = penstock.compose(f"resume={run_folder}", "objective.loss={_target_: torch.nn.MSELoss}")
    assert other.objective["loss"] == {"_target_": "torch.nn.MSELoss"}
    config = penstock.compose(f"resume={run_folder}", "experiment=sequences")
    assert config.dataset == penstock.compose("experiment=sequences").dataset
    assert config.seed == 3


def test_a_runs_configuration_is_checked_as_any_other(run_folder):
    values = yaml.safe_load((run_folder / "config.yaml").read_text())
    values["model"] = {"_target_": "os.system"}
    values["cache_dir"] = "${oc.env:MY_SECRET}"
    (run_folder / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(penstock.errors.ConfigError, match=r"cache_dir: .*secret"):
        penstock.compose(f"resume={run_folder / 'checkpoints' / 'step-1.safetensors'}")
    with pytest.raises(penstock.errors.ConfigError, match=r"os\.system may not be called"):
        penstock.compose(f"resume={run_folder}", "cache_dir=x")
    with pytest.raises(penstock.errors.ConfigError, match=r"mean 'trainer\.max_epochs'"):
        penstock.compose(f"resume={run_folder}", "cache_dir=x", "trainer.max_epoks=3")


def test_a_run_of_another_version_is_refused_in_a_sentence(run_folder):
    with (run_folder / "config.yaml").open("a") as file:
        file.write("diff: null\n")
    reason = "run: is a run of another version, which has the key diff; use the version and commit"
    with pytest.raises(penstock.errors.ConfigError, match=reason):
        penstock.compose(f"resume={run_folder}")
