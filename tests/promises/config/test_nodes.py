"""A node of conf/ is `_target_` and arguments of it, so plain Hydra builds it as well."""

import importlib
import inspect
from pathlib import Path

import hydra
import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

# Hydra 1.4 asks each call which packages it may call.
pytestmark = pytest.mark.filterwarnings("ignore:.*resolved _target_=")
CONF = Path(__file__).parents[3] / "conf"
FACTS = {"num_classes": 3, "num_features": 4, "num_outputs": 3, "num_landmarks": 5}
FACTS |= {"in_features": 4, "out_features": 3, "num_labels": 3, "past": 8, "horizon": 2}
FACTS |= {"num_values": 1, "num_known": 0}
FACTS |= {"num_numbers": 2, "cardinalities": [3]}


def nodes(value, place):
    """Each mapping with a `_target_`, by where it stands."""
    if isinstance(value, dict):
        if "_target_" in value and "???" not in value["_target_"]:
            yield place, value
        for name, inner in value.items():
            yield from nodes(inner, f"{place}.{name}")


def called(node):
    """What a node names; the test is skipped where its package is not installed."""
    module, _, name = node["_target_"].rpartition(".")
    return getattr(pytest.importorskip(module) if module else importlib, name)


WRITTEN = [
    pytest.param(node, id=place)
    for path in sorted(CONF.rglob("*.yaml"))
    if "hydra" not in path.parts
    for place, node in nodes(yaml.safe_load(path.read_text()), f"{path.parent.name}/{path.stem}")
]


@pytest.mark.parametrize("node", WRITTEN)
def test_every_key_of_a_node_is_an_argument(node):
    taken = inspect.signature(called(node)).parameters
    assert any(one.kind is one.VAR_KEYWORD for one in taken.values()) or not (
        {name for name in node if name[0] != "_"} - {*taken, "defaults"}
    )


@pytest.fixture(scope="module")
def of():
    """The configuration of some words, composed by plain Hydra."""
    version = {"version_base": None} if hydra.__version__.startswith("1.3.") else {}
    with initialize_config_dir(str(CONF), **version):
        yield lambda *words: compose("config", list(words))


GROUPS = {
    group: [path.stem for path in sorted((CONF / group).glob("*.yaml"))]
    for group in ("model", "collate", "optimizer", "sampler", "transform")
}
DOWNLOADS = {"transformers"}  # names a model of another package


@pytest.mark.parametrize("name", sorted({*GROUPS["model"]} - DOWNLOADS))
def test_a_model_is_made_with_the_facts_of_the_data(name, of):
    node = of(f"model={name}", "transform=images_text").model
    taken = inspect.signature(called(node)).parameters
    facts = {key: value for key, value in FACTS.items() if key in taken}
    assert isinstance(instantiate(node, **facts), torch.nn.Module)


@pytest.mark.parametrize("name", GROUPS["collate"])
def test_a_collate_function_is_made(name, of):
    assert callable(instantiate(of(f"collate={name}").collate))


@pytest.mark.parametrize("name", sorted({*GROUPS["optimizer"]} - {"several"}))
def test_an_optimizer_is_made_of_parameters(name, of):
    config = of(f"optimizer={name}", "scheduler=cosine")
    optimizer = instantiate(config.optimizer, params=[torch.nn.Parameter(torch.ones(2))])
    schedule = instantiate(config.scheduler, optimizer=optimizer, T_max=5)
    assert schedule.get_last_lr() == [config.optimizer.lr]


@pytest.mark.parametrize("name", ["faces", "images", "masks", "audio", "text", "waveforms"])
def test_steps_of_transforms_are_made(name, of):
    config = of(f"transform={name}")
    for step in (*config.transform.train.values(), *config.transform.val.values()):
        statistics = {"statistics": "imagenet"} if step and "statistics" in step else {}
        assert step is None or callable(instantiate(step, **statistics))


def test_data_and_its_objective_are_made(of, tmp_path):
    config = of("dataset.count=8", f"dataset.root={tmp_path}")
    assert len(instantiate(config.dataset)) > len(instantiate(config.dataset, split="val"))
    assert callable(instantiate(config.objective, metrics={}).loss)
