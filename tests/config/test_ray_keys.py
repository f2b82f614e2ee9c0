"""`loader.ray`: what is refused before anything begins; ray is imported only if asked for."""

import importlib.util
import subprocess
import sys

import pytest

from pipeline.loading.workers import ray_cluster
from pipeline.loading.workers.ray_cluster import RayOptions
from tests.program import run


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["loader.ray.address=auto"],
         "loader.ray.address: 'auto' is for Ray actors, but loader.backend=process"),
        (["loader=ray", "loader.multiprocessing_context=spawn"],
         "loader.multiprocessing_context: 'spawn' is for processes, but loader.backend=ray"),
        (["loader=ray", "loader.num_workers=0", "loader.ray.num_actors=4"],
         "loader.ray.num_actors: 4 needs actors, but loader.num_workers=0"),
        (["loader=ray", "loader.ray.num_actors=0"], "loader.ray.num_actors"),
        (["loader=ray", "loader.ray.window=0"], "loader.ray.window"),
        (["loader=ray", "loader.ray.address=ray://node:10001"],
         "loader.ray.address: ray://node:10001 is for Ray's client, through which no batches"),
    ],
)  # fmt: skip
def test_what_contradicts_ray_is_refused(faces, capsys, given, said):
    outcome = run(capsys, "task=digest", *faces, *given)
    assert outcome.code == 2
    assert said in outcome.err


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
        "import sys; from pipeline.loading.loader import Loader; import pipeline.tasks.fit, "
        "pipeline.config.contradictions; print([n for n in sys.modules if n == 'ray'])"
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
