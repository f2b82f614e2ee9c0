"""Files of text as documents: what is one, who trains on it, and what is refused."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.addons.tables import plain_text
from penstock.addons.tables.plain_text import PlainText, documents
from penstock.addons.tables.text import standard_library
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


@pytest.mark.parametrize("longest", [2, 7, 30, 10_000])
def test_long_documents_are_cut_where_it_hurts_least(longest):
    text = "One line.\nAnother line.\n\nA paragraph of some words.\nunbreakable" + "x" * 50
    found = list(documents([text], False, longest))
    assert "".join(found) == text or longest == 2  # where a part may be white space alone
    assert max(map(len, found)) <= longest
    if longest == 30:
        assert found[0] == "One line.\nAnother line.\n\n"


TEXTS = st.text(st.sampled_from("ab \r\n\f\x1c\u2028\u00e9\U0001f600"), max_size=40)


@given(
    text=TEXTS,
    places=st.lists(st.integers(0, 40)),
    by_line=st.booleans(),
    longest=st.integers(2, 12),
)
def test_documents_are_the_same_from_any_pieces(text, places, by_line, longest):
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(edges)]
    pages = text.splitlines() if by_line else text.split("\f")
    wanted = [part for page in pages for part in documents([page], False, longest)]
    assert list(documents(pieces, by_line, longest)) == wanted


@given(text=TEXTS, encoding=st.sampled_from(["utf-8", "utf-16", "utf-7", "shift_jis_2004"]))
def test_a_character_between_two_pieces_is_whole(text, encoding):
    content = text.encode(encoding, "ignore")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_text, "_PIECE", 3)
        assert "".join(plain_text._decoded(content, encoding)) == content.decode(encoding)


def test_the_byte_that_is_no_text_is_counted_from_the_start_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_text, "_PIECE", 4)
    (tmp_path / "a.txt").write_bytes("abc\u00e9\u00e9 d".encode() + b"\xff e")
    with pytest.raises(DataError, match=r"a\.txt', byte 9: it is not utf-8"):
        made(tmp_path)


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
        ({}, "none of the 0 file"),
        ({"a.bin": b"x"}, r"none of the 1 file\(s\) .* ends in \.txt"),
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


def test_a_fifo_keeps_nobody_waiting(folder):
    os.mkfifo(folder / "pipe.txt")
    with pytest.raises(DataError, match="a FIFO"):
        made(folder, val_fraction=0.0)


def test_docstrings_stand_below_what_they_are_of(tmp_path, monkeypatch):
    library = tmp_path / "lib"
    (library / "package").mkdir(parents=True)
    (library / "test").mkdir()
    (library / "package" / "__init__.py").write_text('"""A package."""\n')
    (library / "one.py").write_text(
        'class A:\n    """Of A."""\n    def f(self, x=1):\n        "Of f."\n'
    )
    (library / "two.py").write_text('"""A package."""\nclass A:\n    """Of A."""\n')
    (library / "broken.py").write_text("def (")
    (library / "test" / "t.py").write_text('"""A test."""\n')
    monkeypatch.setattr(standard_library.sysconfig, "get_path", lambda name: str(library))
    out = tmp_path / "out"
    out.mkdir()
    standard_library.write(out)
    modules = {path.name: path.read_text() for path in out.glob("module-*")}
    assert modules == {
        "module-one.txt": "class A\n\nOf A.\n\fdef f(self, x=1)\n\nOf f.\n",
        "module-package.txt": "module package\n\nA package.\n",
        "module-two.txt": "module two\n\nA package.\n",
    }
    assert len(list(out.glob("topic-*"))) > 50
