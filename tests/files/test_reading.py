"""Addresses, limits, arrays and folders: what is read at all, and what is refused before it is."""

import io
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import ValidationError

from penstock.files import addresses, plain_json
from penstock.files.batch_bytes import (
    BatchTooLargeError,
    bounded,
    discarded,
    has_room,
    reserve,
    temporary,
)
from penstock.files.limits import Limits
from penstock.files.npy import map_npy
from penstock.files.own_files import NotOwnError, own_folder
from penstock.files.plain_json import JsonError
from penstock.files.regular_file import TooLargeError, read_bounded

is_root = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.mark.parametrize(
    ("address", "scheme", "remote", "local"),
    [
        ("data/x", None, False, "data/x"),
        ("/data/s3://x", None, False, "/data/s3://x"),
        ("c:/data", None, False, "c:/data"),
        ("file:///data/x", "file", False, "/data/x"),
        ("FILE:///data/x", "file", False, "/data/x"),
        ("S3://bucket/x", "s3", True, "S3://bucket/x"),
        ("git+https://host/x", "git+https", True, "git+https://host/x"),
    ],
)
def test_addresses_and_paths(address, scheme, remote, local):
    assert addresses.scheme_of(address) == scheme
    assert addresses.is_remote(address) is remote
    assert addresses.local_path(address) == local


def test_names_are_quoted_where_they_are_part_of_a_url():
    assert addresses.join("https://host/data/", "a b#1.png") == "https://host/data/a%20b%231.png"
    assert addresses.join("s3://bucket/data", "a b#1.png") == "s3://bucket/data/a b#1.png"
    assert addresses.join("/data//", "a b") == "/data/a b"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2 KiB", 2048),
        ("512 MiB", 512 << 20),
        (" 1.5GiB ", 3 << 29),
        ("3 TiB", 3 << 40),
        (7, 7),
        (None, None),
    ],
)
def test_sizes_may_be_text(text, size):
    assert Limits(batch_bytes=text).batch_bytes == size


@pytest.mark.parametrize("text", ["2 GB", "MiB", "-1 MiB", "1e3 KiB", "0 KiB", "", 0, 1.5, True])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValidationError):
        Limits(batch_bytes=text)


def test_a_batch_has_room_for_what_is_left_of_its_bytes():
    assert has_room(1 << 60)  # outside of a batch nothing is counted
    with bounded(100) as account:
        assert has_room(100)
        assert not has_room(101)
        reserve(30)
        with temporary(50):
            assert has_room(20)
            assert not has_room(21)
            with pytest.raises(BatchTooLargeError, match="it would take 21 bytes beside the 80"):
                reserve(21)
        with discarded():
            reserve(70)
        assert account.taken == 30
        assert has_room(70)
        with bounded(5):
            assert not has_room(6)
        assert not has_room(71)
    assert has_room(101)


@pytest.fixture(scope="module")
def folder_of_arrays(tmp_path_factory):
    return tmp_path_factory.mktemp("arrays")


@settings(max_examples=15)
@given(
    arrays.arrays(
        st.sampled_from(["<i2", ">f4", "<c8", "|b1", "<M8[s]", "<U3"]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    st.sampled_from("CF"),
)
def test_arrays_come_back_from_their_file(folder_of_arrays, array, order):
    array = np.array(array, order=order)
    path = folder_of_arrays / "a.npy"
    np.save(path, array)
    mapped = map_npy(path)
    assert (mapped.shape, mapped.dtype) == (array.shape, array.dtype)
    assert mapped.tobytes() == array.tobytes()
    assert not mapped.size or not mapped.flags.writeable


def forged(shape, kind="<f8", content=b"\0" * 64):
    file = io.BytesIO()
    described = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue() + content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (forged((-1,)), r"its shape is \(-1,\)"),
        (forged((-2, -4)), r"its shape is \(-2, -4\)"),
        (forged((True,)), r"its shape is \(True,\)"),
        (forged((9,)), "it is shorter than its header says"),
        (forged((10**12,)), "it is shorter than its header says"),
        (forged((1,), "|O"), "it holds Python objects"),
        (forged((1,), [("x", "<f8")]), "not numbers"),
        (forged((1,))[:20], None),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(1 << 17), "its header claims 2147483659"),
        (b"PK\x03\x04", None),
        (b"", None),
    ],
)
def test_a_file_that_is_no_array_is_refused(content, message, tmp_path):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        map_npy(tmp_path / "a.npy")


def test_a_small_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1024)
    assert read_bounded(path, 1024) == b"x" * 1024
    path.write_bytes(b"x" * 1025)
    with pytest.raises(TooLargeError, match="it is larger than 1 KiB: it has 1025 bytes"):
        read_bounded(path, 1024)


def test_json_is_bounded_by_what_its_values_take():
    text = "[" + "0," * 99 + "0]"
    assert plain_json.parse(text, 7000) == [0] * 100
    with pytest.raises(JsonError, match="its values would take more than"):
        plain_json.parse(text, 5000)  # of 201 bytes
    with pytest.raises(JsonError, match="it is larger than"):
        plain_json.parse('"' + "x" * 5000 + '"', 5000)


def test_a_folder_is_made_for_its_user_alone(tmp_path):
    folder = own_folder(tmp_path / "a" / "b")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert own_folder(folder) == folder
    folder.chmod(0o777)
    with pytest.raises(NotOwnError, match="everybody can write to"):
        own_folder(folder)
    folder.chmod(0o1777)  # as /tmp: nobody can replace the files of others
    own_folder(folder)
    (tmp_path / "link").symlink_to(folder)
    assert own_folder(tmp_path / "link", link=True) == tmp_path / "link"
    with pytest.raises(NotOwnError, match="is a symbolic link"):
        own_folder(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        own_folder(tmp_path / "file")


@pytest.mark.skipif(not is_root, reason="only root gives away")
def test_a_folder_of_root_may_be_used_and_one_of_others_not():
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        folder.chmod(0o1777)
        os.seteuid(12345)
        try:
            own_folder(folder)
        finally:
            os.seteuid(0)
        os.chown(folder, 12345, -1)
        with pytest.raises(NotOwnError, match="belongs to another user \\(number 12345\\)"):
            own_folder(folder)
    finally:
        shutil.rmtree(folder)
