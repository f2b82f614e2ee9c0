"""No key that an option's file sets is silently without effect."""

import re

import pytest
import yaml

from penstock.config.compose import compose, load, resolved
from penstock.config.identity import leaves
from tests.support.own_parts import NUMBERS
from tests.support.shipped import FILES, NEEDS


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes an option of one's own; gives `compose` with its folder."""
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")

    def write(name, text):
        path = tmp_path / "own" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("dataset/numbers", NUMBERS)
    return write, lambda *words: compose(*words, config_dir=str(tmp_path / "own"))


@pytest.mark.one_in(37)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_key_of_our_options_is_in_the_configuration(path):
    """Where a dataset brings arguments of the parts that it chooses, theirs is the default."""
    group, name = path.parent.name, path.stem
    choice = "tracker=[none,{}]" if group == "tracker" else f"{group}={{}}"
    words = [choice.format(name), *NEEDS.get(f"{group}/{name}", ())]
    config, problems, _ = load(words)
    made = resolved(config, problems)
    assert all("has no value yet" in problem.message for problem in problems)
    text = path.read_text()
    tree = {one: value for one, value in yaml.safe_load(text).items() if one != "defaults"}
    package = re.match(r"# @package (\S+)", text)
    package = package[1] if package else group
    for one in reversed([] if package == "_global_" else package.split(".")):
        tree = {one: tree}
    whole = dict(leaves(made))
    given = {word.partition("=")[0] for word in words}
    for key, value in leaves(tree):
        if value in ({}, "???") or key in given or "${" in str(value):
            continue
        if key in ("transform.train", "transform.val") and "defaults" in text:
            continue  # the order of all steps, of which this file adds some
        section = key.split(".")[0]
        if section == "objective" and group == "objective" and key not in ("objective._target_",):
            continue
        assert whole.get(key, {}) == value, key


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 7),
        ("batch.size", 7),
        ("batch.tail", "drop"),
        ("bad_samples.on_error", "skip"),
        ("transform.batch_on", "loader"),
        ("cache_dir", "here"),
        ("pack.size", 9),
        ("trainer.max_epochs", 3),
        ("loader.num_workers", 1),
        ("optimizer.lr", 0.5),
        ("limits.pixels", 99),
        ("sampler._target_", "tests.support.own_parts.sequential"),
    ],
)
def test_a_dataset_of_ones_own_sets_any_key(own, key, value):
    write, made = own
    nested = value
    for name in reversed(key.split(".")):
        nested = {name: nested}
    write("dataset/mine", NUMBERS + yaml.safe_dump(nested))
    whole = dict(leaves(made("dataset=mine").model_dump()))
    assert whole[key] == value
    last = {"sampler._target_": "sampler=sequential"}.get(key, f"{key}={value}")
    made("dataset=mine", last)  # and the command line still wins
