"""The CSV of landmarks, read strictly: a header, then a row per image.

    image_name,part_0_x,part_0_y,part_1_x,part_1_y,...
    0805.jpg,27,83,27,98,...

The columns may stand in any order and others may stand between them. Nothing is guessed: whatever
is missing, doubled, empty, no number or not finite is refused with its line and column. Cost: about
20 us a row of 68 landmarks, 550 bytes a row afterwards.
"""

from __future__ import annotations

import csv
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.errors import DataError
from pipeline.randomness import IntArray

if TYPE_CHECKING:
    from _csv import Reader

NAME = "image_name"


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
    path: Path, num_landmarks: int | None = None, name: str | None = None
) -> LandmarkTable:
    """Read the CSV `path`; with `num_landmarks`, the columns of exactly so many must be there.

    Args:
        name: what messages call the file, if not by its path.

    Raises:
        DataError: names the file, the line (from 1), the column and the value, and says what to do.
    """
    shown = name or str(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            columns = _columns(shown, next(reader, []), num_landmarks)
            names, values, lines = _read_rows(shown, reader, columns)
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


@dataclass(frozen=True)
class _Columns:
    header: list[str]
    name: int
    coordinates: list[int]  # where part_0_x, part_0_y, part_1_x ... stand


def _columns(path: str, header: list[str], num_landmarks: int | None) -> _Columns:
    if not header:
        raise DataError(f"{path!r} is empty: it needs a header ({NAME},part_0_x,part_0_y,...)")
    header = [name.strip() for name in header]
    places = {name: place for place, name in enumerate(header)}
    if len(places) < len(header):
        double = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{path!r}, line 1: column {double!r} stands there twice. Take one out.")
    parts = {int(name.split("_")[1]) for name in places if _is_coordinate(name)}
    count = max(parts, default=0) + 1 if num_landmarks is None else num_landmarks
    wanted = [f"part_{part}_{axis}" for part in range(count) for axis in "xy"]
    for name in [NAME, *wanted]:
        if name not in places:
            raise DataError(
                f"{path!r}, line 1: column {name!r} is missing (it has {len(header)} columns: "
                f"{', '.join(header[:4])} ...). Add it{_count_hint(num_landmarks, parts)}."
            )
    return _Columns(header, places[NAME], [places[name] for name in wanted])


def _is_coordinate(name: str) -> bool:
    kind, _, rest = name.partition("_")
    number, _, axis = rest.partition("_")
    return kind == "part" and number.isdecimal() and axis in ("x", "y")


def _count_hint(num_landmarks: int | None, parts: set[int]) -> str:
    if num_landmarks is None or len(parts) == num_landmarks:
        return ""
    return f", or set dataset.num_landmarks={len(parts)}"


def _read_rows(
    path: str, reader: Reader, columns: _Columns
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
        if name in names:
            raise DataError(
                f"{path!r}, line {line}, column {NAME!r}: {name!r} already stands in line "
                f"{names[name]}. Take one of the rows out."
            )
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
