"""`loader.ray`: what is refused before anything begins; ray is imported only if asked for."""

import importlib.util
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from penstock import seams
from penstock.addons.ray import cluster as ray_cluster
from penstock.addons.ray.cluster import RayOptions
from penstock.config import preflight
from penstock.errors import ConfigError
from penstock.runs import resumption
from tests.program import run


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["loader.ray.address=auto"],
            "loader.ray.address: 'auto' is for Ray actors, but loader.backend=process",
        ),
        (
            ["loader=ray", "loader.multiprocessing_context=spawn"],
            "loader.multiprocessing_context: 'spawn' is for processes, but loader.backend=ray",
        ),
        (
            ["loader=ray", "loader.num_workers=0", "loader.ray.num_actors=4"],
            "loader.ray.num_actors: 4 needs actors, but loader.num_workers=0",
        ),
        (["loader=ray", "loader.ray.num_actors=0"], "loader.ray.num_actors"),
        (["loader=ray", "loader.ray.window=0"], "loader.ray.window"),
        (
            ["loader=ray", "loader.ray.address=ray://node:10001"],
            "loader.ray.address: ray://node:10001 is for Ray's client, through which no batches",
        ),
        (["loader=ray", "loader.ray.window=inf"], "loader.ray.window: got inf"),
        (["loader=ray", "loader.ray.cpus_per_actor=1e30"], "loader.ray.cpus_per_actor: got 1e+30"),
        (
            ["loader=ray", "+loader.ray.resources.x=0"],
            "loader.ray.resources.x: got 0, expected a name of letters, digits and . : _ - with a",
        ),
        (["loader=ray", "+loader.ray.resources={x\\,CPU:1}"], "loader.ray.resources.x,CPU: got 1"),
    ],
)
def test_what_contradicts_ray_is_refused(faces, capsys, given, said):
    outcome = run(capsys, "task=digest", *faces, *given)
    assert outcome.code == 2
    assert said in outcome.err


HERE = ["auto", "localhost:6379", "127.0.0.1:6379", "'[::1]:6379'"]
ELSEWHERE = [
    "evil.example:6379",
    "10.0.0.1:6379",
    "127.0.0.1.evil.example:6379",
    "'[2001:db8::1]:6379'",
    "0.0.0.0:6379",
    "localhost.evil.example:6379",
]
NOWHERE = [
    "local",
    "evil.example",
    "stranger://x",
    "http://localhost:6379",
    "localhost:6379/x",
    "'user@evil.example:6379'",
    "':6379'",
    "'localhost:1,evil.example:1'",
]


@pytest.mark.one_in(9)
@pytest.mark.parametrize("address", [*HERE, *ELSEWHERE, *NOWHERE])
def test_a_strangers_ray_is_not_joined(address, faces, capsys, monkeypatch):
    monkeypatch.delenv("PENSTOCK_ALLOW_ENDPOINT", raising=False)
    configs = []
    monkeypatch.setattr(seams, "runner", lambda name: configs.append)
    given = ["task=digest", *faces, "loader=ray", f"loader.ray.address={address}"]
    outcome = run(capsys, *given)
    assert (outcome.code, len(configs)) == ((0, 1) if address in HERE else (2, 0)), outcome.err
    if address in NOWHERE:
        assert "expected auto or host:port" in outcome.err
    if address in ELSEWHERE:
        server = address.strip("'")
        assert f"--allow-endpoint {server}" in outcome.err
        outcome = run(capsys, *given, "--allow-endpoint", server)
        assert outcome.code == 0, outcome.err
        assert f"notice: batches come from the Ray at {server} (loader.ray.address)" in outcome.err


@pytest.mark.thorough
def test_a_person_types_what_actors_are_started_with(faces, capsys, monkeypatch):
    configs = []
    monkeypatch.setattr(seams, "runner", lambda name: configs.append)
    (Path.cwd() / "mine").mkdir()
    given = ["task=digest", *faces, "loader=ray", "--trust", "mine"]
    found = {
        "working_dir": ".",
        "py_modules": ["mine"],
        "excludes": ["*.ckpt"],
        "env_vars": {"OMP_NUM_THREADS": 1},
    }
    words = "working_dir:.,py_modules:[mine],excludes:['*.ckpt'],env_vars:{OMP_NUM_THREADS:1}"
    for typed in (
        [f"+loader.ray.runtime_env={{{words}}}"],
        [f"++loader.ray={{runtime_env:{{{words}}}}}"],
        [f"+loader.ray.runtime_env={{{words},x:1}}", "~loader.ray.runtime_env.x"],
        [
            "+loader.ray.runtime_env.working_dir=.",
            "+loader.ray.runtime_env.py_modules=[mine]",
            "+loader.ray.runtime_env.excludes=['*.ckpt']",
            "+loader.ray.runtime_env.env_vars.OMP_NUM_THREADS=1",
        ],
    ):
        outcome = run(capsys, *given, *typed)
        assert outcome.code == 0, outcome.err
        assert configs.pop().loader.ray.runtime_env == found
    sweep = ["-m", "seed=1,2", "hydra.sweep.dir=sweep"]
    assert run(capsys, *given, *sweep, f"+loader.ray.runtime_env={{{words}}}").code == 0
    assert [config.loader.ray.runtime_env for config in configs] == [found] * 2


RESUMED = {
    "the same": ["+loader.ray.runtime_env={working_dir:.}"],
    "a part of it": ["+loader.ray.runtime_env.working_dir=."],
    "nothing": ["loader.ray.runtime_env={}"],
}


@pytest.mark.parametrize("anew", RESUMED)
def test_who_resumes_a_run_types_it_again(anew, tmp_path):
    words = ["seed=3", "loader=ray", "+loader.ray.runtime_env={working_dir:.}"]
    (tmp_path / "manifest.json").write_text(json.dumps({"overrides": words}))
    with pytest.raises(ConfigError) as caught:
        resumption.with_overrides_of_run([f"resume={tmp_path}"])
    assert [problem.key for problem in caught.value.problems] == ["loader.ray.runtime_env"]
    assert "Type it again if it is yours, '+loader.ray.runtime_env={...}'" in str(caught.value)
    typed = [f"resume={tmp_path}", *RESUMED[anew]]
    assert resumption.with_overrides_of_run(typed) == [*words[:2], *typed]


def test_what_a_run_was_started_with_is_not_taken_from_its_configuration(faces):
    config = preflight.compose("dataset=synthetic_faces", *faces, "loader=ray").plain()
    config["loader"]["ray"]["runtime_env"] = {"py_executable": "touch CANARY; python"}
    assert preflight.stored(config).loader.ray.runtime_env == {}
    assert config["loader"]["ray"]["runtime_env"]


@pytest.mark.parametrize("version", ["2.9.3", "2.51.2"])
def test_a_ray_without_tokens_is_too_old(version, faces, capsys, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    outcome = run(capsys, "task=digest", *faces, "loader=ray")
    assert outcome.code == 2
    assert f"loader.backend: Ray {version} lets everybody in" in outcome.err


def test_without_ray_a_message_says_what_to_install(faces, capsys, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else there(name)
    )
    outcome = run(capsys, "task=digest", *faces, "loader=ray")
    assert outcome.code == 2
    assert "loader.backend: ray needs the package ray, which is not installed: " in outcome.err
    assert "pip install penstock-loader[ray]" in outcome.err


@pytest.mark.stress
def test_ray_is_not_imported_unless_it_is_asked_for():
    program = (
        "import sys; from penstock.loading.loader import Loader; import penstock.tasks.fit, "
        "penstock.config.contradictions; print([n for n in sys.modules if n == 'ray'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_actors_find_the_programs_own_folders_and_what_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    given = {"env_vars": {"PYTHONPATH": "/mine", "X": "1"}, "pip": ["a"]}
    told = ray_cluster.environment(RayOptions(runtime_env=given))
    path = told["env_vars"]["PYTHONPATH"].split(":")
    assert path[0] == "/mine"
    assert str(tmp_path) in path
    assert not [entry for entry in path if entry.endswith("site-packages")]
    assert (told["env_vars"]["X"], told["pip"]) == ("1", ["a"])
    assert given["env_vars"]["PYTHONPATH"] == "/mine"
