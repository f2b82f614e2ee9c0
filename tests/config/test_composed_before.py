"""What was composed before is used again, and nobody can tell."""

import copy
import dataclasses
import os
import time

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from penstock.config import hydra_internals
from penstock.config.composition import Composer

OLD = time.time() - 1000
CHOICES = [
    [],
    ["dataset=image_folder", "transform=images_fast"],
    ["experiment=sequences"],
    ["sampler=bucket", "~scheduler", "+sampler.tokens=64"],
    ["hydra/launcher=basic", "loader=threads"],
]


@pytest.fixture(autouse=True)
def nothing_composed(monkeypatch):
    monkeypatch.setattr(hydra_internals, "_COMPOSED", type(hydra_internals._COMPOSED)())


def composed(*lines, multirun=False, folder=None):
    """All that hydra's loader gave, as text, and the problems."""
    composer = Composer(config_dir=folder)
    overrides, problems = composer.parse(lines)
    found = composer.compose(overrides, multirun)
    text = composer.kept and OmegaConf.to_yaml(composer.kept.config)
    return text, problems + found.problems


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (OLD, OLD))


@pytest.fixture
def any_age(monkeypatch):
    """Files may have been changed just now; ctime cannot be set."""
    monkeypatch.setattr(hydra_internals, "_SETTLED", -(10**15))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("lines", CHOICES, ids=["-".join(one) for one in CHOICES])
@pytest.mark.parametrize("multirun", [False, True])
def test_it_is_what_would_be_composed_anew(lines, multirun):
    for seed in (1, 2):
        again = composed(*lines, f"seed={seed}", multirun=multirun)
        if seed == 2:
            hydra_internals._COMPOSED.clear()
        assert composed(*lines, f"seed={seed}", multirun=multirun) == again
    assert len(hydra_internals._COMPOSED) == 1


def test_a_value_of_one_is_not_in_the_next():
    assert "momentum" in composed("optimizer=sgd", "optimizer.momentum=0.123")[0]
    text, _ = composed("optimizer=sgd")
    assert "0.123" not in text
    assert "0.123" not in composed("optimizer=sgd", "seed=5")[0]


def test_a_wrong_choice_stays_wrong():
    for _ in range(2):
        assert composed("sampler=nonesuch")[1]


def test_a_file_that_is_changed_added_or_removed_is_seen(tmp_path, any_age):
    mine = tmp_path / "optimizer" / "mine.yaml"

    def found():
        return composed("optimizer=mine", folder=str(tmp_path))

    assert found()[1]
    write(mine, "lr: 0.111\n")
    first = found()
    assert "0.111" in first[0]
    assert found() == first
    write(mine, "lr: 0.222\n")
    assert "0.222" in found()[0]
    write(tmp_path / "other.yaml", "fresh: 1\n")
    assert "0.222" in found()[0]
    mine.unlink()
    assert found()[1]


def test_a_file_that_has_just_changed_is_not_relied_on(tmp_path):
    mine = tmp_path / "optimizer" / "mine.yaml"
    mine.parent.mkdir()
    for number in range(1, 6):  # within a tick of the clock, of the same size
        mine.write_text(f"lr: 0.{number}{number}{number}\n")
        found = composed("optimizer=mine", folder=str(tmp_path))[0]
        assert f"0.{number}{number}{number}" in found


def test_a_package_of_configurations_is_read_each_time(tmp_path, monkeypatch):
    write(tmp_path / "made_up_conf" / "optimizer" / "adamw.yaml", "lr: 0.111\n")
    (tmp_path / "made_up_conf" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    composed("hydra.searchpath=[pkg://made_up_conf]")
    assert not hydra_internals._COMPOSED


def test_a_schema_that_cannot_be_copied_is_composed_each_time(monkeypatch):
    @dataclasses.dataclass
    class Local:
        lr: float = 0.5

    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", copy.deepcopy(store.repo))
    store.store(group="optimizer", name="local", node=Local)
    for _ in range(2):
        assert "lr: 0.5" in composed("optimizer=local")[0]
    assert not hydra_internals._COMPOSED


def test_only_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(hydra_internals, "_MOST_COMPOSED", 2)
    for name in ("adam", "adamw", "sgd"):
        composed(f"optimizer={name}")
    assert len(hydra_internals._COMPOSED) == 2


def test_a_default_may_refer_to_another_choice(tmp_path):
    write(tmp_path / "experiment/mine.yaml", "defaults:\n- /loader: ${experiment}\n")
    write(tmp_path / "loader/mine.yaml", "# @package loader\nnum_workers: 3\n")
    text, problems = composed("experiment=mine", folder=str(tmp_path))
    assert not problems, problems
    assert OmegaConf.create(text).loader.num_workers == 3
    write(tmp_path / "experiment/mine.yaml", "defaults:\n- /loader: ${samplr}\n")
    _, problems = composed("experiment=mine", folder=str(tmp_path))
    assert "possible interpolation keys: experiment" in str(problems)
