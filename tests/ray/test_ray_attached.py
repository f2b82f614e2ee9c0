"""A cluster that is there already (`ray start --head`): used, and left as it was.

pytest -m stress -n 0 -s tests/ray/test_ray_attached.py
"""

import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from penstock.addons.ray import access as ray_access
from penstock.errors import ConfigError
from tests import deaths
from tests.program import run

pytestmark = pytest.mark.stress

START = (
    "start",
    "--head",
    "--port=0",
    "--num-cpus=4",
    "--include-dashboard=false",
    "--object-store-memory=300000000",
    "--disable-usage-stats",
)


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
    """The address of a cluster; `auto` is that one, whatever else runs on this machine."""
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as own,
        pytest.MonkeyPatch.context() as patch,
    ):
        token = Path(own, "token")  # in a folder of this user's, unlike ~/.ray
        token.write_text(secrets.token_hex(32))
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_AUTH_MODE", "token")
        with socket.socket() as free:
            free.bind(("", 0))
            port = f"--ray-client-server-port={free.getsockname()[1]}"
        start = [sys.executable, "-m", "ray.scripts.scripts", *START, port, f"--temp-dir={own}/r"]
        done = subprocess.run(start, capture_output=True, text=True)
        try:
            assert done.returncode == 0, done.stderr
            text = done.stdout + done.stderr
            patch.setenv("RAY_ADDRESS", text.split("--address='")[1].split("'")[0])
            yield os.environ["RAY_ADDRESS"]
        finally:
            for pid in processes_of(own):
                with suppress(ProcessLookupError):  # it ends with another one
                    os.kill(pid, signal.SIGKILL)
            assert deaths.until(lambda: not processes_of(own))


@pytest.fixture
def attached(cluster):
    import ray

    ray._raylet.Config.initialize("")  # as a new process reads it: other tests had other modes
    ray.init("auto", log_to_driver=False)
    yield ray
    ray.shutdown()


def living_actors():
    from ray._private.state import actors

    return [one["ActorClassName"] for one in actors().values() if one["State"] != "DEAD"]


def images(given):
    with penstock.build_train_loader(penstock.compose(*given)) as loader:
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


def test_none_is_joined_without_its_token(faces, capsys, cluster, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "nowhere")
    found = run(capsys, "task=digest", *faces, "loader=ray", "loader.ray.address=auto")
    assert found.code == 2
    assert f"there is no Ray to be had at '{cluster}': AuthenticationError" in found.err


def test_auto_finds_it_by_itself(cluster, monkeypatch):
    import ray

    monkeypatch.delenv("RAY_ADDRESS")
    try:
        found = ray_access.address_of(ray, "auto")
    except ConfigError as error:  # another one runs beside it
        found = str(error)
    assert cluster in found


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
    with penstock.build_train_loader(penstock.compose(*on_ray)) as loader:
        next(iter(loader))  # and left in the middle of an epoch
    assert attached.get(counter.up.remote()) == 2
    assert deaths.until(lambda: len(living_actors()) == 1)
    assert signal.getsignal(signal.SIGTERM) is before
