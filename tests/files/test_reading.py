"""Addresses, limits, arrays and folders: what is read at all, and what is refused before it is."""

import io
import os
import re
import shutil
import socket
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.errors import DataError
from penstock.files import addresses, plain_json
from penstock.files.limits import Limits
from penstock.files.npy import map_npy
from penstock.files.own_files import NotOwnError, own_folder
from penstock.files.plain_json import JsonError
from penstock.files.regular_file import (
    IrregularFileError,
    TooLargeError,
    open_regular,
    read_bounded,
    read_regular,
    regular_descriptor,
    size_of,
)

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
        (forged((9,)), "it is shorter than its header says: 192 of 200$"),
        (forged((10**12,)), "it is shorter than its header says"),
        (forged((1,), "|O"), "it holds Python objects"),
        (forged((1,), [("x", "<f8")]), "not numbers"),
        (forged((1,))[:20], "^EOF: reading array header"),
        # The longest header that is read: numpy refuses what it says.
        (b"\x93NUMPY\x02\x00" + (65524).to_bytes(4, "little") + b" " * 65524, "is large"),
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
    most = len(text) + 64 * 100  # a comma less than values, and a bracket
    assert plain_json.parse(text, most) == [0] * 100
    with pytest.raises(JsonError, match="its values would take more than 0 MiB of memory"):
        plain_json.parse(text, most - 1)
    text = '{"a":{"b":{}}}'
    assert plain_json.parse(text, len(text) + 64 * 3) == {"a": {"b": {}}}
    with pytest.raises(JsonError, match="its values would take more than 0 MiB"):
        plain_json.parse(text, len(text) + 64 * 3 - 1)
    assert plain_json.parse('"xx"', 4) == "xx"
    with pytest.raises(JsonError, match="it is larger than 0 MiB"):
        plain_json.parse('"xxx"', 4)
    with pytest.raises(JsonError, match="it is larger than 1 MiB"):
        plain_json.parse(" " * (1 << 21), (1 << 21) - 1)
    with pytest.raises(JsonError, match="its values would take more than 1 MiB of memory"):
        plain_json.parse("," * (1 << 20), (1 << 21) - 1)


DIGITS = "1" * 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" \n", "it is empty"),
        (DIGITS + "1", "it has a number of 101 digits"),
        ("0." + DIGITS, "it has a number of 102 digits"),
        ("1e999", "it has the number 1e999, which is too large"),
        ("NaN", "it has NaN, which is not JSON"),
        ('{"a": 1, "b": 2, "b": 3, "a": 4}', "it has the key 'a' twice"),
        ('{"a": 1, "b": 2, "b": 3}', "it has the key 'b' twice"),
        (f'{{"{"x" * 58}": 1, "{"x" * 58}": 2}}', f"it has the key '{'x' * 58}' twice"),
        (f'{{"{"x" * 59}": 1, "{"x" * 59}": 2}}', f"it has the key '{'x' * 59}... twice"),
        ('{"a": 1', "it is cut off (Expecting ',' delimiter at line 1, column 8)"),
        ('{"a": 1 \n', "it is cut off (Expecting ',' delimiter at line 2, column 1)"),
        ('{"a": "x', "it is cut off (Unterminated string starting at at line 1, column 7)"),
        ('{"a" 1}', "it is not JSON (Expecting ':' delimiter at line 1, column 6)"),
        (b'"\xff"', "it is not text (byte 1)"),
        ("[" * 101 + "]" * 101, "it is nested more than 100 levels deep"),
    ],
)
def test_text_that_is_no_json_of_ours_is_refused(text, message):
    with pytest.raises(JsonError, match=f"^{re.escape(message)}$"):
        plain_json.parse(text)


def test_json_at_the_borders_is_read():
    assert plain_json.parse(DIGITS) == int(DIGITS)
    assert plain_json.parse("0." + DIGITS[2:]) == float("0." + DIGITS[2:])
    assert plain_json.parse("[" * 100 + "]" * 100)
    assert plain_json.parse("[NaN]", nan=True)[0] != 0
    assert plain_json.parse('{"a": 1, "b": 1}') == {"a": 1, "b": 1}


def test_records_of_a_file_have_the_numbers_of_their_lines(tmp_path, monkeypatch):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": 2}\n{"n": 3}\n{"n": ')
    assert list(plain_json.lines(path)) == [(n, {"n": n}) for n in (1, 2, 3)]
    with path.open("rb") as file:
        assert [n for n, _ in plain_json.lines_of(file, 7, stop=18)] == [8, 9]
        assert [n for n, _ in plain_json.lines_of(file)] == [1]
    for line in (b"[]", b"x"):
        path.write_bytes(b"{}\n" + line + b"\n")
        with pytest.raises(JsonError, match=r"^line 2 is broken: it is (a list, not a|not JSON)"):
            list(plain_json.lines(path))
    monkeypatch.setattr(plain_json, "LONGEST_LINE", 8)
    for rest in (b'{"n":7}\n', b'{"n":77'):
        path.write_bytes(b"{}\n" + rest)
        assert len(list(plain_json.lines(path))) == 1 + rest.endswith(b"\n")
    path.write_bytes(b'{}\n{"n":777')
    with pytest.raises(JsonError, match=r"^line 2 is longer than 8 bytes"):
        list(plain_json.lines(path))


@pytest.mark.parametrize(
    ("values", "most", "reason"),
    [
        ({"n": 0}, 9, None),
        ({"n": 9}, 9, None),
        ({"n": 2**63 - 1}, None, None),
        ({"n": 2**63}, None, "9223372036854775808"),
        ({"n": -1}, 9, "-1"),
        ({"n": 10}, 9, "10"),
        ({"n": True}, 9, "True"),
        ({"n": 1.0}, 9, "1.0"),
        ({"n": None}, 9, "None"),
        ({"n": [1]}, 9, "a list"),
        ({}, 9, "missing"),
    ],
)
def test_a_whole_number_is_in_its_range(values, most, reason):
    given = {} if most is None else {"most": most}
    if reason is None:
        assert plain_json.integer(values, "n", **given) == values["n"]
    else:
        message = f"^n is {reason}, and must be a whole number of at least 0$"
        with pytest.raises(JsonError, match=message):
            plain_json.integer(values, "n", **given)


def test_a_record_of_pydantic_is_refused_in_one_sentence():
    assert plain_json.checked(Limits, {"pixels": 7}).pixels == 7
    with pytest.raises(JsonError, match=r"^it is a number, not a mapping$"):
        plain_json.checked(Limits, 7)
    with pytest.raises(JsonError, match=r"^'record_bytes': Input should be a valid integer$"):
        plain_json.checked(Limits, {"record_bytes": "y", "raw_bytes": "z"})


def test_what_is_no_regular_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("socket")
    for path, kind in (("fifo", "a FIFO"), ("socket", "a socket"), ("/dev/null", "a device")):
        for read in (regular_descriptor, open_regular, read_regular):
            with pytest.raises(IrregularFileError) as caught:
                read(path)
            assert (caught.value.errno, caught.value.strerror, caught.value.filename) == (
                0,
                f"it is {kind}, not a file",
                path,
            )
        assert size_of(path) == -1
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_regular("absent")
    with pytest.raises(OSError, match="the name is not valid") as caught:
        read_regular("a\0b")
    assert caught.value.errno == 0
    assert (size_of(tmp_path), size_of("absent"), size_of("a\0b")) == (-1, -1, -1)


def test_a_record_is_read_up_to_its_bound(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert size_of(path) == 10
    assert read_regular(path) == b"0123456789"
    assert read_regular(path, Limits(record_bytes=10)) == b"0123456789"
    with pytest.raises(DataError, match=r"^it has 10 bytes"):
        read_regular(path, Limits(record_bytes=9))
    read, asked = os.read, []
    # A signal comes after three bytes.
    monkeypatch.setattr(os, "read", lambda f, n: asked.append(n) or read(f, min(n, 3)))
    assert read_regular(path) == b"0123456789"
    assert asked == [10, 7, 4, 1]
    # Somebody cuts the file off meanwhile.
    monkeypatch.setattr(os, "read", lambda f, n: read(f, min(n, 3)) if n > 7 else b"")
    assert read_regular(path) == b"012"


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
