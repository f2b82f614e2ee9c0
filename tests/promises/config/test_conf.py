"""Every YAML in conf composes and passes preflight, alone and as the command line chooses it."""

import pytest
import yaml

from penstock.config.compose import compose, load, resolved
from penstock.config.schema import Config
from penstock.seams import TASKS
from tests.support.shipped import CONF, FILES, NEEDS

GROUPS = sorted(
    path.name
    for path in CONF.iterdir()
    if path.is_dir() and path.name not in ("hydra", "__pycache__")
)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("WORLD_SIZE", "PENSTOCK_TRUST"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.one_in(25)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_choice_composes_and_passes_preflight(path):
    choice = f"{path.parent.name}/{path.stem}"
    words = [choice.replace("/", "="), *NEEDS.get(choice, [])]
    config, problems, _ = load(words)
    resolved(config, problems)
    words += [f"{one.key}=x" for one in problems if "has no value yet" in one.message]
    assert isinstance(compose(*words), Config)


def test_every_file_opens_with_what_it_is():
    """A file of a part has its _target_ first, so that it can be read top down."""
    for path in FILES:
        text = path.read_text()
        assert text.endswith("\n"), path
        assert "\t" not in text, path
        if path.stem == "several":  # optimizers, by the parts of a model that a person has
            assert yaml.safe_load(text) == {}
        elif path.match("tracker/none.yaml"):  # of all trackers, each with its own name
            assert [*yaml.safe_load(text)] == ["none"]
        elif path.parent.name in {
            "sampler",
            "collate",
            "model",
            "objective",
            "optimizer",
            "tracker",
        }:
            assert next(iter(yaml.safe_load(text))) in ("_target_", "defaults"), path


def test_every_group_is_in_the_defaults_list():
    primary = yaml.safe_load((CONF / "config.yaml").read_text())
    listed = [next(iter(line)) for line in primary["defaults"] if isinstance(line, dict)]
    listed = [name.removeprefix("optional ") for name in listed]
    assert {name for name in listed if not name.startswith("override")} == set(GROUPS)


def test_every_task_has_a_file():
    assert {path.stem for path in (CONF / "task").glob("*.yaml")} == set(TASKS)
