"""Files of Parquet and Arrow as one table, cut into row groups.

A row of the whole table is found by prefix sums in flat arrays: 16 bytes a row group are held, and
nothing a row. Cost: the footer of every file is read once, about 0.2 ms each; files at remote
addresses are fetched for that.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.datasets.arrow.file import ArrowFile, damage_errors, first_line, open_file
from pipeline.datasets.reading.open_files import OpenFiles
from pipeline.datasets.reading.positioned_file import PositionedFile
from pipeline.errors import DataError
from pipeline.files.limits import Limits
from pipeline.order.randomness import IntArray

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.datasets.files import Files


class ArrowFiles:
    """All row groups of some files, numbered in order.

    Args:
        addresses: of the files, in order.
        files: how to get at them.
        limits: what they may claim.

    Attributes:
        schema: of the first file; `check` sees to it that the others agree.
        bounds: int64[groups + 1], the first row of each row group, and the number of rows.

    Raises:
        DataError: a file is missing, cut off or of another format.
    """

    def __init__(self, addresses: Sequence[str], files: Files, limits: Limits) -> None:
        self._files, self._limits = files, limits
        self._addresses = np.array([os.fsencode(address) for address in addresses])
        self._opened = OpenFiles(self._open)
        self.schema = self._opened[0].schema
        self._others: list[tuple[int, pa.Schema]] = []  # of files whose schema is another
        lengths = []
        for number in range(len(addresses)):
            opened = self._opened[number]
            lengths.append(opened.lengths)
            if not opened.schema.equals(self.schema):
                self._others.append((number, opened.schema))
        self._first = np.cumsum([0, *map(len, lengths)])  # row group of each file
        flat = [0, *chain.from_iterable(lengths)]
        self.bounds: IntArray = np.cumsum(np.array(flat, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_rows(self) -> int:
        return int(self.bounds[-1])

    def _open(self, number: int) -> ArrowFile:
        name = self.name(number)
        return self._files.read(name, lambda path: open_file(path, name, self._limits))

    def name(self, file: int) -> str:
        """The address of a file, as it was given."""
        return os.fsdecode(self._addresses[file])

    def content(self, file: int) -> PositionedFile:
        """The bytes of a file."""
        return self._files.read(self.name(file), lambda path: PositionedFile(Path(path)))

    def check(self, columns: Sequence[str]) -> None:
        """Refuse files whose `columns` are missing or of other types than in the first file.

        Raises:
            DataError: names the file, the column and both types.
        """
        for number, schema in [(0, self.schema), *self._others]:
            counts = Counter(schema.names)
            for column in columns:
                self._check(number, schema, column, counts[column])

    def _check(self, number: int, schema: pa.Schema, column: str, count: int) -> None:
        if count == 0:
            found = "is missing"
        elif count > 1:
            found = f"is there {count} times"
        elif schema.field(column).type != self.schema.field(column).type:
            found = f"is {schema.field(column).type}"
        else:
            return
        wanted = f"in {self.name(0)!r} it is {self.schema.field(column).type}" if number else ""
        raise DataError(
            f"{self.name(number)!r}: column {column!r} {found}{', but ' if wanted else ''}{wanted}."
            " All files need one schema: write the file again, or take it out."
        )

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        """Columns of a row group, and how many bytes of memory they take.

        Raises:
            DataError: the file is damaged.
        """
        file, within = self._place(group)
        with self.reading(group):
            opened = self._opened[file]
            table, size = opened.read(within, columns)
            if columns and table.num_rows != opened.lengths[within]:
                raise ValueError(
                    f"it has {table.num_rows} rows, and the file says {opened.lengths[within]}"
                )
            return table, size

    @contextmanager
    def reading(self, group: int) -> Iterator[None]:
        """Whatever pyarrow raises inside says that the row group is damaged, as a DataError."""
        try:
            yield
        except damage_errors() as error:
            file, within = self._place(group)
            raise DataError(
                f"{self.name(file)!r}, row group {within} cannot be read: {first_line(error)}. "
                "Copy or write the file again."
            ) from error

    def length_check(self, group: int) -> Callable[[], None]:
        """What to call before arrays of a row group are touched; see `arrow.file.ArrowFile`."""
        file, _ = self._place(group)
        return self._opened[file].check_length

    def group_name(self, group: int) -> str:
        """A row group for people: its number in its file, and the file."""
        file, within = self._place(group)
        return f"row group {within} of {self.name(file)!r}"

    def where(self, group: int, row: int, column: str) -> str:
        """A cell for people: its file, its row in the file from 0, its column."""
        file, _ = self._place(group)
        row += int(self.bounds[group] - self.bounds[self._first[file]])
        return f"{self.name(file)!r}, row {row}, column {column!r}"

    def _place(self, group: int) -> tuple[int, int]:
        """The file of a row group, and its number there."""
        file = int(np.searchsorted(self._first, group, side="right")) - 1
        return file, group - int(self._first[file])


def in_one_piece(table: pa.Table, column: str) -> pa.Array:
    """A column of a row group as one array."""
    import pyarrow as pa

    chunks = table.column(column).combine_chunks()
    if isinstance(chunks, pa.ChunkedArray):
        if chunks.num_chunks > 1:
            raise DataError(
                f"column {column!r} has more than 2 GiB in one row group. Write the files again "
                "with smaller row groups; about 64 MiB are good to read."
            )
        return chunks.chunk(0) if chunks.num_chunks else pa.array([], chunks.type)
    return chunks
