"""Single files and tar streams where things go wrong: exact batches or one message."""

import errno
import io
import os
import tarfile

import numpy as np
import pytest
from PIL import Image

from penstock.addons.shards.tar_shards import TarShards
from penstock.datasets.files import Files
from penstock.datasets.image_folder import ImageFolder
from penstock.errors import DataError
from tests import epochs
from tests.support.store_server import FAULTS, InThread, Shelf

pytest.importorskip("aiohttp")

EACH = 8  # pictures of a class, samples of an archive


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("data")
    (made / "tars").mkdir()
    for number, name in enumerate("ab"):
        (made / "files" / name).mkdir(parents=True)
        with tarfile.open(made / "tars" / f"{name}.tar", "w") as archive:
            for row in range(EACH):
                pixels = np.random.default_rng(100 * number + row).integers(0, 255, (8, 8, 3))
                path = made / "files" / name / f"{row:02}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(path)
                for ending, content in (("png", path.read_bytes()), ("cls", b"%d" % number)):
                    member = tarfile.TarInfo(f"{name}{row}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return made


def opened(kind, root, cache, timeout=30):
    files = Files(cache_dir=str(cache), retries=6, first_wait=0.01, timeout=timeout)
    if kind == "files":
        return ImageFolder(f"{root}/files", val_fraction=0.0, files=files)
    return TarShards(f"{root}/tars", val_fraction=0.0, files=files)


def digests(data, **workers):
    return epochs.digests(data, 5, 2, buffer=10, **workers)


def served(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    files = {f"data/{path.relative_to(folder)}": path.read_bytes() for path in paths}
    return Shelf(files, wait=0.05)


@pytest.mark.parametrize("kind", ["files", "tars"])
def test_batches_are_exact_or_there_is_one_message(folder, tmp_path, kind):
    expected = digests(opened(kind, folder, tmp_path))
    shelf = served(folder)
    count = 2 * EACH if kind == "files" else 2
    with InThread(shelf) as port:
        root = f"http://127.0.0.1:{port}/data"
        for fault in (None, *FAULTS):
            shelf.faults = {}
            waits = fault in ("stall", "short")  # for what does not come
            data = opened(kind, root, tmp_path / str(fault), timeout=0.5 if waits else 30)
            cached = count if kind == "tars" else 0  # its first sample was looked at
            expires = fault == "expired" and kind == "files"
            shelf.faults = {fault: 1 if expires else 3} if fault else {}
            shelf.requests.clear()
            shelf.gets = 0
            if expires:
                with pytest.raises(DataError, match="HTTP 400 Bad Request"):
                    digests(data)
            else:
                assert digests(data) == expected, fault
            # One in three fails, and is asked again; the least, where nothing fails. A busy machine
            # may take half a second for one that does not fail.
            most = count if fault is None else 7 * count if waits else 2 * count + 2
            assert shelf.requests["GET"] <= most + cached, fault
            assert shelf.requests["HEAD"] <= most, fault


@pytest.mark.parametrize("kind", ["files", "tars"])
def test_a_full_disk_is_one_message_and_no_storm(folder, tmp_path, kind, monkeypatch):
    shelf = served(folder)
    pwrite = os.pwrite

    def full(descriptor, content, offset):
        if len(content) > 100:  # what is kept beside the files is smaller, and may still fit
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, content, offset)

    with InThread(shelf) as port:
        root = f"http://127.0.0.1:{port}/data"
        data = opened("files", root, tmp_path / "a") if kind == "files" else None
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            with pytest.raises(
                DataError,
                match=r"No space left on device.*Make room.*files\.cache_size",
            ):
                digests(data or opened("tars", root, tmp_path / "b"))
        assert shelf.requests["GET"] <= 2 * EACH + 2  # what is looked ahead at, once each
        again = opened(kind, root, tmp_path / ("a" if kind == "files" else "b"))
        assert digests(again) == digests(opened(kind, folder, tmp_path)), "there is room again"
