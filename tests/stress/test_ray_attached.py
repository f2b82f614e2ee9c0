"""A cluster that is there already (`ray start --head`): used, and left as it was.

pytest -m stress -n 0 -s tests/stress/test_ray_attached.py
"""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

import pipeline
from tests import deaths
from tests.program import run

pytestmark = pytest.mark.stress

START = ("start", "--head", "--port=0", "--num-cpus=4",
         "--include-dashboard=false", "--object-store-memory=300000000",
         "--disable-usage-stats")  # fmt: skip


def processes_of(folder):
    """Pids of what has the folder of Ray's session in its command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.fsencode(folder) in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


@pytest.fixture(scope="module")
def cluster():
    """A cluster of its own, in which `auto` is that one, whatever else runs on this machine."""
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as own,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_AUTH_MODE", "token")  # which Ray assumes of what it finds itself only
        with socket.socket() as free:
            free.bind(("", 0))
            port = f"--ray-client-server-port={free.getsockname()[1]}"
        start = [sys.executable, "-m", "ray.scripts.scripts", *START, port, f"--temp-dir={own}"]
        done = subprocess.run(start, capture_output=True, text=True)
        try:
            assert done.returncode == 0, done.stderr
            text = done.stdout + done.stderr
            patch.setenv("RAY_ADDRESS", text.split("--address='")[1].split("'")[0])
            yield
        finally:
            for pid in processes_of(own):
                with suppress(ProcessLookupError):  # it ends with another one
                    os.kill(pid, signal.SIGKILL)
            assert deaths.until(lambda: not processes_of(own))


@pytest.fixture
def attached(cluster):
    import ray

    ray.init("auto", log_to_driver=False)
    yield ray
    ray.shutdown()


def living_actors():
    from ray._private.state import actors

    return [one["ActorClassName"] for one in actors().values() if one["State"] != "DEAD"]


def images(given):
    with pipeline.build_train_loader(pipeline.compose(*given)) as loader:
        return [
            hashlib.blake2b(batch["image"].numpy().tobytes()).hexdigest()
            for epoch in range(2)
            for batch in loader.epoch(epoch)
        ]


def test_a_command_makes_the_batches_of_one_process_and_leaves_no_actor(faces, capsys, cluster):
    given = ["task=digest", *faces, "trainer.max_epochs=2"]
    expected = run(capsys, *given, "loader=debug")
    found = run(capsys, *given, "loader=ray", "loader.ray.address=auto", "loader.ray.num_actors=2")
    assert (found.code, found.out) == (0, expected.out), found.err
    import ray

    assert not ray.is_initialized()
    ray.init("auto", log_to_driver=False)
    assert deaths.until(lambda: not living_actors())
    assert deaths.until(lambda: ray.available_resources()["CPU"] == 4)
    ray.shutdown()


def test_a_program_keeps_its_ray(faces, attached):
    given = ["dataset=synthetic_faces", *faces]

    class Counter:
        n = 0

        def up(self):
            self.n += 1
            return self.n

    before = signal.getsignal(signal.SIGTERM)
    counter = attached.remote(Counter).remote()
    assert attached.get(counter.up.remote()) == 1
    expected = images([*given, "loader=debug"])
    on_ray = [*given, "loader=ray", "loader.num_workers=2"]
    assert images(on_ray) == expected
    with pipeline.build_train_loader(pipeline.compose(*on_ray)) as loader:
        next(iter(loader))  # and left in the middle of an epoch
    assert attached.get(counter.up.remote()) == 2
    assert deaths.until(lambda: len(living_actors()) == 1)
    assert signal.getsignal(signal.SIGTERM) is before
