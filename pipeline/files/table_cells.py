"""Cells of tables that other programs open: a spreadsheet, a viewer of Markdown.

A spreadsheet calculates a cell of a CSV file that begins with =, +, - or @, and some formulas start
programs (`=cmd|'/C calc'!A0`) or send other cells away. A viewer of Markdown loads pictures from
addresses. Paths, labels and values come from anybody, so what would be more than text is marked.
"""

from __future__ import annotations

import re

_CALCULATED = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
_PLAIN = re.compile(r"[+\-@]{0,2}[\w./,:-]*")  # a number, a name or a key such as +model.depth
_MARKUP = re.compile(r"[\\`<\[|]")


def cell(text: str) -> str:
    """`text` as a cell of a CSV file; what would be calculated begins with an apostrophe."""
    return f"'{text}" if _is_calculated(text.lstrip("'")) else text


def text_of(cell: str) -> str:
    """The text that `cell` was made of."""
    return cell[1:] if cell[:1] == "'" and _is_calculated(cell.lstrip("'")) else cell


def markdown_cell(text: str) -> str:
    """A line of text as a cell of a table in Markdown: no links, pictures or tags."""
    return _MARKUP.sub(r"\\\g<0>", text)


def _is_calculated(text: str) -> bool:
    return bool(_CALCULATED.match(text)) and not _PLAIN.fullmatch(text)
