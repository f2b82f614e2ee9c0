"""Who can reach a Ray that is started here, and which Ray is joined; starts none."""

import os
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from penstock.addons.ray import access as ray_access
from penstock.errors import ConfigError
from penstock.files.own_files import why_not_private
from tests import another_user


@pytest.fixture(scope="module")
def ray():
    """Imported when it is needed, as every worker of the suite collects this file."""
    return pytest.importorskip("ray")


MODES = {
    (0o755, 0o700): None,
    (0o1777, 0o700): None,
    (0o777, 0o700): "others can rename files in",
    (0o755, 0o755): "others can enter",
    (0o755, 0o710): "others can enter",
}


@pytest.mark.parametrize("modes", MODES, ids=str)
def test_a_folder_is_private_if_nobody_else_can_enter_or_replace_it(modes, tmp_path):
    folder = tmp_path / "parent" / "own"
    folder.mkdir(parents=True)
    for path, mode in zip((folder.parent, folder), modes, strict=True):
        path.chmod(mode)
    reason = why_not_private(folder)
    assert reason is None if MODES[modes] is None else MODES[modes] in reason
    link = tmp_path / "link"
    link.symlink_to(folder.parent)
    if reason is None:
        assert "is a symbolic link" in why_not_private(link / "own")
    if os.geteuid() == 0:
        os.chown(folder.parent, another_user.NOBODY, -1)
        assert why_not_private(folder) is not None


def test_ray_is_not_started_where_others_can_replace_its_folder(ray, monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        shared = Path(name)
        shared.chmod(0o777)
        monkeypatch.setattr(tempfile, "tempdir", name)
        refused = pytest.raises(ConfigError, match=r"Ray's folder has to be this user's alone, but")
        with refused, ray_access.private(ray):
            pass
        shared.chmod(0o700)
        with ray_access.private(ray) as folder:
            folder.chmod(0o777)  # as Ray does
            ray_access._require_private(folder.parent)
            folder.parent.chmod(0o777)
            with pytest.raises(ConfigError, match="others can enter"):
                ray_access.check_private(ray, folder)
        assert list(shared.iterdir()) == []
    assert dict(os.environ) == before


def raylet(address, user):
    """A process that looks like a node of Ray's until its input is closed."""
    words = ["/ray/raylet", "-c", "read ending", f"--gcs-address={address}"]
    return subprocess.Popen(words, executable="/bin/sh", stdin=subprocess.PIPE, user=user)


def of_auto(ray):
    """The address that auto means, or the message that says why there is none."""
    try:
        return ray_access.address_of(ray, "auto")
    except ConfigError as error:
        return str(error)


def test_auto_is_a_ray_of_ones_own(ray, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with raylet("10.1.2.3:6379", None):
        assert "10.1.2.3:6379" in of_auto(ray)  # with others that run here
        if os.geteuid() == 0:
            with raylet("10.6.6.6:6379", another_user.NOBODY):
                assert "10.6.6.6" not in of_auto(ray)
        with raylet("10.4.5.6:6379", None):
            assert "there are several: 10.1.2.3:6379, 10.4.5.6:6379" in of_auto(ray)
        monkeypatch.setenv("RAY_ADDRESS", "10.7.8.9:6379")
        assert of_auto(ray) == "10.7.8.9:6379"
    for address in ("ray://10.7.8.9:10001", "local", "stranger://x"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert of_auto(ray).startswith("loader.ray.address: ")


def listens(ports, ended):
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.write(ports, str(server.getsockname()[1]).encode())
        os.read(ended, 1)


@another_user.needs_root
def test_a_port_of_this_machine_that_another_user_has_is_not_joined(ray):
    (ports, write), (ended, end) = os.pipe(), os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as mine:
        address = f"localhost:{mine.getsockname()[1]}"
        assert ray_access.address_of(ray, address) == address
    thread = threading.Thread(target=another_user.does, args=(listens, write, ended))
    thread.start()
    try:
        port = int(os.read(ports, 10))
        for host in ("localhost", "127.0.0.1"):
            with pytest.raises(ConfigError, match=r"another user \(number 65534\)"):
                ray_access.address_of(ray, f"{host}:{port}")
    finally:
        os.write(end, b"x")
        thread.join()
        for one in (ports, write, ended, end):
            os.close(one)
