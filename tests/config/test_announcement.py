"""What is said of a run before anything of it is there."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.types import RunMode
from omegaconf import OmegaConf

import penstock
from penstock import command, seams
from penstock.addons.sweeps.sweep_check import of_sweep
from penstock.config import announcement, command_line_keys, outputs, preflight
from penstock.config.composition import Composer
from penstock.config.hydra_loader import CheckedConfigLoader

ROOT = Path(__file__).parents[2]


def said(*overrides, multirun=False):
    lines = []
    with outputs.naming(outputs.named(command_line_keys.typed_values(overrides))):
        preflight.run(Composer(), overrides, multirun, lines.append)
    (line,) = lines
    return line


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["run_dir=here"],
            "fit: training LandmarkNet on SyntheticFaces for 20 epochs; run folder here",
        ),
        (
            [
                "model=torchvision",
                "model.name=resnet18",
                "trainer.max_epochs=1",
                "run_dir=x",
                "trainer.max_steps=5",
            ],
            "fit: training resnet18 on SyntheticFaces for 1 epoch, 5 steps at most; run folder x",
        ),
        (
            ["experiment=sequences", "task=digest"],
            "digest: hashing the batches of SyntheticSequences",
        ),
        (
            ["task=replay", "epoch=2", "step=7", "run_dir=x"],
            "replay: making batch (2, 7) of SyntheticFaces again; run folder x",
        ),
        (["task=verify", "runs=[a,b]"], "verify: comparing a and b"),
        (["task=diff", "runs=[a,b]"], "diff: comparing a and b"),
        (
            [
                "model=small_conv_net",
                "run_dir=x",
                "dataset=image_folder",
                "dataset.root=y",
                "model={_target_: torch.nn.Linear, in_features: 2, out_features: 3}",
                "task=profile",
            ],
            "profile: timing the training of Linear on ImageFolder; run folder x",
        ),
    ],
)
def test_a_run_in_one_line(overrides, line):
    assert said(*overrides) == line


def test_every_task_has_a_line():
    config = penstock.compose()
    given = {"runs": ["a", "b"], "run": "a", "sample": 1}
    for task in seams.TASKS:
        line = announcement.of_run(config.model_copy(update={"task": task, **given}))
        assert line.startswith(f"{task}: ")
        assert "None" not in line


def test_what_came_from_the_environment_is_not_said(monkeypatch):
    monkeypatch.setenv("HOME_OF_RUNS", "/secret/place")
    assert said("run_dir=${oc.env:HOME_OF_RUNS}").endswith("run folder ${oc.env:HOME_OF_RUNS}")


@pytest.mark.thorough
def test_a_sweep_in_one_line():
    swept = ["sampler=random,weighted", "seed=1,2,3"]
    line = said(*swept, "batch.size=8", multirun=True)
    assert line == f"a sweep of 6 jobs over {' '.join(swept)}; all are checked first"
    assert of_sweep([], [1, 1]) == "a sweep of 1 job; all are checked first"


@pytest.mark.parametrize("wrong", ["batch.size=0", "sampler=wieghted", "lodaer=fast", "seed"])
def test_nothing_is_announced_of_what_cannot_begin(wrong):
    lines = []
    with pytest.raises(preflight.ConfigError):
        preflight.run(Composer(), [wrong], announce=lines.append)
    assert lines == []


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="pipes of a size are Linux's")
def test_the_first_line_does_not_wait_for_torch(tmp_path):
    """The line is longer than the pipe, so the program stands still in it while we look."""
    ours, theirs = os.pipe()
    size = fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    long = "/".join(["x" * 99] * (2 * size // 100))
    words = [sys.executable, str(ROOT / "run.py"), f"run_dir={long}"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=theirs) as child:
        os.close(theirs)
        start = os.read(ours, 29)
        maps = Path(f"/proc/{child.pid}/maps").read_text()
        child.kill()  # in the middle of its line
    os.close(ours)
    assert start == b"fit: training LandmarkNet on "
    assert "python" in maps
    assert "libtorch" not in maps
    assert not list(tmp_path.iterdir())


@pytest.fixture
def compositions(monkeypatch):
    """The overrides of every composition."""
    seen = []
    compose = ConfigLoaderImpl._load_configuration_impl

    def counted(self, config_name, overrides, *rest, **named):
        seen.append(list(overrides))
        return compose(self, config_name, overrides, *rest, **named)

    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", counted)
    return seen


def test_a_run_is_composed_once_and_goes_where_it_said(compositions, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(seams, "runner", lambda name: lambda config: ran.append(config.run_dir))
    assert command.main(["seed=3", "run_dir='${now:%f}/x'"]) == 0
    assert compositions == [["seed=3", "run_dir='${now:%f}/x'"]]
    assert capsys.readouterr().err.endswith(f"run folder {ran[0]}\n")


def test_a_look_is_composed_once(compositions, capsys):
    assert command.main(["--cfg", "job", "seed=3"]) == 0
    assert compositions == [["seed=3"]]
    assert "seed: 3 " in capsys.readouterr().out


LINES = [
    [],
    ["sampler=weighted", "batch.size=8", "~transform.train.flip"],
    ["hydra.job.name=mine", "experiment=sequences"],
    ["hydra/job_logging=stdout", "+hydra.job.env_set.OMP_NUM_THREADS=2"],
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lines", LINES)
def test_what_is_kept_is_what_hydra_would_compose(lines):
    composer = Composer()
    composer.compose(composer.parse(lines)[0])
    kept = composer.kept.config
    again = composer.loader.load_configuration("config", list(lines), RunMode.RUN)
    assert OmegaConf.to_yaml(kept) == OmegaConf.to_yaml(again)
    assert dict(flags(kept, "")) == dict(flags(again, ""))


def flags(node, key):
    """What may be done to each mapping of a configuration."""
    yield key, dict(node._metadata.flags or {})
    for name in node:
        child = node._get_node(name)
        if OmegaConf.is_dict(child) and not (child._is_none() or child._is_missing()):
            yield from flags(child, f"{key}.{name}")


def test_what_is_kept_is_checked_like_any_other():
    composer = Composer()
    composer.compose([])
    kept = composer.kept
    loader = CheckedConfigLoader(composer.loader.config_search_path, kept)
    kept.config.hydra.callbacks = {"x": {"_target_": "os.system"}}
    with pytest.raises(SystemExit) as refused:
        loader.load_configuration("config", [], RunMode.RUN)
    assert "hydra.callbacks.x._target_" in str(refused.value.__cause__)
    assert kept.take("config", [], RunMode.RUN) is None, "it is handed out once"


@pytest.mark.parametrize(
    "environment",
    [
        {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"},
        {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "PENSTOCK_RESULT": "/somewhere"},
    ],
)
def test_it_is_reported_once_for_all_ranks(environment, monkeypatch, capsys):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(seams, "runner", lambda name: lambda config: None)
    monkeypatch.setattr("penstock.distributed.launch.leave_result", lambda value: None)
    assert command.main(["distributed=ddp", "loader.pin_memory=true"]) == 0
    assert capsys.readouterr().err == ""
