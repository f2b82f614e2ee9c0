"""`loader.backend=ray`: the same batches from actors, however many, whoever dies and whenever."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.addons.ray.actors import RayOptions
from penstock.errors import ConfigError
from tests.port import Options, WorkerError
from tests.support import deaths, resuming, toy
from tests.support.deaths import Doom, Files
from tests.support.program import ROOT, run

ray = pytest.importorskip("ray")
stress = pytest.mark.stress


@pytest.fixture(scope="module", autouse=True)
def one_ray():
    """All tests of this file share one Ray, which leaves no process behind."""
    before = deaths.children()
    yield
    ray.shutdown()
    assert deaths.until(lambda: deaths.children() <= before)


def on_ray(actors=2, **options):
    return Options("ray", actors, own=RayOptions(cpus_per_actor=0), **options)


def hashes_of(case, options, epochs=2):
    with case.loader(**vars(options)) as loader:
        return [toy.hashes(loader, epoch) for epoch in range(epochs)]


CASES = {
    **{name: resuming.Case(name) for name in resuming.SAMPLERS},
    "many rows": resuming.Case(dataset=resuming.ManyRows),
    **{f"stream, {name}": resuming.Case(stream=name) for name in resuming.STREAMS},
    "stream, shuffled": resuming.Case(stream="plain", buffer=8),
    "packed": resuming.Case(packed={"split": "tail"}),
}


@pytest.mark.one_in(45)
@pytest.mark.parametrize("actors", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_data_and_sampler_has_the_batches_of_one_process(name, actors):
    case = CASES[name]
    expected = hashes_of(case, Options())
    assert hashes_of(case, on_ray(actors, persistent_workers=True)) == expected


def undisturbed(transform=None):
    return toy.hashes(toy.loader(transform=transform, dataset=Files()))


@stress
@pytest.mark.parametrize("how", ["SIGKILL", "exit 0", "SIGSTOP"])
def test_a_dead_actor_is_replaced_and_reported(how, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    with toy.loader(on_ray(timeout=5.0), Doom(how, 7, tmp_path), Files()) as loader:
        assert toy.hashes(loader) == undisturbed()
    assert loader.stats.deaths == 1
    said = "made no batch for 5 s" if how == "SIGSTOP" else "died, and was started again"
    assert said in caplog.text


@stress
def test_an_actor_that_always_dies_ends_the_run_there(tmp_path):
    options = on_ray(max_deaths=2)
    found = []

    def through():
        with toy.loader(options, Doom("SIGKILL", 7, tmp_path, 9), Files()) as loader:
            found.extend(batch.request.step for batch in loader.epoch(0))

    with pytest.raises(WorkerError, match=r"died 2 times .loader.max_deaths") as caught:
        through()
    step = next(b.request for b in toy.loader(dataset=Files()).epoch(0) if 7 in b.request.indices)
    assert f"it held epoch 0, step {step.step}: samples" in str(caught.value)
    assert found == list(range(step.step))


def test_auto_needs_an_address(monkeypatch, faces, capsys):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    found = run(capsys, "task=digest", *faces, "loader=ray", "loader.ray.address=auto")
    assert found.code == 2
    assert "loader.ray.address: auto joins the Ray that RAY_ADDRESS names" in found.err


@stress
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_leaves_a_checkpoint_and_no_process(number, faces):
    """As a program: a terminal sends Ctrl-C to Ray's processes as well, a scheduler SIGTERM not."""
    words = [*faces, "loader=ray", "loader.num_workers=2", "trainer.max_epochs=10000"]
    words += ["trainer.pictures=false", "trainer.report=false", "trainer.progress=none"]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *words, "trainer.digest=true", "run_dir=run"],
        start_new_session=True,
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        digests = Path("run", "digests.jsonl")
        while process.poll() is None and not (digests.exists() and digests.stat().st_size):
            time.sleep(0.1)
        assert process.poll() is None, process.communicate()
        send = os.killpg if number == signal.SIGINT else os.kill
        send(process.pid, number)
        _, said = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 75, said
    assert "Traceback" not in said
    assert "To resume:" in said
    assert list(Path("run", "checkpoints").glob("step-*"))
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_ray_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install penstock-loader\[ray\]"):
        toy.hashes(toy.loader(on_ray()))
