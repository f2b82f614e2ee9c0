"""Rows of tokens written into a batch, in one call of C without the interpreter's lock."""

from typing import Any

def gather(into: Any, source: Any, places: Any, firsts: Any, counts: Any, /) -> None:
    """Copy the tokens `firsts` to `firsts + counts` of `source` to `places` of `into`, row by row.

    Args:
        into: int64 [N].
        source: whole numbers of any type, in one dimension.
        places, firsts, counts: int64 [n].

    Raises:
        ValueError: an argument is of another type or shape, or a row is out of bounds; rows before
            it are written.
    """

def lay_out(positions: Any, documents: Any, edges: Any, ids: Any, /) -> None:
    """Number the tokens of each document from 0, and give them the number of their document.

    Args:
        positions, documents: int64 [N], written between the first and the last of `edges`.
        edges: int64 [n + 1], where documents begin, and the end.
        ids: int64 [n].

    Raises:
        ValueError: as `gather`.
    """
