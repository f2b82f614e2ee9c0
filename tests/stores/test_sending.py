"""Folders that are sent to an address arrive whole or not at all, and go on where they stopped."""

import json

import numpy as np
import pytest

from penstock.addons.stores import sending
from penstock.datasets.files import Files
from penstock.errors import ConfigError, DataError
from tests.ports import free_port
from tests.s3_server import ENVIRONMENT
from tests.support.store_server import InThread, Shelf

pytest.importorskip("s3fs")

PART = 1000
SIZES = {"a.npy": 200, "large.npy": 4700, "larger.npy": 6000, "last.json": 50}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sending, "PART", PART)
    monkeypatch.setattr(sending, "_AT_ONCE", 1)  # so that it is known what comes before what
    made = tmp_path / "made"
    made.mkdir()
    for number, (name, size) in enumerate(SIZES.items()):
        content = np.random.default_rng(number).bytes(size)
        (made / name).write_bytes(content)
    return made


def to(port, cache, address="s3://data/to", retries=4):
    options = {"endpoint_url": f"http://127.0.0.1:{port}"}
    files = Files(str(cache), retries=retries, first_wait=0.01, options=options)
    return files.remote.sending(address, "pack.out")


def send(port, folder, tmp_path, version="one", **options):
    way = to(port, tmp_path / "cache", **options)
    way.claim(version)
    way.run(folder, "last.json")


def arrived(shelf, folder):
    """Whether the address has the very files of the folder, and nothing else."""
    names = {name.removeprefix("data/to/") for name in shelf.files if name.startswith("data/to/")}
    same = all(shelf.files.get(f"data/to/{name}") == (folder / name).read_bytes() for name in SIZES)
    return same and names == {*SIZES}


@pytest.mark.parametrize("fault", [None, "busy", "reset"])
def test_what_is_sent_is_what_was_there(folder, tmp_path, fault):
    shelf = Shelf({}, faults={fault: 7} if fault else {}, wait=0.05)
    with InThread(shelf) as port:
        assert not to(port, tmp_path / "cache").has("last.json")
        send(port, folder, tmp_path)
        assert arrived(shelf, folder)
        assert to(port, tmp_path / "cache").has("last.json")
    assert not list(folder.glob(".*.json")), "notes stay after the end"


class Stopping(Shelf):
    """Refuses to be written to after so many requests that write."""

    left = 0

    def fault(self):
        self.left -= 1
        self.refuses = self.left < 0


def refused_after(left, shelf, port, folder, tmp_path):
    """Send until the store refuses, after `left` requests that write; then it takes all again."""
    shelf.left = left
    with pytest.raises(DataError, match="may not be written with the credentials"):
        send(port, folder, tmp_path)
    shelf.left, shelf.refuses = 1000, False


@pytest.mark.parametrize("left", [2, 6, 9, 15])
def test_a_second_run_continues(folder, tmp_path, left):
    shelf = Stopping({})
    with InThread(shelf) as port:
        refused_after(left, shelf, port, folder, tmp_path)
        assert "data/to/last.json" not in shelf.files
        first = shelf.requests["PUT"]
        shelf.requests.clear()
        send(port, folder, tmp_path)
        assert arrived(shelf, folder)
    # A mark, two whole files and 5 + 6 parts; the answers to the first run's last request and a
    # request that was refused are all that is done twice.
    assert first + shelf.requests["PUT"] <= 14 + 2


def test_an_upload_that_the_store_gave_up_begins_anew(folder, tmp_path):
    shelf = Stopping({})
    with InThread(shelf) as port:
        refused_after(6, shelf, port, folder, tmp_path)
        shelf.uploads.clear()
        send(port, folder, tmp_path)
        assert arrived(shelf, folder)


def test_a_changed_file_is_sent_again(folder, tmp_path):
    shelf = Stopping({})
    with InThread(shelf) as port:
        refused_after(12, shelf, port, folder, tmp_path)
        (folder / "large.npy").write_bytes(bytes(SIZES["large.npy"]))
        send(port, folder, tmp_path)
        assert arrived(shelf, folder)


def test_other_files_at_the_address_stay(folder, tmp_path):
    shelf = Shelf({"data/to/mine": b"x"})
    with InThread(shelf) as port:
        with pytest.raises(ConfigError, match=r"pack.out.*holds other files \('mine'\)"):
            send(port, folder, tmp_path)
        assert [*shelf.files] == ["data/to/mine"]
        shelf.files.clear()
        to(port, tmp_path / "cache").claim("another")
        with pytest.raises(ConfigError, match="holds other files"):
            send(port, folder, tmp_path)


def test_damaged_notes_are_forgotten(folder, tmp_path):
    shelf = Stopping({})
    with InThread(shelf) as port:
        refused_after(6, shelf, port, folder, tmp_path)
        (notes,) = folder.glob(".sending-*.json")
        sent = json.loads(notes.read_text())
        sent["uploads"]["large.npy"]["parts"] = [1, 2]
        notes.write_text(json.dumps(sent))
        send(port, folder, tmp_path)
        assert arrived(shelf, folder)


def test_stores_without_parts_get_whole_files(folder, tmp_path):
    way = to(1, tmp_path / "cache", f"memory://{tmp_path.name}/to")
    way.claim("one")
    way.run(folder, "last.json")
    files = Files(str(tmp_path / "cache"))
    for name in SIZES:
        address = f"memory://{tmp_path.name}/to/{name}"
        assert files.local(address).read_bytes() == (folder / name).read_bytes()


def test_a_web_server_is_only_read(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"pack\.out: http:// is only read"):
        to(1, tmp_path, "http://127.0.0.1:1/x")


def test_a_store_that_does_not_answer(folder, tmp_path):
    with pytest.raises(DataError, match="cannot be"):
        send(1, folder, tmp_path, retries=0)


def test_google_cloud_gets_whole_files(tmp_path, monkeypatch):
    """Against an emulator, where that is installed: `pip install gcsfs gcp-storage-emulator`."""
    pytest.importorskip("gcsfs")
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    folder = tmp_path / "pack"
    folder.mkdir()
    for name, content in {"a.npy": b"a" * 50_000, "pack.json": b"{}"}.items():
        (folder / name).write_bytes(content)

    def files():
        options = {"endpoint_url": url, "anon": True}
        return Files(cache_dir=str(tmp_path / "cache"), options=options, retries=0)

    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="data")
    server.start()
    try:
        sent = files().remote.sending("gs://data/packs", "pack.out")
        assert not sent.has("pack.json")
        sent.claim("first")
        sent.run(folder, "pack.json")
        there = files()
        names = [info.name for info in there.list("gs://data/packs")]
        assert names == ["a.npy", "pack.json"]
        for name in names:
            path = there.local(f"gs://data/packs/{name}")
            assert path.read_bytes() == (folder / name).read_bytes()
        with pytest.raises(ConfigError, match=r"holds other files \('a\.npy'\)"):
            files().remote.sending("gs://data/packs", "pack.out").claim("second")
    finally:
        server.stop()
