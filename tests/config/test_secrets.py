"""Secrets do not belong into a configuration, which a run's folder keeps in full."""

import pytest
import yaml

import penstock
from penstock.errors import ConfigError
from tests.program import run

FILES = ["dataset=image_folder", "dataset.root=x"]


@pytest.mark.parametrize("name", ["secret", "password", "session_token", "access_key"])
def test_a_secret_in_the_options_of_a_store_is_refused(name):
    with pytest.raises(ConfigError) as caught:
        penstock.compose(*FILES, f"+files.options.{name}=x")
    (problem,) = caught.value.problems
    assert problem.key == f"files.options.{name}"
    assert "put it into the environment" in problem.message
    penstock.compose(*FILES, "+files.options.region=x")


@pytest.mark.parametrize("name", ["MY_SECRET", "HF_TOKEN", "PASSWORD", "api_key", "CREDENTIALS"])
def test_a_secret_of_the_environment_is_not_read(name, monkeypatch):
    monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("FOLDER", "mine")
    with pytest.raises(ConfigError, match=f"run_dir: .*{name} is a secret by its name") as caught:
        penstock.compose(f"run_dir=${{oc.env:{name}}}")
    assert "hidden" not in str(caught.value)
    assert penstock.compose("run_dir=${oc.env:FOLDER}").run_dir == "mine"


def test_a_runs_folder_keeps_every_value_as_it_is(capsys, tmp_path):
    words = ["trainer.max_steps=1", "trainer.report=false", "batch.val_size=8", "dataset.size=64"]
    assert run(capsys, *words, "loader.num_workers=0", f"run_dir={tmp_path / 'run'}").code == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    made = penstock.compose(*words, "loader.num_workers=0", f"run_dir={tmp_path / 'run'}")
    assert config == made.model_dump()
