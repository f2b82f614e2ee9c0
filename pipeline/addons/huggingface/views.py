"""Columns as samples have them, made of stored columns by what `datasets` says of their features.

    stored                                      here
    a struct {a, b}                             two columns, `x.a` and `x.b`
    lists of structs {a, b}                     two columns of lists, `x.a` and `x.b`
    Array2D to Array5D, as lists of lists       lists of fixed sizes; the first may be open
    dates, times, durations                     int64, in the unit of the feature
    decimals                                    float64
    a null, where `nulls` has its column        what stands there

Images and audio stay structs of bytes and a path. Values are shared with the stored column, or
made for a whole row group at once; none becomes an object of Python.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.addons.storage.rows import no_column
from penstock.addons.tables.arrow.columns import is_list, kinds_of
from penstock.addons.tables.arrow.files import ArrowFiles, empty, features_of, in_one_piece
from penstock.datasets.files import Files
from penstock.errors import ConfigError, DataError, Problem

if TYPE_CHECKING:
    import pyarrow as pa

Feature = Mapping[str, Any]
_FILES = ("Image", "Audio", "Video", "Pdf", "Nifti")  # structs of bytes and a path
_LISTS = ("Sequence", "List", "LargeList")
_ARRAYS = ("Array2D", "Array3D", "Array4D", "Array5D")
_TIME = re.compile(
    r"(?P<name>date32|date64|time32|time64|timestamp|duration)"
    r"(?:\[(?P<unit>s|ms|us|ns)(?:, tz=(?P<zone>[\w/+:-]{1,64}))?\])?"
)
_DEEPEST = 16  # structs and lists in a column
_MOST = 1 << 40  # numbers of one array


@dataclass(frozen=True)
class View:
    """A column, and how it is made of a stored one.

    Attributes:
        column: the stored one.
        path: numbers of the fields of structs, the outermost first.
        feature: its description by `datasets`; empty if there is none.
        sizes: of the lists of an array; None: of any length, for the first alone.
        filled: what stands for a null; None: nothing does.
    """

    column: str
    path: tuple[int, ...] = ()
    feature: Feature = field(default_factory=dict)
    sizes: tuple[int | None, ...] = ()
    filled: Any = None

    def made(self, array: pa.Array) -> pa.Array:
        """The column of a stored one.

        Raises:
            ValueError: an array is not of its shape.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        for number in self.path:
            array = _part(array, number)
        if self.sizes:
            array = _shaped(array, self.sizes)
        array = _numbers(array, self.feature)
        if self.filled is not None and array.null_count:
            array = pc.coalesce(array, pa.scalar(self.filled, array.type))
        return array


class FeatureFiles(ArrowFiles):
    """Row groups with the columns that features become; see `View`.

    Args:
        addresses, files: as in `ArrowFiles`.
        features: column -> its description; those in the first file if empty.
        nulls: column -> what stands for its nulls.

    Raises:
        DataError: a description does not fit its column, or two columns have one name.
        ConfigError: `nulls` names no column, or a value that is not of its type.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        files: Files,
        features: Mapping[str, Any],
        nulls: Mapping[str, Any],
    ) -> None:
        import pyarrow as pa

        super().__init__(addresses, files)
        described = features or features_of(self._stored)
        views: dict[str, View] = {}
        fields: list[pa.Field] = []
        for column in self._stored:
            for name, view in _views(column.name, column.type, described.get(column.name)):
                if name in views:
                    raise DataError(
                        f"{self.name(0)!r}: two columns are called {name!r}. Rename one of them."
                    )
                try:
                    kind = view.made(empty(column.type)).type
                except (ValueError, NotImplementedError) as error:
                    reason = f"is {column.type}, and described as {_described(view.feature)}"
                    raise DataError(
                        f"{self.name(0)!r}: column {column.name!r} {reason}. Save the dataset "
                        "again."
                    ) from error
                views[name] = view
                fields.append(pa.field(name, kind))
        for name, value in nulls.items():
            if name not in views:
                reason = no_column(name, list(views))
                raise ConfigError(Problem(f"dataset.nulls.{name}", reason))
            kind = fields[list(views).index(name)].type
            try:
                pa.scalar(value, kind)
            except (ValueError, TypeError, OverflowError) as error:
                reason = f"{value!r} cannot stand in a column of {kind}"
                raise ConfigError(Problem(f"dataset.nulls.{name}", reason)) from error
            old = views[name]
            views[name] = View(old.column, old.path, old.feature, old.sizes, value)
        known = {name: dict(view.feature) for name, view in views.items() if view.feature}
        described_here = json.dumps({"info": {"features": known}})
        self.schema = pa.schema(fields, metadata={"huggingface": described_here})
        self._views = views

    def _columns(self, names: Sequence[str]) -> list[str]:
        """The stored columns of some columns."""
        return list(dict.fromkeys(self._views[name].column for name in names))

    def check(self, columns: Sequence[str], trained: ArrowFiles, whole: bool) -> None:
        super().check(self._columns(columns), trained, whole)

    def addresses_of(self, group: int, columns: tuple[str, ...]) -> tuple[str, ...]:
        return super().addresses_of(group, tuple(self._columns(columns)))

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        import pyarrow as pa

        table, size = super().read(group, self._columns(columns))
        with self.reading(group):
            stored = {name: in_one_piece(table, name) for name in table.column_names}
            views = [self._views[name] for name in columns]
            arrays = [view.made(stored[view.column]) for view in views]
        made = pa.Table.from_arrays(arrays, names=list(columns))
        return made, max(size, made.nbytes)


def _views(
    name: str, kind: pa.DataType, feature: Any, path: tuple[int, ...] = (), column: str = ""
) -> Iterator[tuple[str, View]]:
    """The columns that a stored one becomes, by their names."""
    import pyarrow as pa

    column = column or name
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
        kind = kind.storage_type
    inner, feature = kind, _plain(feature)
    written = feature.get("_type")
    lists = is_list(kind)
    if lists:
        inner = kind.value_type
    is_file = written in _FILES or (not feature and bool(kinds_of(inner)))
    if pa.types.is_struct(inner) and not is_file and len(path) < _DEEPEST:
        parts = _parts(feature, lists)
        for number in range(inner.num_fields):
            part = inner.field(number)
            whole = pa.list_(part.type) if lists else part.type
            described = parts.get(part.name)
            if lists and described is not None:
                described = {"_type": "List", "feature": described}
            yield from _views(
                f"{name}.{part.name}", whole, described, (*path, number), column=column
            )
        return
    sizes = _sizes(feature, column) if written in _ARRAYS else ()
    yield name, View(column, path, feature, sizes)


def _plain(feature: Any) -> Feature:
    """A description as a mapping; `[x]` is a list of x."""
    if isinstance(feature, list) and len(feature) == 1:
        return {"_type": "List", "feature": feature[0]}
    return feature if isinstance(feature, dict) else {}


def _parts(feature: Feature, lists: bool) -> Mapping[str, Any]:
    """Descriptions of the fields of a struct, or of that in a list."""
    outer = feature.get("_type")
    if isinstance(outer, str):  # lists of a struct, which older versions store as one of lists
        inside = feature.get("feature")
        feature = inside if isinstance(inside, dict) and outer in _LISTS else {}
        if not lists:
            feature = {name: {"_type": "List", "feature": of} for name, of in feature.items()}
    return {} if isinstance(feature.get("_type"), str) else feature


def _sizes(feature: Feature, column: str) -> tuple[int | None, ...]:
    shape = feature.get("shape")
    sizes = tuple(shape) if isinstance(shape, list) else ()
    whole = all(type(size) is int and size > 0 for size in sizes[1:]) and len(sizes) > 1
    first = bool(sizes) and (sizes[0] is None or (type(sizes[0]) is int and sizes[0] > 0))
    if not (whole and first) or math.prod(size or 1 for size in sizes) > _MOST:
        raise DataError(
            f"column {column!r} is described as an array of shape {shape}, which is none. Save the "
            "dataset again."
        )
    return sizes


def _described(feature: Feature) -> str:
    return f"{feature.get('_type', 'nothing')} {feature.get('shape', '')}".rstrip()


def _part(array: pa.Array, number: int) -> pa.Array:
    """A field of structs, or of those in lists, which stay lists; null where its struct is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_list(array.type):
        return pc.struct_field(array, indices=[number])
    mask = array.is_null() if array.null_count else None
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        inner = _part(array.values.slice(array.offset * size, len(array) * size), number)
        return pa.FixedSizeListArray.from_arrays(inner, size, mask=mask)
    # A copy of the offsets, as a slice of them cannot go with a mask.
    offsets = pa.array(array.offsets.to_numpy())
    kind = pa.LargeListArray if pa.types.is_large_list(array.type) else pa.ListArray
    return kind.from_arrays(offsets, _part(array.values, number), mask=mask)


def _shaped(array: pa.Array, sizes: Sequence[int | None]) -> pa.Array:
    """Lists of lists as lists of fixed sizes.

    Raises:
        ValueError: a list has another length.
    """
    import pyarrow as pa

    if not sizes:
        return array
    if not is_list(array.type):
        raise ValueError(f"an array of {len(sizes)} dimensions more is {array.type}")
    size = sizes[0]
    mask = array.is_null() if array.null_count else None
    if pa.types.is_fixed_size_list(array.type):
        own = array.type.list_size
        if size not in (None, own):
            raise ValueError(f"an array has {own} rows, and is described with {size}")
        inner = array.values.slice(array.offset * own, len(array) * own)
        return pa.FixedSizeListArray.from_arrays(_shaped(inner, sizes[1:]), own, mask=mask)
    offsets = array.offsets.to_numpy()
    if size is None:
        first, last = int(offsets[0]), int(offsets[-1])
        inner = _shaped(array.values.slice(first, last - first), sizes[1:])
        kind = pa.LargeListArray if pa.types.is_large_list(array.type) else pa.ListArray
        return kind.from_arrays(pa.array(offsets - first), inner, mask=mask)
    lengths = np.diff(offsets)
    valid = np.ones(len(array), bool) if mask is None else ~mask.to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(valid & (lengths != size))
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(f"list {row} has {lengths[row]} values, and its array says {size}")
    if mask is None:
        first = int(offsets[0]) if len(array) else 0
        inner = array.values.slice(first, len(array) * size)
    else:
        places = offsets[:-1, None] + np.arange(size)
        inner = array.values.take(pa.array(places.ravel(), mask=np.repeat(~valid, size)))
    return pa.FixedSizeListArray.from_arrays(_shaped(inner, sizes[1:]), size, mask=mask)


def _numbers_of(kind: pa.DataType) -> pa.DataType:
    """The type of numbers that stand for values of `kind`; otherwise itself."""
    import pyarrow as pa

    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_decimal(kind) else kind


def _numbers(array: pa.Array, feature: Feature) -> pa.Array:
    """Dates, times and decimals as numbers."""
    import pyarrow as pa

    kind = _numbers_of(array.type)
    if kind == array.type:
        return array
    described = _time(str(feature.get("dtype")))
    if described is not None and described != array.type:  # Parquet has no seconds
        array = array.cast(described)
    if array.type.bit_width == 32:  # which Arrow casts to int32 only
        array = array.cast(pa.int32())
    return array.cast(kind)


def _time(dtype: str) -> pa.DataType | None:
    """Arrow's type of a date, time or duration, as `datasets` calls it."""
    import pyarrow as pa

    match = _TIME.fullmatch(dtype)
    if match is None:
        return None
    makers: dict[str, Any] = {
        "date32": pa.date32,
        "date64": pa.date64,
        "time32": pa.time32,
        "time64": pa.time64,
        "timestamp": pa.timestamp,
        "duration": pa.duration,
    }
    make = makers[match["name"]]
    unit, zone = match["unit"], match["zone"]
    try:
        return make(*filter(None, (unit, zone)))
    except (ValueError, TypeError):  # time32 in nanoseconds
        return None
