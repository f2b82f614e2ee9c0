"""A folder's own index takes the place of a web server's listing, and of a HEAD for each file."""

import os

import pytest

from benchmarks.store_server import InThread, Shelf
from penstock.addons.stores import file_index
from penstock.datasets.files import Files
from penstock.datasets.image_folder import ImageFolder
from penstock.errors import DataError, PenstockError
from penstock.files.limits import Limits

pytest.importorskip("aiohttp")


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "made"
    for number in range(8):
        path = root / f"{'ab'[number % 2]} (1)/{number} é%.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(100 + number))
    file_index.write(root)
    return root


def served(root):
    paths = [path for path in root.rglob("*") if path.is_file()]
    return Shelf({f"data/{path.relative_to(root)}": path.read_bytes() for path in paths})


def files_in(tmp_path, **more):
    return Files(cache_dir=str(tmp_path / "cache"), retries=2, first_wait=0.01, **more)


def test_one_get_takes_the_place_of_the_listing_and_of_all_heads(tmp_path, folder):
    shelf = served(folder)
    with InThread(shelf) as port:
        root = f"http://127.0.0.1:{port}/data"
        remote = ImageFolder(root, files=files_in(tmp_path))
        assert remote.fingerprint == ImageFolder(str(folder), files=Files()).fingerprint
        assert len(list(remote.data_files())) == len(remote)
        assert shelf.requests == {"GET": 1}
        files = files_in(tmp_path)
        for name in remote.names.tolist():
            content = files.local(f"{root}/{name.decode()}").read_bytes()
            assert content == (folder / name.decode()).read_bytes()


def test_a_file_that_is_not_what_its_index_says_is_one_message(tmp_path, folder):
    shelf = served(folder)
    (name, *_) = [name for name in shelf.files if name.endswith(".jpg")]
    shelf.files[name] = bytes(len(shelf.files[name]))
    with InThread(shelf) as port:
        files = files_in(tmp_path)
        at = files.remote.folder(f"http://127.0.0.1:{port}/data")
        assert len(at.files()) == 8
        with pytest.raises(DataError, match="has changed since this run began"):
            at.read(name.removeprefix("data/"), lambda path, _: path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"penstock files 1\n12 nothing a.jpg\n", "line 2 is not a size, an MD5"),
        (b"penstock files 1\n12 " + b"0" * 32 + b" a/%2e%2e/b.jpg\n", "line 2 is not"),
        (b"penstock files 1\n" + (b"12 " + b"0" * 32 + b" a.jpg\n") * 5, "5 files"),
        (b"<html>Not found</html>", None),
    ],
)
def test_a_bad_index_is_one_message_and_another_page_is_none(tmp_path, folder, content, reason):
    shelf = served(folder)
    shelf.files["data/penstock-files.index"] = content
    with InThread(shelf) as port:
        address = f"http://127.0.0.1:{port}/data"
        limits = Limits(files=4) if reason == "5 files" else Limits()
        remote = files_in(tmp_path, limits=limits).remote.folder(address)
        if reason is None:
            assert len(remote.files()) == 9
            assert shelf.requests["HEAD"] == 9
        else:
            with pytest.raises(DataError, match=reason):
                remote.files()


def test_somebody_elses_file_is_left_alone(folder):
    (folder / file_index.NAME).write_text("mine\n")
    with pytest.raises(PenstockError, match="has not made it"):
        file_index.write(folder)
    with pytest.raises(DataError, match="is not a folder"):
        file_index.write(folder / "nowhere")
