"""`loader.backend=ray`: the same batches from actors, however many, whoever dies and whenever."""

import ctypes
import logging
import os
import re
import subprocess
import sys

import pytest
import torch

from penstock.addons.ray import cluster as ray_cluster
from penstock.addons.ray.cluster import RayOptions
from penstock.errors import PenstockError
from penstock.loading.workers.backends import WorkerError
from penstock.loading.workers.options import LoaderOptions
from tests import deaths, resuming, toy
from tests.deaths import Doom, Files, assert_told_of_row_7
from tests.program import ROOT

stress = pytest.mark.stress
folders = []  # of Rays that this file has started


@pytest.fixture(scope="module", autouse=True)
def one_ray():
    """All tests of this file share one Ray, and it leaves nothing behind."""
    before, variables = deaths.children(), dict(os.environ)
    with ray_cluster.kept():
        yield
    assert deaths.children() <= before
    assert not [folder for folder in folders if folder.exists()]
    changed = {name for name in os.environ if os.environ[name] != variables.get(name)}
    left = {name for name in changed if name.startswith("RAY")}
    assert left <= {"RAY_CLIENT_MODE", "RAY_USAGE_STATS_ENABLED"}


def on_ray(actors=2, **options):
    options = {"prefetch_factor": 2, **options}
    return LoaderOptions("ray", actors, own=RayOptions(window=0.05), **options)


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
    expected = hashes_of(case, LoaderOptions())
    assert hashes_of(case, on_ray(actors, persistent_workers=True)) == expected


@pytest.mark.thorough
def test_what_comes_behind_installed_packages_does_so_in_an_actor(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", ["/first", "/x/site-packages", str(tmp_path)])
    path = ray_cluster.environment(RayOptions())["env_vars"]
    assert path == {"PYTHONPATH": "/first", ray_cluster.LAST_ON_PATH: str(tmp_path)}
    code = "import sys, penstock.addons.ray.actor; print(sys.path[-1])"
    given = {**os.environ, **path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, check=True)
    assert done.stdout.decode().strip() == str(tmp_path)


def undisturbed(transform=None, epoch=0):
    return toy.hashes(toy.loader(transform=transform, dataset=Files()), epoch)


def said_by(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "penstock.addons.ray.pool"]


class Crash(Doom):
    """A fault in the thread that works, which a signal to the process need not hit."""

    def __call__(self, sample):
        if not list(self.folder.iterdir()) and int(sample["image"][0, 0, 1]) == self.index + 1:
            (self.folder / "crashed").touch()
            ctypes.string_at(0)
        return sample


@stress
@pytest.mark.parametrize("how", ["SIGKILL", "crash", "exit 1", "exit 0"])
def test_a_dead_actor_is_replaced_and_reported(how, tmp_path, caplog, capfd):
    caplog.set_level(logging.WARNING)
    doom = Crash(how, 7, tmp_path) if how == "crash" else Doom(how, 7, tmp_path)
    loader = toy.loader(on_ray(), doom, Files())
    with loader:
        assert toy.hashes(loader) == undisturbed()
    assert loader.stats.deaths == 1
    (text,) = said_by(caplog)
    assert re.search(r"^DataLoader worker [01] \(pid \d+\) died: ", text)
    assert_told_of_row_7(text, [one.request for one in toy.loader(dataset=Files()).epoch(0)])
    assert ("test_ray.py" in text) == (how == "crash")
    assert capfd.readouterr().out == ""  # Ray itself stays quiet


@stress
@pytest.mark.parametrize("how", ["SIGSTOP", "sleep"])
def test_an_actor_that_hangs_is_replaced_after_the_limit(how, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    with toy.loader(on_ray(timeout=5.0), Doom(how, 7, tmp_path), Files()) as loader:
        assert toy.hashes(loader) == undisturbed()
    text = next(text for text in said_by(caplog) if "at stage 'transform'" in text)
    assert "gave no sign of life for 5 s (loader.timeout) and was killed" in text
    assert "sample 7 (pictures/7.png)" in text
    assert ("deaths.py" in text) == (how == "sleep")
    assert "backends.py" not in text  # the stack is that of the work, not of how it was started


@stress
def test_an_actor_that_always_dies_ends_the_run_there(tmp_path):
    options = on_ray(max_deaths=2)
    found = []

    def through():
        with toy.loader(options, Doom("SIGKILL", 7, tmp_path, 9), Files()) as loader:
            found.extend(batch.request.step for batch in loader.epoch(0))

    with pytest.raises(WorkerError, match=r"death 2 at this address, and loader.max_deaths=2"):
        through()
    step = next(b.request for b in toy.loader(dataset=Files()).epoch(0) if 7 in b.request.indices)
    assert found == list(range(step.step))


class Large(toy.Pictures):
    def __getitem__(self, index):
        return {"image": torch.full((1 << 20,), float(index)), "name": f"{index}.png"}


@stress
def test_a_batch_is_its_consumers_to_write_into_and_to_keep():
    options = on_ray(persistent_workers=True)
    with toy.loader(options, dataset=Large(), size=4) as loader:
        kept = []
        for batch in loader.epoch(0):  # 160 MiB, more than the store of 100 may hold
            batch["image"].add_(1)
            kept.append(batch)
        again = list(loader.epoch(0))
    for batch, other in zip(kept, again, strict=True):
        assert torch.equal(batch["image"], other["image"] + 1)
        assert (batch["image"][:, 0] == torch.from_numpy(batch.indices) + 1).all()
        assert batch["name"] == [f"{index}.png" for index in batch.indices]


class Wrong:
    def __call__(self, sample):
        raise KeyError("no such column")


@stress
def test_an_error_of_a_persons_code_is_raised_in_its_turn():
    def message(options):
        with toy.loader(options, Wrong()) as loader, pytest.raises(PenstockError) as caught:
            list(loader.epoch(0))
        return type(caught.value), str(caught.value)

    told = message(on_ray())
    assert "no such column" in told[1]
    assert told == message(LoaderOptions("process", 2))


@stress
def test_an_actor_is_a_worker():
    with toy.loader(on_ray(worker_init_fn=toy.mark_dataset), toy.WorkerSeen()) as loader:
        batches = list(loader.epoch(0))
    assert {int(worker) for batch in batches for worker in batch["worker"]} <= {0, 1}
    assert all(batch["own"].all() for batch in batches)
