"""What Hydra's users do, each in a process of its own, with what has to appear."""

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.support import warm

ROOT = Path(__file__).parents[3]
DIGEST = ("task=digest", "steps=1", "dataset.count=20", "dataset.size=48", "batch.size=8")
FIT = (*DIGEST[2:], "trainer.max_steps=1", "tracker=none", "loader=debug", "run_dir=run")
SWEEP = (*FIT[:-1], "hydra.sweep.dir=swept")
FILES = {
    "own/sampler/mine.yaml": "_target_: penstock.order.samplers.Random\n",
    "own/experiment/recipe.yaml": "# @package _global_\nseed: 7\nhydra: {run: {dir: filed}}\n",
    "own/experiment/swept.yaml": (
        "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: '1,2'}}}\n"
    ),
    "own/experiment/called.yaml": "# @package hydra.callbacks.mine\n_target_: my_package.Called\n",
    "own/hydra/more/mine.yaml": "# @package _global_\nhydra: {job: {name: added}}\n",
    "own/primary.yaml": "defaults: [config, _self_]\nseed: 8\n",
    "my_package.py": (
        "from hydra.experimental.callback import Callback\nfrom omegaconf import OmegaConf\n"
        "OmegaConf.register_new_resolver('twice', lambda x: 2 * x, replace=True)\n"
        "class Called(Callback):\n"
        "    def on_job_start(self, config, **more): print('called at the start')\n"
    ),
    "plain.py": (
        "from hydra import compose, initialize_config_module\n"
        "from hydra.utils import instantiate\n"
        "with initialize_config_module('penstock.conf'):\n"
        "    cfg = compose('config', ['dataset.count=20', 'dataset.size=48'])\n"
        "    print(type(instantiate(cfg.dataset)).__name__, len(instantiate(cfg.dataset)))\n"
    ),
}
OWN, MINE = ("--config-dir", "own"), ("--trust", "my_package")
# Words, and patterns of which each has to be found in what is printed.
SHOWN = {
    "cfg job": (("--cfg", "job", "sampler=weighted"), r"^sampler:", r"^seed: 0$", r"(?!hydra:)^\w"),
    "cfg hydra": (("--cfg", "hydra", "hydra.job.name=x"), r"^hydra:", r"^    name: x$"),
    "cfg all": (("--cfg", "all"), r"^hydra:", r"^dataset:"),
    "package": (("--cfg", "job", "--package", "batch"), r"^# @package batch\nsize: 32"),
    "resolve": (("--cfg", "job", "--resolve", "run_dir=x_${seed}"), r"^run_dir: x_0$"),
    "defaults": (("--info", "defaults"), r"dataset/synthetic_faces"),
    "hydra-help": (("--hydra-help",), r"--multirun", r"--info"),
    "completion": (("-sc", "install=bash"), r"complete|hydra_bash_completion"),
    "config-dir": ((*OWN, "--cfg", "job", "sampler=mine"), r"^sampler:\n  _target_: .*[Rr]andom"),
    "config-name": ((*OWN, "--config-name", "primary", "--cfg", "job"), r"^seed: 8$"),
    "experiment": ((*OWN, "experiment=recipe", "--cfg", "job"), r"^seed: 7$", r"^run_dir: filed$"),
    "searchpath": (
        ("hydra.searchpath=[file://own]", "sampler=mine", "--cfg", "job"),
        r"samplers.Random",
    ),
    "group of hydra's": ((*OWN, "+hydra/more=mine", "--cfg", "hydra"), r"^    name: added$"),
    "add": (("+dataset.more=1", "++seed=3", "--cfg", "job"), r"^  more: 1$", r"^seed: 3$"),
    "delete": (("~transform.train.flip", "--cfg", "job"), r"^transform:"),
    "package of a choice": (("+sampler@second=weighted", "--cfg", "job"), r"^second:\n  _target_:"),
    "run dir": (("hydra.run.dir=there", "--cfg", "job"), r"^run_dir: there$"),
    "resolver": ((*MINE, "seed=${twice:21}", "--cfg", "job", "--resolve"), r"^seed: 42$"),
    "callback": ((*OWN, *MINE, *DIGEST, "experiment=called"), r"called at the start", r"^total "),
}
SWEPT = [
    ("-m", "seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1"),
    ("-m", "seed=1,2", "hydra.searchpath=[own]", "sampler=mine"),
    (*OWN, "experiment=swept"),  # -m and the values are in a file
]
REFUSED = {
    "cfg of a sweep": (("-m", "seed=1,2", "--cfg", "job"), "several values"),
    "chdir": (("hydra.job.chdir=true",), "hydra.job.chdir: leave it out"),
    "config-path": (("--config-path", "own", "--config-name", "primary"), "--config-dir FOLDER"),
}


@pytest.fixture
def habit(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def run(*words):
        started = words if words[0].endswith(".py") else (str(ROOT / "run.py"), *words)
        options = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True, "timeout": 600}
        return warm.run([sys.executable, *started], cwd=tmp_path, capture_output=True, **options)

    return run


@pytest.mark.parametrize("name", SHOWN)
def test_it_shows(habit, name):
    words, *patterns = SHOWN[name]
    done = habit(*words)
    assert done.returncode == 0, done.stderr
    for pattern in patterns:
        assert re.search(pattern, done.stdout + done.stderr, re.M), done.stdout + done.stderr


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_way(habit, name):
    words, text = REFUSED[name]
    done = habit(*words)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert text in done.stderr


def test_the_folder_of_hydra_is_in_the_runs_and_holds_the_runs_configuration(habit, tmp_path):
    done = habit(*FIT, "hydra.output_subdir=.hydra", "++dataset.seed=3")
    assert done.returncode == 0, done.stderr
    files = [tmp_path / "run" / name for name in ("config.yaml", ".hydra/config.yaml")]
    assert len({str(yaml.safe_load(file.read_text())["dataset"]) for file in files}) == 1


@pytest.mark.parametrize("more", SWEPT, ids=str)
def test_a_sweep_ends_with_a_table(habit, tmp_path, more):
    done = habit(*SWEEP, *more)
    made = list((tmp_path / "swept").glob("*/manifest.json"))
    assert (done.returncode, len(made)) == (0, 2), done.stderr


def test_help_alone_is_what_hydra_prints(habit):
    assert habit("--help").stdout == habit("--help", "seed=0").stdout != ""


def test_a_program_of_ones_own_composes_our_groups(habit):
    assert habit("plain.py").stdout == "SyntheticFaces 16\n"
