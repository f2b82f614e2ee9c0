"""A run's measurements, the lines of metrics.jsonl, as columns: long files in little memory.

    read(path) -> {"log": Series, "epoch": Series}

A `Series` is a sequence of the records of one event, which are made when they are asked for. It
keeps 8 bytes a number, and 4 more where some lines lack it. Cost: 8 us a line of ten numbers.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from penstock.errors import PenstockError
from penstock.files.data import records

EVENTS = ("log", "epoch")

_MOST_NUMBERS = 1 << 26  # of a file, 512 to 768 MiB
_MOST_NAMES = 100_000  # as a metric may have one for each class
_LONGEST_NAME = 1000  # characters
_BLOCK = 1 << 20  # bytes that are parsed at once
_LARGE = 10**15  # whole numbers from here on are kept as float64
_HUGE = 1e99  # from here on `_check` looks at numbers

Record = dict[str, Any]


class Series(Sequence[Record]):
    """The records of one event, in the order of their lines; a number that was null is None.

    Attributes:
        names: of all numbers, in the order in which they appeared.
    """

    def __init__(self, event: str) -> None:
        self._event = event
        self._count = 0
        self._columns: dict[str, _Column] = {}

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A number of all records, [N]: int64, or float64 if any is not whole or missing (NaN)."""
        column = self._columns.get(name)
        return np.full(self._count, math.nan) if column is None else column.whole(self._count)

    def address(self, index: int) -> Record:
        """Event, epoch and step of a record."""
        return {
            "event": self._event,
            **{name: self.column(name)[index].item() for name in ("epoch", "step")},
        }

    def finite(self, name: str) -> npt.NDArray[np.int64]:
        """The places of the records that have a finite number of that name."""
        return np.flatnonzero(np.isfinite(self.column(name)))

    def extend(self, records: Sequence[Record]) -> None:
        """Append checked records of the same names; raises ValueError for a name too many."""
        columns = zip(*(record.values() for record in records), strict=True)
        for name, values in zip(records[0], columns, strict=True):
            if name != "event":
                if name not in self._columns:
                    if len(self._columns) == _MOST_NAMES:
                        raise ValueError(f"it has more than {_MOST_NAMES} names of numbers")
                    self._columns[name] = _Column()
                self._columns[name].extend(self._count, values)
        self._count += len(records)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(self._count))]
        row = index + self._count if index < 0 else index
        if not 0 <= row < self._count:
            raise IndexError(index)
        record: Record = {"event": self._event}
        for name, column in self._columns.items():
            at = column.place(row)
            if at is not None:
                value = column.values[at]
                record[name] = None if value != value else value
        return record


class _Column:
    """The `values` of one name, and the records that have one; None: all from the first on."""

    __slots__ = ("rows", "values")

    def __init__(self) -> None:
        self.values: array[Any] = array("q")
        self.rows: array[int] | None = None

    def extend(self, row: int, values: Sequence[Any]) -> None:
        """Append the values of records from number `row` on."""
        whole = set(map(type, values)) == {int} and min(values) > -_LARGE and max(values) < _LARGE
        if self.values.typecode == "q" and not whole:
            self.values = array("d", self.values)
        if self.rows is None and len(self.values) != row:
            self.rows = array("i", range(len(self.values)))
        if self.rows is not None:
            self.rows.extend(range(row, row + len(values)))
        if None in values:
            values = [math.nan if value is None else value for value in values]
        self.values.extend(values)

    def place(self, row: int) -> int | None:
        """Where the value of a record lies, if it has one."""
        if self.rows is None:
            return row if row < len(self.values) else None
        at = int(np.searchsorted(np.frombuffer(self.rows, np.int32), row))
        return at if at < len(self.rows) and self.rows[at] == row else None

    def whole(self, count: int) -> npt.NDArray[Any]:
        values = np.frombuffer(self.values, self.values.typecode)
        if len(values) == count:
            return values
        column = np.full(count, math.nan)
        rows = slice(len(values)) if self.rows is None else np.frombuffer(self.rows, np.int32)
        column[rows] = values
        return column


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have errors of reading a run's file name it; one that is missing ends the reading."""
    try:
        yield
    except FileNotFoundError:
        return
    except OSError as error:
        raise PenstockError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PenstockError(f"{path}, {error}") from error


def read(path: Path, events: Sequence[str] = EVENTS) -> dict[str, Series]:
    """The measurements in a metrics.jsonl, by event; empty ones without the file.

    Args:
        events: those that are kept; lines of others are only checked.

    Raises:
        PenstockError: a line is broken, or there are more numbers or names than a run's.
    """
    by_event = {event: Series(event) for event in events}
    numbers = 0
    with naming(path):
        for number, records in _checked(path):
            series = by_event.get(records[0]["event"])
            if series is None:
                continue
            numbers += len(records) * len(records[0])
            if numbers > _MOST_NUMBERS:
                raise ValueError(
                    f"line {number}: it has more than {_MOST_NUMBERS} numbers, which "
                    "are not read into memory"
                )
            try:
                series.extend(records)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    return by_event


def _checked(path: Path) -> Iterator[tuple[int, list[Record]]]:
    """Records of one event and the same names, with the number of the first one's line."""
    lines = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            start = file.tell() - len(block)
            block += file.readline()
            whole = block[: block.rfind(b"\n") + 1]  # without a last line that is still written
            groups = _parsed(whole) if len(block) <= 2 * _BLOCK else None
            if groups is None:  # line by line, for what is wrong and where
                file.seek(start)
                for number, record in records(file, lines + 1, start + len(block)):
                    try:
                        _check(record)
                    except ValueError as error:
                        raise ValueError(f"line {number} is broken: {error}") from error
                    yield number, [record]
            for group in groups or ():
                yield lines + 1, group
                lines += len(group)
            lines += 0 if groups is not None else block.count(b"\n")


def _parsed(block: bytes) -> list[list[Record]] | None:
    """The records of whole lines, parsed together; None where any could be damaged or odd.

    The C parser goes through all of them at once, which takes a tenth of the time. No line can
    lean on another: each begins with a brace and the name of its event, and holds no braces.
    """
    count = block.count(b"\n")
    if any(block.count(part) != count for part in (b'{"event": "', b"{", b"}\n", b"}")):
        return None
    if b"NaN" in block or b"Infinity" in block:
        return None
    try:
        records: list[Record] = json.loads(b"[%b]" % block[:-1].replace(b"\n", b","))
    except (ValueError, RecursionError):
        return None
    if len(records) != count or block.count(b'": ') != sum(map(len, records)):
        return None  # two on a line, or a name twice
    groups = [
        list(group) for _, group in groupby(records, key=lambda record: (record["event"], *record))
    ]
    return groups if all(map(_is_plain, groups)) else None


def _is_plain(records: Sequence[Record]) -> bool:
    """Whether `_check` has nothing against records of one event and the same names."""
    first = records[0]
    if first["event"] not in EVENTS or not {"epoch", "step"} <= first.keys():
        return False
    columns = zip(*(value.values() for value in records), strict=True)
    for name, values in zip(first, columns, strict=True):
        if name == "event":
            continue
        kinds = set(map(type, values))
        if len(name) > _LONGEST_NAME or not kinds <= {int, float, type(None)}:
            return False
        if name in ("epoch", "step") and (kinds != {int} or min(values) < 0):
            return False
        known = [value for value in values if value is not None] if type(None) in kinds else values
        if known and not -_HUGE < min(known) <= max(known) < _HUGE:
            return False
    return True


def _check(record: Mapping[str, object]) -> None:
    if record.get("event") not in EVENTS:
        raise ValueError(f"event is {record.get('event')!r:.60}")
    if not all(type(record.get(key)) is int for key in ("epoch", "step")):
        raise ValueError("epoch and step must be whole numbers")
    for name, value in record.items():
        if len(name) > _LONGEST_NAME:
            raise ValueError(f"it has a name of {len(name)} characters")
        if name != "event" and (
            isinstance(value, bool) or not isinstance(value, int | float | None)
        ):
            raise ValueError(f"{name[:100]} is {value!r:.60}, and must be a number")
