"""Tasks with `loader.backend=ray`: the output of one process, byte by byte, and an end in order."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock import command
from penstock.addons.packs.folder import is_pack
from penstock.addons.ray import cluster as ray_cluster
from penstock.addons.ray import pool as ray_backend
from penstock.addons.ray.pool import RayPool
from penstock.build.data import DataParts
from penstock.config import compose
from tests import broken_images, deaths

pytestmark = pytest.mark.stress
ROOT = Path(__file__).parents[2]
RAY = ["loader=ray", "loader.num_workers=2", "loader.ray.window=0.05"]


@pytest.fixture(scope="module")
def one_ray():
    """Tests that run in this process share one Ray, which leaves nothing behind."""
    before = deaths.children()
    with ray_cluster.kept():
        yield
    assert deaths.children() <= before


def contents(folder):
    """What lies below a folder of packs, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and is_pack(path.parent)
    }


@pytest.fixture
def pools(one_ray, monkeypatch):
    """The pools of actors that the test has started."""
    found = []

    def pool(*given):
        found.append(RayPool(*given))
        return found[-1]

    monkeypatch.setattr(ray_backend, "RayPool", pool)
    return found


@pytest.mark.parametrize("form", ["pixels", "encoded"])
def test_packs_are_the_same(form, pools, tmp_path, capsys):
    broken_images.write_images(tmp_path / "images", 45, 32)
    words = [
        "task=pack",
        "split=both",
        "dataset=image_folder",
        f"pack.format={form}",
        f"dataset.root={tmp_path / 'images'}",
        f"pack.size={'null' if form == 'encoded' else 24}",
    ]
    for name, more in {"main": ["loader=debug"], "ray": RAY}.items():
        assert command.main([*words, *more, f"pack.out={tmp_path / name}"]) == 0
    assert "pickled" not in capsys.readouterr().err
    assert len(pools) == 2
    made = contents(tmp_path / "ray")
    assert len(made) > 6
    assert made == contents(tmp_path / "main")


def test_a_check_finds_the_same(pools, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    images = broken_images.write_images(tmp_path / "images", 45, 32)
    for path, way in zip(images[::7], broken_images.WAYS, strict=False):
        way(path)
    words = ["task=check", "dataset=image_folder", "batch.size=4"]
    words.append(f"dataset.root={tmp_path / 'images'}")  # Ray was started in another folder
    outputs = []
    for name, more in {"main": ["loader=debug"], "ray": RAY}.items():
        assert command.main([*words, *more, f"run_dir={name}"]) == 3
        outputs.append((capsys.readouterr().out, Path(name, "quarantine.csv").read_bytes()))
    assert len(pools) == 2
    assert outputs[0] == outputs[1]
    assert outputs[0][0].count("images/") >= 4


def test_statistics_are_the_same_to_the_bit(faces, pools):
    found = []
    for name, more in {"main": ["loader=debug"], "ray": RAY}.items():
        config = compose.compose(
            *faces,
            *more,
            "transform=faces",
            "transform.train.normalize.statistics=dataset",
            f"cache_dir={name}",
        )
        found.append(
            DataParts(config).with_statistics({**config.transform.train["normalize"]})["statistics"]
        )
        (kept,) = Path(name, "statistics").iterdir()
        found[-1] = found[-1], kept.read_bytes()
    assert len(pools) == 1
    assert found[0] == found[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_leaves_a_checkpoint_and_nothing_else(number, faces):
    """As a program: a terminal sends Ctrl-C to Ray's processes as well, a scheduler SIGTERM not."""
    words = [
        *faces,
        *RAY,
        "trainer.max_epochs=10000",
        "trainer.pictures=false",
        "tracker=none",
        "trainer.report=false",
        "trainer.progress=none",
        "trainer.digest=true",
        "run_dir=run",
    ]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *words],
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
        _, said = process.communicate(timeout=60)
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
