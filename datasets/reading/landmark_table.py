"""The CSV of landmarks, read strictly: a header, then a row per image.

    image_name,part_0_x,part_0_y,part_1_x,part_1_y,...
    0805.jpg,27,83,27,98,...

The columns may stand in any order and others may stand between them. Nothing is guessed: whatever
is missing, doubled, empty, no number or not finite is refused with its line and column, and so is a
name that leads out of the folder of images. Cost: about 20 us a row of 68 landmarks, 550 bytes a
row afterwards.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.datasets.reading.inner_name import leads_out
from pipeline.errors import DataError
from pipeline.files.limits import DEFAULT, Limits
from pipeline.files.regular_file import regular_descriptor
from pipeline.order.randomness import IntArray

if TYPE_CHECKING:
    from _csv import Reader

NAME = "image_name"
_LONGEST_LINE = 1 << 23  # characters
_MOST_DIGITS = 18  # of the number of a landmark


@dataclass(frozen=True)
class LandmarkTable:
    """Rows sorted by image name, whatever their order in the file.

    Attributes:
        names: bytes[N], paths relative to the folder of images.
        landmarks: float32[N, L, 2], x and y in pixels.
        lines: int64[N], where a row stands in the file, from 1 (the header).
    """

    names: npt.NDArray[np.bytes_]
    landmarks: npt.NDArray[np.float32]
    lines: IntArray


def read_landmark_table(
    path: Path,
    num_landmarks: int | None = None,
    name: str | None = None,
    limits: Limits = DEFAULT,
) -> LandmarkTable:
    """Read the CSV `path`; with `num_landmarks`, the columns of exactly so many must be there.

    Args:
        name: what messages call the file, if not by its path.
        limits: `columns`, and `files` for the rows.

    Raises:
        DataError: names the file, the line (from 1), the column and the value, and says what to do.
    """
    shown = name or str(path)
    try:
        with open(regular_descriptor(path)[0], newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(_lines(file, shown))
            columns = _columns(shown, next(reader, []), num_landmarks, limits)
            names, values, lines = _read_rows(shown, reader, columns, limits)
    except OSError as error:
        raise DataError(
            f"cannot read the landmarks {shown!r}: {error.strerror}. "
            "Set dataset.root to their folder, or dataset.csv to their name in it."
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{shown!r} is no UTF-8 text: {error}. Save it as CSV in UTF-8.") from error
    except csv.Error as error:
        raise DataError(f"{shown!r}, line {reader.line_num}: {error}. Save it as CSV.") from error
    encoded = np.array([os.fsencode(name) for name in names])
    order = np.argsort(encoded, kind="stable")
    landmarks = np.frombuffer(b"".join(values), np.float32).reshape(len(names), -1, 2)
    return LandmarkTable(encoded[order], landmarks[order], np.array(lines, np.int64)[order])


def _lines(file: io.TextIOBase, path: str) -> Iterator[str]:
    """The lines of a file; of one without ends of lines no more than a long line is read."""
    number = 1
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise DataError(
                f"{path!r}, line {number} is longer than {_LONGEST_LINE} characters. Save the "
                "table as CSV, a row a line."
            )
        yield line
        number += 1


@dataclass(frozen=True)
class _Columns:
    header: list[str]
    name: int
    coordinates: list[int]  # where part_0_x, part_0_y, part_1_x ... stand


def _columns(path: str, header: list[str], num_landmarks: int | None, limits: Limits) -> _Columns:
    if not header:
        raise DataError(f"{path!r} is empty: it needs a header ({NAME},part_0_x,part_0_y,...)")
    if len(header) > limits.columns:
        refusal = limits.refusal("columns", f"{len(header)} columns")
        raise DataError(f"{path!r}, line 1 has {refusal}.")
    header = [name.strip() for name in header]
    places = {name: place for place, name in enumerate(header)}
    if len(places) < len(header):
        double = Counter(header).most_common(1)[0][0]
        raise DataError(f"{path!r}, line 1: column {double!r} stands there twice. Take one out.")
    parts = {int(name.split("_")[1]) for name in places if _is_coordinate(name)}
    count = max(parts, default=0) + 1 if num_landmarks is None else num_landmarks
    # Not a list: a column may claim to be the 10^11th, and the first that is missing ends it.
    wanted = (f"part_{part}_{axis}" for part in range(count) for axis in "xy")
    coordinates = []
    for name in chain([NAME], wanted):
        if name not in places:
            raise DataError(
                f"{path!r}, line 1: column {name!r} is missing (it has {len(header)} columns: "
                f"{', '.join(header[:4])} ...). Add it{_count_hint(num_landmarks, parts)}."
            )
        coordinates.append(places[name])
    return _Columns(header, coordinates[0], coordinates[1:])


def _is_coordinate(name: str) -> bool:
    kind, _, rest = name.partition("_")
    number, _, axis = rest.partition("_")
    short = number.isdecimal() and len(number) <= _MOST_DIGITS
    return kind == "part" and short and axis in ("x", "y")


def _count_hint(num_landmarks: int | None, parts: set[int]) -> str:
    if num_landmarks is None or len(parts) == num_landmarks:
        return ""
    return f", or set dataset.num_landmarks={len(parts)}"


def _read_rows(
    path: str, reader: Reader, columns: _Columns, limits: Limits
) -> tuple[list[str], list[bytes], list[int]]:
    names: dict[str, int] = {}  # name -> line
    values: list[bytes] = []
    for row in reader:
        if not row:  # a blank line, as editors leave at the end
            continue
        line = reader.line_num
        if len(row) != len(columns.header):
            raise DataError(
                f"{path!r}, line {line}: {len(row)} values, but the header has "
                f"{len(columns.header)} columns. Complete the row or take it out."
            )
        name = row[columns.name].strip()
        if not name:
            raise DataError(f"{path!r}, line {line}, column {NAME!r}: the value is empty.")
        if leads_out(name):
            raise DataError(
                f"{path!r}, line {line}, column {NAME!r}: {name!r} leads out of the folder of "
                "images. Names are relative to it and stay below it; correct the row or take it "
                "out."
            )
        if name in names:
            raise DataError(
                f"{path!r}, line {line}, column {NAME!r}: {name!r} already stands in line "
                f"{names[name]}. Take one of the rows out."
            )
        if len(names) >= limits.files:
            raise DataError(f"{path!r} has {limits.refusal('files', f'{line} lines and more')}.")
        names[name] = line
        values.append(_coordinates(path, line, row, columns))
    if not names:
        raise DataError(f"{path!r} has a header and no rows: there is nothing to train on.")
    return list(names), values, list(names.values())


def _coordinates(path: str, line: int, row: list[str], columns: _Columns) -> bytes:
    try:
        numbers = [float(row[place]) for place in columns.coordinates]
    except ValueError:
        numbers = [math.nan]
    if not math.isfinite(sum(numbers)):
        _refuse_row(path, line, row, columns)
    return np.array(numbers, np.float32).tobytes()


def _refuse_row(path: str, line: int, row: list[str], columns: _Columns) -> None:
    for place in columns.coordinates:
        try:
            finite = math.isfinite(float(row[place]))
            wrong = "is not finite"
        except ValueError:
            finite, wrong = False, "is no number"
        if not finite:
            value = row[place]
            said = f"{value!r} {wrong}" if value.strip() else "the value is empty"
            raise DataError(
                f"{path!r}, line {line}, column {columns.header[place]!r}: {said}. "
                "Put a number in pixels there or take the row out."
            )
