"""Files of text as documents: what is one, who trains on it, and what is refused."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from penstock.addons.tables.plain_text import PlainText, write_stories
from penstock.addons.tables.read import documents
from penstock.datasets.reading.base import Shares
from penstock.errors import DataError


@pytest.fixture
def folder(tmp_path):
    for number in range(10):
        (tmp_path / f"file{number}.txt").write_text(f"text {number}\n\fanother {number}\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "notes.md").write_text("caf\u00e9")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\f\t\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    return tmp_path


def made(folder, split="train", **arguments):
    return PlainText(str(folder), split, cache_dir=str(folder) + "-cache", **arguments)


def texts_of(data):
    return [data[row]["text"] for row in range(len(data))]


def test_files_are_divided_and_their_pages_are_documents(folder):
    train, val = (made(folder, split, shares=Shares(0.3)) for split in ("train", "val"))
    everything = [f"{word} {number}\n" for number in range(10) for word in ("text", "another")]
    assert sorted(texts_of(train) + texts_of(val)) == sorted([*everything, "caf\u00e9"])
    files = []
    for one in (train, val):
        paths = [one.path(row) for row in range(len(one))]
        files.append({*paths})
        for path, text in zip(paths, texts_of(one), strict=True):
            assert text in Path(path).read_text()
        assert one.metadata["length"].tolist() == [len(text.encode()) for text in texts_of(one)]
    assert not files[0] & files[1]


def test_a_single_file_is_divided_by_its_documents(tmp_path):
    path = tmp_path / "messages.tsv"
    # A mark of UTF-8 is no text, and a separator of Unicode ends no line.
    lines = "".join(f"ham\tmessage\u2028 {number}\r\n" for number in range(50))
    path.write_bytes(f"\ufeff{lines}\n\n".encode())
    train, val = (made(path, split, shares=Shares(0.2)) for split in ("train", "val"))
    assert (len(train), len(val)) == (40, 10)
    assert not {*texts_of(train)} & {*texts_of(val)}
    assert all(text.startswith("ham\tmessage\u2028 ") for text in texts_of(train))
    assert len(made(path, shares=Shares(0.0), lines=False)) == 1


@pytest.mark.parametrize("longest", [3, 7, 30, 10_000])
def test_long_documents_are_cut_where_it_hurts_least(longest):
    text = "One line.\nAnother line.\n\nA paragraph of some words.\nunbreakable" + "x" * 50
    found = list(documents(text, False, longest))
    assert "".join(found) == text or longest == 3  # where a part may be white space alone
    assert max(map(len, found)) <= longest
    if longest == 30:
        assert found[0] == "One line.\nAnother line.\n\n"


def test_the_text_itself_is_the_fingerprint(folder):
    first = made(folder)
    assert made(folder).fingerprint == first.fingerprint
    assert made(folder, "val").fingerprint != first.fingerprint
    assert made(folder, longest=9).fingerprint != first.fingerprint
    path = Path(first.path(0))
    path.write_text(path.read_text().upper())  # of the same size
    assert made(folder).fingerprint != first.fingerprint
    assert made(folder).names_fingerprint() == first.names_fingerprint()


def test_lengths_are_counted_once(folder):
    data, calls = made(folder), []

    def length(text):
        calls.append(text)
        return len(text) + 1

    wanted = [len(text) + 1 for text in texts_of(data)]
    assert data.text_lengths(length, "a").tolist() == wanted
    found = made(folder).text_lengths(length, "a")
    assert found.tolist() == wanted
    assert found.dtype == np.int32
    once = len(calls)
    data.text_lengths(length, "b")
    assert len(calls) == 2 * once


def test_another_encoding(folder):
    (folder / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(
        DataError, match=r"latin\.txt' cannot be read: .*position 3.*; .*dataset\.encoding"
    ):
        made(folder, shares=Shares(0.0))
    assert "caf\u00e9" in texts_of(made(folder, shares=Shares(0.0), encoding="latin-1"))
    for name in ("klingon", "zip"):
        with pytest.raises(DataError, match=r"dataset\.encoding"):
            made(folder, encoding=name)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"has no file that ends in \.txt"),
        ({"a.bin": b"x"}, r"has no file that ends in \.txt"),
        ({"a.txt": b"", "b.txt": b" \n"}, "has no rows"),
        ({"a.txt": b"one document"}, "has no rows for the split"),
    ],
)
def test_folders_without_text_are_refused(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):  # one of the two splits is empty
        [made(tmp_path, split, shares=Shares(0.5)) for split in ("train", "val")]


def test_drawn_stories_are_the_same_everywhere(tmp_path):
    write_stories(tmp_path)
    files = sorted(tmp_path.iterdir())
    whole = hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=8)
    assert (len(files), whole.hexdigest()) == (160, "16e1c7b2e895abc8")
