"""Tables that a spreadsheet or a viewer opens hold texts, and nothing that is calculated."""

import csv
import re

import pytest

from penstock.addons.sweeps import sweep
from penstock.addons.trackers.csv_file import Csv
from penstock.addons.trackers.tracker import TrackedRun
from penstock.files.table_cells import cell, markdown_cell, text_of
from penstock.runs import left_out
from penstock.runs.left_out import Entry
from penstock.runs.quarantine import QuarantineFile

FORMULAS = [
    "=1",
    "=cmd|'/C calc'!A0",
    "+cmd|'/C calc'!A0",
    "-2+3+cmd|'/C calc'!A0",
    "@SUM(1+1)*cmd|'x'!A0",
    '=HYPERLINK("http://stranger.example")',
    "\t=1",
    " =1",
    "\r\n=1",
    "'=1",
    "''=1",
    "\uff1d1()",
    "=1\n",
]
TEXTS = [
    "",
    "a",
    "-1",
    "+1.5e-05",
    "-inf",
    "+model.depth",
    "++hydra.x",
    "~a",
    "a=b",
    "'a",
    "''",
    "-.5",
    "@a",
    "faces/0001.jpg",
]


@pytest.mark.parametrize("text", [*FORMULAS, *TEXTS])
def test_a_cell_is_a_text_and_becomes_it_again(text):
    assert text_of(cell(text)) == text
    assert cell(text).startswith("'") == (text in FORMULAS or text.startswith("'"))
    assert (cell(text) == text) == (text in TEXTS)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("text", FORMULAS)
def test_no_table_holds_a_formula(text, tmp_path):
    sweep._write_csv(
        tmp_path / "sweep.csv", [{"job": "0", text: text, "error": text}], re.compile(rb"job")
    )
    assert rows_of(tmp_path / "sweep.csv")[1:] == [["0", cell(text), cell(text)]]
    tracker = Csv(tmp_path, TrackedRun(tmp_path, {}, {}))
    tracker.start()
    tracker.log({text: 1.0}, 1)
    assert rows_of(tmp_path / "metrics.csv") == [["step", cell(text)], ["1", "1.0"]]
    entry = Entry("train", 1, text, 0, 0, 0, text, "5f0c")
    path = tmp_path / "quarantine.csv"
    QuarantineFile(path).add([entry])
    assert rows_of(path)[1][2::4] == [cell(text), cell(text)]
    assert left_out.read(path) == [entry]


def test_a_line_of_markdown_is_a_line_of_text():
    text = markdown_cell("![x](http://stranger.example) <img src=y> | `a` [b](c) \\")
    assert text == r"!\[x](http://stranger.example) \<img src=y> \| \`a\` \[b](c) \\"
