"""What is printed does nothing to a terminal, wherever its text comes from."""

import ast
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from penstock import command, terminal
from tests.support.program import ROOT

HOSTILE = "a\x1b]0;owned\x07\x9b2J\r\x08\x7f\u202eb"
SHOWN = "a\\x1b]0;owned\\x07\\x9b2J\\x0d\\x08\\x7f\u202eb"
HARMFUL = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))} - {"\t", "\n"}


def assert_harmless(*texts):
    for text in texts:
        assert not HARMFUL & set(text), repr(text)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_harmful_is_left_and_all_else_is(text):
    shown = terminal.printable(text)
    assert_harmless(shown)
    assert terminal.printable(shown) == shown
    if text.isascii() and text.isprintable():
        assert shown == text
    line = terminal.one_line(text)
    assert_harmless(line)
    assert not {"\n", "\t"} & set(line)


def test_how_characters_are_shown():
    assert terminal.printable(HOSTILE) == SHOWN
    assert terminal.printable("ä 漢 \t\n🙂") == "ä 漢 \t\n🙂"
    assert terminal.one_line("a\nb\tc") == r"a\nb\tc"


def test_everything_is_printed_by_one_module():
    printing = re.compile(
        r"print|rich\.print|sys\.std(err|out)\.write|traceback\.print_exc(eption)?"
        r"|logging\.StreamHandler"
    )
    called_somewhere = re.compile(rf"\b({printing.pattern})\(")  # `fingerprint` is in most files
    paths = [path for folder in ("pipeline", "datasets") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 100
    for path in paths:
        text = path.read_text()
        if path.name == "terminal.py" or not called_somewhere.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert not printing.fullmatch(called), f"{path}, line {node.lineno}: {called}"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_text_is_too_strange_for_an_encoding(encoding, monkeypatch):
    for name, function in (("stdout", terminal.put), ("stderr", terminal.say)):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, name, io.TextIOWrapper(raw, encoding, "backslashreplace"))
        function("é漢", os.fsdecode(b"\xff"), HOSTILE)
        getattr(sys, name).flush()
        assert raw.getvalue().decode(encoding).startswith(("é漢", "é\\u", "\\xe9\\u"))
        assert b"a\\x1b]0;owned" in raw.getvalue()


def test_files_of_a_stranger(here, capsys, monkeypatch):
    root = here / "pictures"
    for split in ("train", "val"):
        for name in (HOSTILE.replace("/", ""), "good"):
            folder = root / split / name
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(folder / "ok.png")
            (folder / f"{HOSTILE}\n.jpg").write_bytes(b"no picture")
    undecodable = os.fsencode(root / "train/good") + b"/\xff\xfe.jpg"
    Path(os.fsdecode(undecodable)).write_bytes(b"no picture")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    data = [
        "dataset=image_folder",
        f"dataset.root={root}",
        "loader=debug",
        "trainer.progress=plain",
    ]
    for words, code in (["task=check"], 3), (["task=digest"], 3), (["task=replay"], 3):
        capsys.readouterr()
        assert command.main([*data, *words]) == code
        assert_harmless(capsys.readouterr().err)
    sys.stdout.flush()
    shown = sys.stdout.buffer.getvalue().decode()
    assert_harmless(shown)
    assert r"\xff\xfe.jpg" in shown
    assert SHOWN.replace("\u202e", r"\u202e") + r"\n.jpg" in shown.replace("\\\\", "\\")


def test_a_program_without_utf8_prints_names_that_cannot_be_decoded(here):
    code = (
        "from penstock.terminal import put, say; import os; "
        r"x = os.fsdecode(b'\xff') + chr(0x6f22) + chr(27); put(x); say(x)"
    )
    env = {
        "PYTHONPATH": str(ROOT),
        "LANG": "C",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=True)
    assert done.stdout == done.stderr == rb"\xff\u6f22\x1b" + b"\n"
