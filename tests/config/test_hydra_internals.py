"""What is not public in hydra and omegaconf does what Penstock takes it for, as installed."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra._internal import config_loader_impl, defaults_list, utils
from hydra._internal import hydra as entry
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins import basic_sweeper
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigSource
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf

from penstock.addons.sweeps.optuna_sweeper import OptunaSweeper
from penstock.config import hydra_internals
from penstock.config.composition import Composer
from penstock.config.hydra_internals import is_mapping, raw_node, raw_value, replaced

ROOT = Path(__file__).parents[2]
NAMES = [
    *(
        (ConfigLoaderImpl, name)
        for name in (
            "_apply_overrides_to_config",
            "_load_configuration_impl",
            "_process_config_searchpath",
            "_compose_config_from_defaults_list",
        )
    ),
    (config_loader_impl, "create_defaults_list"),
    (ConfigSource, "_normalize_file_name"),
    *((defaults_list, name) for name in ("DefaultsList", "Overrides")),
    *((entry.Hydra, name) for name in ("get_mode", "get_help", "get_sanitized_cfg")),
    (entry, "ConfigLoaderImpl"),
    *((utils, name) for name in ("create_config_search_path", "get_args_parser")),
    (basic_sweeper, "BasicSweeper"),
    *(
        (DictConfig, name)
        for name in ("_get_node", "_is_none", "_is_missing", "_is_interpolation", "_value")
    ),
]


@pytest.mark.parametrize(("owner", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_version_that_lacks_a_name_is_reported(owner, name, monkeypatch):
    homes = getattr(owner, "__mro__", [owner])
    for home in [one for one in homes if name in vars(one)]:
        monkeypatch.delattr(home, name)
    with pytest.raises(ImportError, match=rf"hydra [\d.]+ or omegaconf [\d.]+ .*{name}"):
        importlib.reload(hydra_internals)


def test_it_was_tested_with_the_versions_that_are_pinned():
    pinned = (ROOT / "constraints.txt").read_text()
    hydra, omegaconf = re.findall(r"(?:hydra|omegaconf) (\d[\d.]*\d)", hydra_internals.__doc__)
    assert f"hydra-core=={hydra}\n" in pinned
    assert f"omegaconf=={omegaconf}\n" in pinned


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (ConfigLoaderImpl._apply_overrides_to_config, ["overrides", "cfg"]),
        (ConfigLoaderImpl._compose_config_from_defaults_list, ["self", "defaults", "repo"]),
        (
            ConfigLoaderImpl._process_config_searchpath,
            ["self", "config_name", "parsed_overrides", "repo"],
        ),
        (
            config_loader_impl.create_defaults_list,
            ["repo", "config_name", "overrides_list", "prepend_hydra", "skip_missing"],
        ),
        (entry.Hydra.get_mode, ["self", "config_name", "overrides"]),
        (entry.Hydra.get_sanitized_cfg, ["self", "cfg", "cfg_type"]),
    ],
)
def test_replaced_functions_take_what_ours_take(function, arguments):
    assert list(inspect.signature(function).parameters) == arguments


def test_nothing_of_hydra_stays_changed():
    before = {name: vars(ConfigLoaderImpl).get(name) for name in dir(ConfigLoaderImpl)}
    Composer().compose([])
    assert before == {name: vars(ConfigLoaderImpl).get(name) for name in dir(ConfigLoaderImpl)}


def test_what_is_replaced_returns_after_an_error_too():
    kept = vars(OmegaConf)["to_yaml"]
    with pytest.raises(KeyError), replaced(OmegaConf, to_yaml=staticmethod(lambda cfg: {}[cfg])):
        OmegaConf.to_yaml("x")
    assert vars(OmegaConf)["to_yaml"] is kept


def test_the_basic_sweeper_is_the_default():
    node = ConfigStore.instance().load("hydra/sweeper/basic.yaml").node
    assert node._target_ == hydra_internals.BASIC_SWEEPER


@pytest.mark.parametrize("kind", [Launcher, Sweeper])
def test_plugins_have_the_names_under_which_hydra_looks_them_up(kind):
    for one in Plugins.instance().discover(kind):
        name = f"{one.__module__}.{one.__name__}"
        assert Plugins.instance().class_name_to_class[name] is one


def test_a_sweeper_of_ours_is_called_by_hydra_for_a_time():
    name = f"{OptunaSweeper.__module__}.{OptunaSweeper.__name__}"
    before = Plugins.is_in_toplevel_plugins_module
    assert not before(name)
    with hydra_internals.with_plugin(OptunaSweeper):
        assert Plugins.instance().is_in_toplevel_plugins_module(name)
        assert Plugins.instance().is_in_toplevel_plugins_module(hydra_internals.BASIC_SWEEPER)
        assert not Plugins.instance().is_in_toplevel_plugins_module("os.system")
        assert Plugins.instance().class_name_to_class[name] is OptunaSweeper
    assert Plugins.is_in_toplevel_plugins_module is before


def test_raw_nodes_are_not_resolved():
    config = OmegaConf.create({"a": {"b": 1}, "c": "${a}", "d": None, "e": "???", "f": ["${c}"]})
    assert [is_mapping(raw_node(config, name)) for name in "acdex"] == [True] + 4 * [False]
    assert [raw_value(config, name) for name in "cdex"] == ["${a}", None, "???", None]
    assert raw_value(config.f, 0) == "${c}"


def test_hydras_section_resolves_for_a_time_and_is_as_before():
    composer = Composer()
    composer.compose([])
    config = composer.kept.config
    before = OmegaConf.to_yaml(config.hydra), OmegaConf.is_readonly(config.hydra)
    with hydra_internals.hydra_config(config):
        assert HydraConfig.get().runtime.output_dir == "."
    assert not HydraConfig.initialized()
    assert before == (OmegaConf.to_yaml(config.hydra), OmegaConf.is_readonly(config.hydra))


@pytest.mark.stress  # all of torch is compiled once more
@pytest.mark.parametrize("flag", ["-O", "-OO"])
def test_overrides_are_parsed_without_asserts_too(flag):
    code = (
        "import json, penstock\n"
        "print(json.dumps(penstock.compose('+dataset.facts={num_classes:3}').dataset['facts']))"
    )
    done = subprocess.run(
        [sys.executable, flag, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == '{"num_classes": 3}\n', done.stderr
