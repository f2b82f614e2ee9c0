"""Batches of tables gathered from columns, without a value for each cell.

1. A column of a row group becomes `Numbers`, `Texts` or `Lists`, which give the values of any rows
   at once, and say which of these are bad: null, not finite, of no class, too large.
2. Where all numbers of the rows together are no larger than the cache, they are kept in one array
   for each type, a row beside the next, and filled by row groups as these are asked for. A batch is
   then one gather for each type.
3. Texts that lie few to a row group are made in one pass, if all of these row groups are in memory.
4. Otherwise the rows of a batch are gathered from each row group that they lie in.

The values are those of `cells.read_cells`, to the bit. A batch with a bad row is refused, and made
sample by sample, which names the cell.

Cost: 0.1 to 0.2 us a row of 20 numbers that are kept; 0.2 us a text; beside that, 5 us for each
column and row group where they are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from penstock.addons.tables.arrow.columns import TableField, is_list, label_codes
from penstock.addons.tables.arrow.files import empty
from penstock.datasets.arrays import plain_numbers
from penstock.errors import DataError
from penstock.files.limits import Limits
from penstock.loading.collate import Ragged, joined
from penstock.loading.output import allocate
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pyarrow as pa

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Shape = tuple[int, ...]

_FEW = 32  # rows that are read one by one
_BAD = "one of its rows has a cell that cannot be read"
_LARGEST = np.iinfo(np.int64).max


class BadRowsError(DataError):
    """A batch cannot be gathered: one of its rows has a bad cell, or of another shape."""


@dataclass(frozen=True)
class Layout:
    """The numbers of a field in a batch: [B, *shape] of `dtype`."""

    shape: Shape
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Numbers:
    """Numbers of one shape a row, as they are stored: [n, *shape], or a column of each of several.

    Args:
        stored: [n, *shape] of any type; of a field that several columns are put together in, [n]
            for each of them.
        layout: what they become.
        order: of the dimensions, where they are stored in another one.
    """

    stored: Sequence[Array]
    layout: Layout
    bad: Mask | None
    joined: bool = False
    order: Sequence[int] | None = None

    def write(self, into: Array, rows: IntArray | slice) -> Mask | None:
        """Write some rows into [n, *shape]; which of them turn out to be bad."""
        bad = None if self.bad is None else self.bad[rows]
        for number, stored in enumerate(self.stored):
            values = stored[rows]
            if self.order is not None:
                values = values.transpose(0, *(1 + place for place in self.order))
            if values.dtype.kind == "f":
                finite = np.isfinite(values)
                if not finite.all():
                    wrong: Mask = ~finite
                    bad = _either(bad, wrong.reshape(len(values), -1).any(axis=1))
            with np.errstate(all="ignore"):  # of bad rows; and what is too large for a float32
                if self.joined:
                    into[:, number] = values
                else:
                    into[...] = values
        return bad


class Content(NamedTuple):
    """Texts or bytes of a row group, end to end.

    Attributes:
        starts: [n + 1], where each begins in `content`, and where the last one ends.
    """

    starts: memoryview[int]
    content: memoryview[int]
    is_text: bool


def _values_at(contents: Iterable[Content], rows: Sequence[int]) -> list[Any]:
    """The value of each row in the content of its row group, of which there may be no end."""
    return [
        str(content[starts[row] : starts[row + 1]], "utf-8")
        if is_text
        else bytes(content[starts[row] : starts[row + 1]])
        for (starts, content, is_text), row in zip(contents, rows, strict=False)
    ]


@dataclass(frozen=True)
class Texts:
    """Texts or bytes."""

    array: pa.Array
    bad: Mask | None

    def write(self, into: list[Any], places: list[int], rows: list[int]) -> None:
        """Write the values of some rows to some places of a list."""
        if self.bad is not None:
            _refuse(self.bad, np.array(rows))
        if self.content is None or len(rows) >= _FEW:
            values = self._taken(rows)
        else:
            values = _values_at(repeat(self.content), rows)
        for place, value in zip(places, values, strict=True):
            into[place] = value

    def _taken(self, rows: list[int]) -> list[Any]:
        """One a row."""
        import pyarrow as pa

        taken = self.array.take(pa.array(rows, pa.int64()))
        if pa.types.is_dictionary(self.array.type):
            taken = taken.dictionary_decode()
        values: list[Any] = taken.to_numpy(zero_copy_only=False).tolist()
        return values

    @cached_property
    def content(self) -> Content | None:
        """The content of all; None where Arrow has another form.

        For a few rows it costs a twentieth of a call of Arrow's.
        """
        widths: dict[str, Literal["i", "q"]] = {
            "string": "i",
            "binary": "i",
            "large_string": "q",
            "large_binary": "q",
        }
        kind = str(self.array.type)
        _, offsets, content = self.array.buffers() if kind in widths else (None, None, None)
        if offsets is None or content is None:
            return None
        starts = memoryview(offsets).cast("B").cast(widths[kind])[self.array.offset :]
        return Content(starts, memoryview(content).cast("B"), kind.endswith("string"))


@dataclass(frozen=True)
class Lists:
    """Lists of different lengths, of numbers or of lists of one length.

    Args:
        starts: int64[n + 1], in `stored`.
        stored: [m, ...], numbers of any type.
    """

    starts: IntArray
    stored: Array
    bad: Mask | None

    def values(self, rows: IntArray) -> Ragged:
        """Of some rows."""
        _refuse(self.bad, rows)
        starts = self.starts[rows]
        lengths = self.starts[rows + 1] - starts
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        places = np.arange(total)
        places += np.repeat(starts - (ends - lengths), lengths)
        values = self.stored[places]
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise BadRowsError("a list has a value that is not finite")
        return Ragged(torch.from_numpy(plain_numbers(values)), torch.from_numpy(lengths))


def columns_of(
    field: TableField, arrays: Sequence[pa.Array], classes: Sequence[str], limits: Limits
) -> Numbers | Texts | Lists:
    """A field of one row group.

    Args:
        arrays: the columns that the field is made of, in one piece each.
        classes: names of the classes of a label.
    """
    array = arrays[0]
    bad = _nulls(array)
    if field.kind in ("number", "numbers"):
        for other in arrays[1:]:
            bad = _either(bad, _nulls(other))
        stored = [_numbers(column) for column in arrays]
        for values in stored:
            if values.dtype == np.uint64:
                bad = _either(bad, values > _LARGEST)
        whole = all(values.dtype.kind != "f" for values in stored)
        joined = field.kind == "numbers"
        layout = Layout((len(stored),) * joined, np.dtype(np.int64 if whole else np.float32))
        return Numbers(stored, layout, bad, joined)
    if field.kind == "label":
        codes = label_codes(array, classes)
        return Numbers([codes], Layout((), codes.dtype), _either(None, codes < 0))
    if field.kind in ("text", "bytes"):
        return _texts(array, bad, limits)
    return _tensors(array, bad, limits)


def can_gather(field: TableField, types: Sequence[pa.DataType]) -> bool:
    """Whether `columns_of` takes a field of columns of these types."""
    import pyarrow as pa

    kind = types[0]
    if field.kind in ("number", "numbers", "label"):
        return True
    if field.kind in ("text", "bytes"):
        # Neither Arrow's views nor structs can be taken as they are.
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        return str(kind) in ("string", "large_string", "binary", "large_binary")
    if field.kind != "tensor":
        return False
    if isinstance(kind, pa.FixedShapeTensorType):
        return True
    if not pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return not is_list(kind)


def _numbers(array: pa.Array) -> Array:
    if array.null_count:
        array = array.fill_null(False if str(array.type) == "bool" else 0)
    values: Array = array.to_numpy(zero_copy_only=False)
    return values


def _nulls(array: pa.Array) -> Mask | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _refuse(bad: Mask | None, rows: IntArray) -> None:
    """Raise BadRowsError if one of `rows` is bad."""
    if bad is not None and bad[rows].any():
        raise BadRowsError(_BAD)


def _either(bad: Mask | None, more: Any) -> Mask | None:
    """Rows that are bad by either; None where none is."""
    if more is None or not more.any():
        return bad
    return more if bad is None else bad | more


def _texts(array: pa.Array, bad: Mask | None, limits: Limits) -> Texts:
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = pa.types.is_dictionary(array.type)
    lengths = pc.binary_length(array.dictionary if coded else array)
    if (pc.max(lengths).as_py() or 0) > limits.record_bytes:
        of_rows = lengths.take(array.indices) if coded else lengths
        bad = _either(
            bad, of_rows.fill_null(0).to_numpy(zero_copy_only=False) > limits.record_bytes
        )
    return Texts(array, bad)


def _tensors(array: pa.Array, bad: Mask | None, limits: Limits) -> Numbers | Lists:
    import pyarrow as pa

    shape: Shape | None = None
    order: Sequence[int] | None = None
    if isinstance(array.type, pa.FixedShapeTensorType):
        shape, order, array = tuple(array.type.shape), array.type.permutation, array.storage
    starts: IntArray | None = None
    if not pa.types.is_fixed_size_list(array.type):
        starts, array = array.offsets.to_numpy().astype(np.int64), array.values
    count, sizes, holes = len(array), list[int](), None
    if starts is not None:
        holes = _either(holes, _nulls(array))
    while pa.types.is_fixed_size_list(array.type):
        size = int(array.type.list_size)
        array = array.values.slice(array.offset * size, len(array) * size)
        sizes.append(size)
        inside = _nulls(array)
        if inside is not None:
            by_row: Mask = inside.reshape(count, math.prod(sizes))
            holes = _either(holes, by_row.any(axis=1))
    shape = tuple(sizes) if shape is None else shape
    values = _numbers(array).reshape(count, *shape)
    width = values.dtype.itemsize * math.prod(shape)
    if starts is None:
        bad = _either(bad, holes)
        if width > limits.record_bytes:
            bad = np.ones(count, np.bool_)
        permuted = shape if order is None else tuple(shape[place] for place in order)
        dtype = plain_numbers(values[:0]).dtype
        return Numbers([values], Layout(permuted, dtype), bad, order=order)
    bad = _either(bad, np.diff(starts) * width > limits.record_bytes)
    if holes is not None:
        before = np.concatenate([[0], np.cumsum(holes)])
        bad = _either(bad, before[starts[1:]] > before[starts[:-1]])
    return Lists(starts, values, bad)


class Group(Protocol):
    """A row group that is at hand."""

    def column(self, name: str, /) -> Any:
        """The field of that name: `Numbers`, `Texts` or `Lists`."""


class Groups(Protocol):
    """Row groups by number, the last used of which are in memory."""

    def get(self, group: int) -> Group:
        """One of them."""

    def held(self, groups: Sequence[int]) -> Sequence[Group] | None:
        """Several, if all of them are in memory."""


class Gatherer:
    """Batches of the rows of one split.

    Args:
        fields: of a sample, in order.
        layouts: field -> of those of numbers.
        lengths: rows of the split in each row group.
        rows_in: number of a row group -> its rows that are of the split, ascending.
        locate: rows of the split -> the row group of each, and its row there.
        groups: the row groups.
        most: bytes that may be kept.

    Attributes:
        kept_bytes: that numbers take when all row groups have been asked for.
    """

    def __init__(
        self,
        fields: Sequence[TableField],
        layouts: dict[str, Layout],
        lengths: Sequence[int],
        rows_in: Callable[[int], IntArray],
        locate: Callable[[IntArray], tuple[IntArray, IntArray]],
        groups: Groups,
        most: int,
    ) -> None:
        self._fields, self._layouts = fields, layouts
        self._rows_in, self._locate, self._groups = rows_in, locate, groups
        self._firsts = np.cumsum([0, *lengths], dtype=np.int64)
        count = int(self._firsts[-1])
        self._blocks = _blocks_of(layouts)
        self.kept_bytes = count * sum(layout.row_bytes for layout in layouts.values())
        self._others = list(fields)
        self._kept: list[Array] = []
        self._missing = np.zeros(0, np.bool_)  # row groups whose numbers are not there yet
        self._is_bad = np.zeros(0, np.bool_)
        self._any_bad = False
        if self.kept_bytes > most:
            self.kept_bytes = 0
        elif layouts:
            # Pages take memory when they are written, so nothing is taken for what is not read.
            self._kept = [np.empty((count, *block.shape), block.dtype) for block in self._blocks]
            self._missing, self._is_bad = np.diff(self._firsts) > 0, np.zeros(count, np.bool_)
            self._others = [field for field in fields if field.name not in layouts]
        kept = set() if self._kept == [] else set(layouts)
        self._by_group = _blocks_of({k: v for k, v in layouts.items() if k not in kept})

    def batch(self, indices: IntArray) -> dict[str, Any]:
        """Rows by their index in the split: fields of a batch, as `loading/whole.py` takes them.

        Raises:
            DataError: a row group or a row of them cannot be read.
            IndexError: there is no such row.
        """
        indices = np.asarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < self._firsts[-1]:
            raise IndexError(f"an index is outside [0, {self._firsts[-1]})")
        made: dict[str, Any] = {}
        if self._kept:
            if self._missing.any():
                groups = np.searchsorted(self._firsts, indices, side="right") - 1
                for group in np.unique(groups[self._missing[groups]]).tolist():
                    self._fill(group)
            if self._any_bad and self._is_bad[indices].any():
                raise BadRowsError(_BAD)
            for block, kept in zip(self._blocks, self._kept, strict=True):
                made |= block.gathered(kept, indices)
        if self._others:
            groups, rows = self._locate(indices)
            made |= self._scattered_texts(groups, rows)
            others = [field for field in self._others if field.name not in made]
            if others:
                made |= self._gathered_by_group(others, groups, rows)
        return {field.name: made[field.name] for field in self._fields}

    def _fill(self, number: int) -> None:
        """Keep the numbers of a row group. Two threads that do so write the same."""
        group = self._groups.get(number)
        first, last = self._firsts[number : number + 2].tolist()
        found = self._rows_in(number)
        begin, end = int(found[0]), int(found[-1]) + 1
        rows = slice(begin, end) if end - begin == last - first else found  # a slice copies nothing
        bad: Mask | None = None
        for block, kept in zip(self._blocks, self._kept, strict=True):
            for name, place in block.places.items():
                bad = _either(bad, group.column(name).write(kept[first:last][place], rows))
        if bad is not None:
            self._is_bad[first:last], self._any_bad = bad, True
        self._missing[number] = False

    def _scattered_texts(self, groups: IntArray, rows: IntArray) -> dict[str, Any]:
        """The texts of rows that lie few to a row group, if all of these are in memory."""
        names = [field.name for field in self._others if field.kind in ("text", "bytes")]
        of_row = groups.tolist() if names else []
        numbers = list(set(of_row))  # a fifth of the time of `np.unique`
        made: dict[str, Any] = {}
        if len(rows) >= _FEW * len(numbers):
            return made
        held = self._groups.held(numbers)
        if held is None:
            return made
        for name in names:
            columns = [group.column(name) for group in held]
            contents = [column.content for column in columns if column.bad is None]
            if len(contents) == len(columns) and None not in contents:
                of_group = dict(zip(numbers, contents, strict=True))
                made[name] = _values_at(map(of_group.__getitem__, of_row), rows.tolist())
        return made

    def _gathered_by_group(
        self, fields: Sequence[TableField], groups: IntArray, rows: IntArray
    ) -> dict[str, Any]:
        """Fields from each row group of the batch in turn."""
        count = len(rows)
        order = np.argsort(groups, kind="stable")
        rows, places = rows[order], order.tolist()
        numbers, starts = np.unique(groups[order], return_index=True)
        blocks = self._by_group
        outputs = [allocate(b.output(count), b.dtype) for b in blocks]
        made: dict[str, Any] = {}
        lists: dict[str, list[Ragged]] = {}
        for field in fields:
            if field.kind in ("text", "bytes"):
                made[field.name] = [None] * count
            elif field.name not in self._layouts:
                lists[field.name] = []
        texts, row_list = list(made.items()), rows.tolist() if made else []
        begins = starts.tolist()
        for number, begin, end in zip(
            numbers.tolist(), begins, [*begins[1:], len(rows)], strict=True
        ):
            group = self._groups.get(number)
            for name, values in texts:
                group.column(name).write(values, places[begin:end], row_list[begin:end])
            for name, ragged in lists.items():
                ragged.append(group.column(name).values(rows[begin:end]))
            for block, output in zip(blocks, outputs, strict=True):
                for name, place in block.places.items():
                    numbers_of = np.empty((end - begin, *self._layouts[name].shape), block.dtype)
                    bad = group.column(name).write(numbers_of, rows[begin:end])
                    if bad is not None and bad.any():
                        raise BadRowsError(_BAD)
                    block.part(output.array, place)[order[begin:end]] = numbers_of
        for block, output in zip(blocks, outputs, strict=True):
            made |= block.fields(output.tensor)
        if lists:
            back = np.empty(count, np.int64)
            back[order] = np.arange(count)
            made |= {name: joined(gathered, back) for name, gathered in lists.items()}
        return made


@dataclass(frozen=True)
class _Block:
    """Fields of numbers that lie together, a row beside the next.

    Single numbers of one type share a block [N, fields], of which a batch takes whole rows: that
    reads a twentieth of the lines of memory that twenty columns would.
    """

    names: Sequence[str]
    shape: Shape
    dtype: np.dtype[Any]
    shared: bool

    @property
    def places(self) -> dict[str, Any]:
        """Where the values of each field are in the block."""
        if not self.shared:
            return {self.names[0]: ...}
        return {name: (slice(None), number) for number, name in enumerate(self.names)}

    def output(self, count: int) -> Shape:
        """The shape of a batch: fields come first where they share it, so each is in one piece."""
        return (len(self.names), count) if self.shared else (count, *self.shape)

    def part(self, output: Array, place: Any) -> Array:
        """The values of one field in a batch."""
        part: Array = output[place[1]] if self.shared else output
        return part

    def gathered(self, kept: Array, indices: IntArray) -> dict[str, torch.Tensor]:
        output = allocate(self.output(len(indices)), self.dtype)
        if self.shared:  # `take` of rows costs a third of indexing by them
            output.array[...] = kept.take(indices, axis=0).T
        else:
            kept.take(indices, axis=0, out=output.array, mode="clip")
        return self.fields(output.tensor)

    def fields(self, made: torch.Tensor) -> dict[str, torch.Tensor]:
        if not self.shared:
            return {self.names[0]: made}
        return dict(zip(self.names, made.unbind(0), strict=True))


def _blocks_of(layouts: dict[str, Layout]) -> list[_Block]:
    blocks = []
    single: dict[np.dtype[Any], list[str]] = {}
    for name, layout in layouts.items():
        if layout.shape == ():
            single.setdefault(layout.dtype, []).append(name)
        else:
            blocks.append(_Block([name], layout.shape, layout.dtype, shared=False))
    for dtype, names in single.items():
        alone = len(names) == 1
        blocks.append(_Block(names, () if alone else (len(names),), dtype, shared=not alone))
    return blocks


def layouts_of(
    fields: Sequence[TableField], types: dict[str, pa.DataType], limits: Limits
) -> dict[str, Layout] | None:
    """The layouts of fields of numbers; None if there is a field that cannot be gathered."""

    layouts = {}
    for field in fields:
        of = [types[name] for name in field.sources]
        if not can_gather(field, of):
            return None
        if field.kind in ("text", "bytes"):
            continue
        column = columns_of(field, [empty(kind) for kind in of], [], limits)
        if isinstance(column, Numbers):
            layouts[field.name] = column.layout
    return layouts
