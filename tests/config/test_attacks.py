"""Configurations and run folders from a stranger: none of them runs or imports code.

An attack is a command line with the stranger's files. CANARY and FOLDER in its words and files
stand for a path that must not appear and for the stranger's folder. The stranger's `stranger.py`
can be imported, and makes the canary when it is. Each attack ends with exit code 2 and one message.
"""

import json
import re
import sys
from dataclasses import dataclass, field

import pytest
import yaml

from penstock import command

MESSAGE = re.compile(r"(a sweep of [^\n]*\n)?(error|\d+ errors) in the configuration: ?", re.ASCII)


@dataclass
class Attack:
    """What is typed, and what the stranger's folder holds."""

    words: list = field(default_factory=list)
    files: dict = field(default_factory=dict)


def by_parts(parts, *words):
    text = "# @package _global_\n" + yaml.safe_dump(parts)
    return Attack(
        ["--config-dir", "FOLDER", "experiment=evil", *words], {"experiment/evil.yaml": text}
    )


def by_experiment(section, *words):
    return by_parts({"hydra": section}, *words)


def by_sweep(section):
    return by_experiment(section, "-m", "seed=1,2")


def by_group(section):
    text = "# @package hydra\n" + yaml.safe_dump(section)
    return Attack(["--config-dir=FOLDER", "+hydra/more=evil"], {"hydra/more/evil.yaml": text})


def by_primary(section):
    text = yaml.safe_dump({"defaults": ["config", "_self_"], "hydra": section})
    return Attack(["--config-name", "evil", "--config-dir", "FOLDER"], {"evil.yaml": text})


def by_slurm(section):
    return by_experiment(section, "-m", "hydra/launcher=submitit_slurm", "seed=1")


def by_manifest(words):
    return Attack(["resume=FOLDER/run"], {"run/manifest.json": json.dumps({"overrides": words})})


def logs(**entries):
    return {"version": 1, "root": {"level": "INFO"}, **entries}


TOUCH = {
    "_target_": "penstock.addons.sweeps.sweep.Path.touch",
    "_args_": [{"_target_": "penstock.addons.sweeps.sweep.Path", "_args_": ["CANARY"]}],
}
LATE = "${hydra.job.env_set.${oc.select:hydra.job.num,nine}}"  # number 0 when looked at beforehand
HANDLER = {"class": "logging.StreamHandler"}
JOBLIB = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"

# What hydra's own section names, by any file.
SECTIONS = {
    "callback": {"callbacks": {"e": {"_target_": "stranger.made"}}},
    "path of ours": {"callbacks": {"e": TOUCH}},
    "module of hydra's": {
        "callbacks": {
            "e": {
                "_target_": "hydra.experimental.callbacks.logging.os.symlink",
                "src": "/",
                "dst": "CANARY",
            }
        }
    },
    "pickles": {
        "callbacks": {"e": {"_target_": "hydra.experimental.callbacks.PickleJobInfoCallback"}}
    },
    "inside of arguments": {
        "callbacks": {
            "e": {"_target_": "hydra.experimental.callbacks.LogJobReturnCallback", "x": TOUCH}
        }
    },
    "target of an interpolation": {"callbacks": {"e": {"_target_": "${oc.decode:stranger.made}"}}},
    "target that comes later": {
        "job": {"env_set": {"0": "logging.NullHandler", "nine": "stranger.made"}},
        "callbacks": {"e": {"_target_": LATE}},
    },
    "node of an interpolation": {"callbacks": '${oc.create:"{e: {_target_: stranger.made}}"}'},
    "handler": {"job_logging": logs(handlers={"x": {"class": "stranger.made"}})},
    "factory": {"job_logging": logs(handlers={"x": {"()": "stranger.made"}})},
    "formatter": {"hydra_logging": logs(formatters={"x": {"()": "stranger.made"}})},
    "stream": {"job_logging": logs(handlers={"x": {**HANDLER, "stream": "ext://stranger.made"}})},
    "library": {"job": {"env_set": {"LD_PRELOAD": "FOLDER/x.so"}}},
    "modules": {"job": {"env_set": {"PYTHONPATH": "FOLDER"}}},
    "settings of git": {"job": {"env_set": {"GIT_CONFIG_GLOBAL": "FOLDER/.gitconfig"}}},
    "trust": {"job": {"env_set": {"PENSTOCK_TRUST": "stranger"}}},
    "search path": {"searchpath": ["structured://stranger"]},
    "package in the search path": {"searchpath": ["pkg://stranger"]},
}
SWEEPS = {
    "launcher": {"launcher": {"_target_": "stranger.made"}},
    "inside of a launcher": {"launcher": {"_target_": JOBLIB, "n_jobs": 1, "temp_folder": TOUCH}},
    "sweeper": {"sweeper": {"_target_": "stranger.made"}},
    "search path of jobs": {"sweeper": {"params": {"hydra.searchpath": "[structured://stranger]"}}},
    "callback of jobs": {"sweeper": {"params": {"+hydra.callbacks.e": "{_target_:stranger.made}"}}},
    "options of jobs": {"sweeper": {"params": {"--trust": "stranger"}}},
}
SCRIPTS = {
    "lines for bash": {"launcher": {"setup": ["touch CANARY"]}},
    "words for srun": {"launcher": {"srun_args": ["--task-prolog=FOLDER/git"]}},
    "name of a job": {"job": {"name": "x\\'\"\ntouch CANARY\n#"}},
    "partition": {"launcher": {"partition": "x\ntouch CANARY\n#"}},
}
# Words of a run's manifest.
WORDS = {
    "folder of groups": ["--config-dir=FOLDER", "experiment=evil"],
    "package of configurations": ["--config-path=pkg://stranger"],
    "pickle": ["--experimental-rerun=FOLDER/config.pickle"],
    "trust": ["--trust=stranger"],
    "group of hydra's": ["+hydra/more=evil"],
    "group into hydra's section": ["+experiment@hydra=evil"],
    "experiment elsewhere": ["experiment='FOLDER/other'"],
}
TYPED = {
    "path of a package": ["--config-path", "pkg://stranger"],
    "search path": ["hydra.searchpath=[structured://stranger]"],
    "search path, shown": ["hydra.searchpath=[structured://stranger]", "--cfg", "job"],
    "search path, help": ["hydra.searchpath=[pkg://stranger]", "--help"],
    "pickle": ["--experimental-rerun=FOLDER/config.pickle"],
    "trusted pickles": ["--trust", "torch"],
    "another Ray": ["loader=ray", "loader.ray.address=evil.example:6379"],
}
# Nodes of a run.
NODES = {
    "a stranger's": {"dataset": {"_target_": "stranger.made"}},
    "pickle": {"model": {"_target_": "torch.load", "f": "x"}},
    "program": {
        "transform": {"train": {"x": {"_target_": "os.system", "command": "touch CANARY"}}}
    },
    "way through a module": {"model": {"_target_": "torch.nn.functional.torch.load", "f": "x"}},
    "function of ours": {"model": {"_target_": "penstock.files.disk.Path", "_args_": ["x"]}},
    "inside of arguments": {"sampler": {"weights": {"_target_": "stranger.made"}}},
    "interpolation": {"model": {"_target_": "${oc.decode:stranger.made}"}},
    "worker's function": {"loader": {"worker_init_fn": "stranger.made"}},
    "object of YAML": {"seed": "!!python/object/apply:stranger.made []"},
}


def attacks():
    """Every attack by its name."""
    for place, (name, section) in enumerate(SECTIONS.items()):
        yield f"{name}, by an experiment", by_experiment(section)
        way = (by_group, by_primary)[place % 2]
        yield f"{name}, {way.__name__}", way(section)
    for name, section in SWEEPS.items():
        yield f"sweep: {name}", by_sweep(section)
    for name, section in SCRIPTS.items():
        yield f"script: {name}", by_slurm(section)
    evil = by_experiment(SECTIONS["path of ours"]).files
    for name, words in WORDS.items():
        attack = by_manifest(words)
        files = {**evil, "other.yaml": evil["experiment/evil.yaml"], **attack.files}
        yield f"by_manifest: {name}", Attack(attack.words, files)
    for name, words in TYPED.items():
        yield f"typed: {name}", Attack(words)
    for name, parts in NODES.items():
        attack = by_parts(parts)
        text = attack.files["experiment/evil.yaml"].replace("'!!python", "!!python")
        yield (
            f"node: {name}",
            Attack(attack.words, {"experiment/evil.yaml": text.replace("[]'", "[]")}),
        )


ATTACKS = dict(attacks())


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """Runs an attack in an empty folder; gives the exit code."""
    folder, here = tmp_path / "stranger", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    canary = tmp_path / "canary"
    (folder / "stranger.py").write_text(f"open({str(canary)!r}, 'w')\nmade = dict\n")
    (folder / "git").write_text(f"#!/bin/sh\ntouch {canary}\n")
    (folder / "git").chmod(0o755)
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("PENSTOCK_TRUST", "HYDRA_FULL_ERROR", "PENSTOCK_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)

    def filled(text):
        return text.replace("CANARY", str(canary)).replace("FOLDER", str(folder))

    def run(attack):
        for name, text in attack.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(filled(text))
        return command.main([filled(word) for word in attack.words])

    run.canary, run.here = canary, here
    yield run
    sys.modules.pop("stranger", None)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_of_a_strangers_runs(name, stranger, capsys):
    code = stranger(ATTACKS[name])
    out, err = capsys.readouterr()
    assert not stranger.canary.exists(), "the stranger's code ran"
    assert not stranger.canary.is_symlink(), "the stranger's code ran"
    assert list(stranger.here.iterdir()) == []
    assert code == 2, out + err
    assert "Traceback" not in err
    assert sum(bool(MESSAGE.match(line)) for line in err.splitlines()) == 1, err


GOOD = {
    "launcher of a plugin": ["-m", "seed=1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1"],
    "callback of a person's own": [
        "--trust=tests",
        "+hydra.callbacks.x._target_=tests.own_parts.Seen",
        "+hydra.callbacks.x.folder=${hydra.sweep.dir}",
    ],
    "handler of rich's": [
        "+hydra.job_logging.handlers={x:{class:rich.logging.RichHandler}}",
        "hydra.job_logging.root={handlers:[x]}",
    ],
    "threads": ["+hydra.job.env_set.OMP_NUM_THREADS=2"],
    "folder of groups": ["hydra.searchpath=[FOLDER]"],
    "package of groups": ["--trust=tests", "hydra.searchpath=[pkg://tests]"],
    "folders by name": ["-m", "seed=1", "hydra.sweep.subdir=${hydra.job.override_dirname}"],
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", GOOD)
def test_what_people_do_keeps_working(name, stranger, capsys):
    words = ["task=digest", "steps=1", "loader.num_workers=0", "dataset.size=64"]
    assert stranger(Attack([*words, *GOOD[name]])) == 0, capsys.readouterr().err
