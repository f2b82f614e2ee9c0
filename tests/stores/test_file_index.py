"""A folder's own index takes the place of a web server's listing, and of a HEAD for each file."""

import os
from pathlib import Path

import pytest

from penstock.addons.stores import file_index
from penstock.datasets.files import Files
from penstock.datasets.image_folder import ImageFolder
from penstock.errors import DataError
from penstock.files.limits import Limits
from tests.support.store_server import InThread, Shelf

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
        with pytest.raises(DataError, match="has changed since the index of its folder was writ"):
            at.read(name.removeprefix("data/"), lambda path, _: path)


def test_parts_of_files_in_an_index_are_of_one_version(tmp_path, folder):
    """The server has no checksums: what it says of a file first is what it has to say later."""
    shelf = served(folder)
    shelf.tags = False
    name = "data/a (1)/6 é%.jpg"
    with InThread(shelf) as port:
        files = files_in(tmp_path)
        root = f"http://127.0.0.1:{port}"
        files.remote.folder(f"{root}/data").files()

        def part(start, end):
            address = files.remote.part(f"{root}/{name}", start, end)
            return files.read(address, lambda path: Path(path).read_bytes())

        assert part(0, 10) == shelf.files[name][:10]
        shelf.modified = "Mon, 23 Nov 2026 12:00:00 GMT"
        with pytest.raises(DataError, match="has changed since this run began"):
            part(10, 20)
        assert part(0, 10) == shelf.files[name][:10]
    shelf.files[name] += b"more"
    with InThread(shelf) as port:
        files, root = files_in(tmp_path), f"http://127.0.0.1:{port}"
        files.remote.folder(f"{root}/data").files()
        with pytest.raises(DataError, match=r"it had 106 bytes .* and has 110"):
            part(0, 10)


def test_a_file_in_an_index_that_came_damaged_is_fetched_again(tmp_path, folder):
    shelf = served(folder)
    shelf.faults = {"short": 2, "reset": 3}
    with InThread(shelf) as port:
        root = f"http://127.0.0.1:{port}/data"
        files = Files(cache_dir=str(tmp_path / "cache"), retries=8, first_wait=0.01)
        for name in ImageFolder(root, files=files).names.tolist():
            content = files.local(f"{root}/{name.decode()}").read_bytes()
            assert content == (folder / name.decode()).read_bytes()


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


def test_a_folder_that_is_not_there_is_named(folder):
    with pytest.raises(DataError, match="is not a folder"):
        file_index.write(folder / "nowhere")
