"""`.npy` files that are written as their rows come: the same file whichever way it is written."""

import ctypes
import errno
import mmap
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.addons.packs.folder import _CLOSED, _PIECE, NpyStream, _open_direct

PIECE = _PIECE


@pytest.fixture(params=["past the cache", "no way past it", "refused when writing"])
def way(request, monkeypatch):
    """The ways in which a system may take what is written."""
    if request.param == "no way past it":
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    if request.param == "refused when writing":
        plain = os.pwrite

        def refuse(descriptor, data, place):
            if not isinstance(data, memoryview | bytes):  # the piece as a whole
                raise OSError(errno.EINVAL, "Invalid argument")
            return plain(descriptor, data, place)

        monkeypatch.setattr(os, "pwrite", refuse)


def write(path, rows, dtype, total):
    stream = NpyStream(path, dtype)
    for one in rows:
        stream.append(one)
    stream.finish((total,))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("size", [1, PIECE - 257, PIECE - 256, PIECE, 3 * PIECE + 12345])
def test_every_way_makes_the_same_file(tmp_path, size, way):
    numbers = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    rows = np.array_split(numbers, 7)
    write(tmp_path / "x.npy", rows, "|u1", size)
    assert np.array_equal(np.load(tmp_path / "x.npy"), numbers)
    assert (tmp_path / "x.npy").stat().st_size == 256 + size


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3 << 20), max_size=6), st.sampled_from(["<f4", "<i8", "|b1"]))
def test_rows_of_any_size_come_back(tmp_path_factory, counts, dtype):
    folder = tmp_path_factory.mktemp("npy")
    total = sum(counts)
    numbers = np.arange(total).astype(dtype)
    rows = np.split(numbers, np.cumsum(counts)[:-1]) if counts else []
    write(folder / "x.npy", rows, dtype, total)
    assert np.array_equal(np.load(folder / "x.npy"), numbers)
    (folder / "x.npy").unlink()


def test_a_large_file_leaves_the_cache_alone(tmp_path):
    path = tmp_path / "x.npy"
    path.touch()
    descriptor = _open_direct(path)
    if descriptor == _CLOSED:
        pytest.skip("the drive has no way past the cache")
    os.close(descriptor)
    path.write_bytes(bytes(PIECE))
    os.sync()
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached(path):
        pytest.skip("the drive is memory")
    path.unlink()
    write(path, [np.ones(PIECE, np.uint8)] * 8, "|u1", 8 * PIECE)
    assert cached(path) < PIECE
    assert np.load(path).sum() == 8 * PIECE
    assert cached(path) > 7 * PIECE


def cached(path):
    """Bytes of a file that the system has in its cache."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        found = (ctypes.c_ubyte * pages)()
        array = np.frombuffer(mapped, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        place = ctypes.c_void_p(array.ctypes.data)
        assert libc.mincore(place, ctypes.c_size_t(size), found) == 0
        del array
        return mmap.PAGESIZE * sum(one & 1 for one in found)
