"""Tables on stdout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.terminal import console, fitted, put

if TYPE_CHECKING:
    from rich.table import Table


def put_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in aligned columns, never cut to the width of a terminal.

    A narrow terminal gets several lines a row.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        put(fitted("  ".join(map(str.ljust, row, widths)).rstrip(), stream="stdout"))


def new_table(title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.HORIZONTALS, padding=(0, 1, 0, 0))


def put_table(table: Table) -> None:
    # A file or a pipe has no width; rich would take 80 columns and break the headings.
    console(sys.stdout, width=None if sys.stdout.isatty() else 160).print(table)
