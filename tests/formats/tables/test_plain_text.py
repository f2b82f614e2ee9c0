"""Files of text as documents: what is one, who trains on it, and what is refused."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from penstock.addons.tables.plain_text import PlainText, documents, write_stories
from penstock.errors import ConfigError, DataError
from penstock.files.limits import Limits


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
    return PlainText(str(folder), split, cache_dir=str(folder / ".cache"), **arguments)


def test_files_are_divided_and_their_pages_are_documents(folder):
    train, val = (made(folder, split, val_fraction=0.3) for split in ("train", "val"))
    texts = {
        split: [one[row]["text"] for row in range(len(one))]
        for split, one in (("train", train), ("val", val))
    }
    everything = [f"{word} {number}\n" for number in range(10) for word in ("text", "another")]
    assert sorted(texts["train"] + texts["val"]) == sorted([*everything, "caf\u00e9"])
    assert not set(train.names) & set(val.names)
    for one in (train, val):
        for row, text in enumerate(one.texts):
            assert text in Path(one.path(row)).read_text()
        assert one.metadata["length"].tolist() == [len(text.encode()) for text in one.texts]
        assert [Path(one.path(row)).name for row in range(len(one))] == [
            name.rpartition("/")[2] for name in one.metadata["file"]
        ]
    assert {name for name in train.names + val.names if name.endswith("png")} == set()


def test_a_single_file_is_divided_by_its_documents(tmp_path):
    path = tmp_path / "messages.tsv"
    path.write_text("".join(f"ham\tmessage {number}\n" for number in range(50)) + "\n\n")
    train, val = (made(path, split, val_fraction=0.2) for split in ("train", "val"))
    assert (len(train), len(val)) == (40, 10)
    assert not set(train.texts) & set(val.texts)
    assert train[0]["text"].startswith("ham\tmessage ")
    assert len(made(path, val_fraction=0.0, lines=False)) == 1


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

    wanted = [len(text) + 1 for text in data.texts]
    assert data.text_lengths(length, "a").tolist() == wanted
    found = made(folder).text_lengths(length, "a")
    assert found.tolist() == wanted
    assert found.dtype == np.int32
    assert calls == data.texts
    data.text_lengths(length, "b")
    assert len(calls) == 2 * len(wanted)


def test_another_encoding(folder):
    (folder / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.txt', byte 3: it is not utf-8 .* latin-1"):
        made(folder, val_fraction=0.0)
    assert "caf\u00e9" in made(folder, val_fraction=0.0, encoding="latin-1").texts
    for name in ("klingon", "zip"):
        with pytest.raises(ConfigError, match=r"dataset\.encoding"):
            made(folder, encoding=name)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "its 0 file"),
        ({"a.bin": b"x"}, r"its 0 file\(s\) .* hold no text.*dataset\.suffixes .*: \.txt"),
        ({"a.txt": b"", "b.txt": b" \n"}, "hold no text"),
        ({"a.txt": b"one document"}, "one document only"),
        ({"a.txt": b"x" * 2000, "b.txt": b""}, "limits.record_bytes"),
    ],
)
def test_folders_without_text_are_refused(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    share = 0.0 if "limits" in message else 0.5
    with pytest.raises(DataError, match=message):  # one of the two splits is empty
        [
            made(tmp_path, split, limits=Limits(record_bytes=1000), val_fraction=share)
            for split in ("train", "val")
        ]


def test_drawn_stories_are_the_same_everywhere(tmp_path):
    write_stories(tmp_path)
    files = sorted(tmp_path.iterdir())
    whole = hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=8)
    assert (len(files), whole.hexdigest()) == (160, "16e1c7b2e895abc8")
