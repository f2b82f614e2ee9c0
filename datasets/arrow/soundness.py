"""Whether arrays of a file point only at their own memory.

Arrow's readers check that buffers are there, not what they hold. An offset outside of its values is
then followed wherever it leads: to memory of something else, returned as text, or to a crash. So
each array is validated once, when its row group is read.

The encoding of texts is not looked at: it cannot lead out of memory, would cost as much as reading
the texts, and one bad text would take its whole row group along. The cell finds it.

Cost: about 1 ns a row of a column of texts, bytes or lists; nothing for numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def check_table(table: pa.Table) -> None:
    """Raise pyarrow.ArrowInvalid if a column's offsets or dictionary indices are out of bounds."""
    for column in table.columns:
        for chunk in column.chunks:
            _check(chunk)


def _check(array: pa.Array) -> None:
    import pyarrow as pa

    array.validate()  # lengths and sizes of buffers, on which all that follows relies
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        _check(array.storage)
    elif pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            _check(array.field(place))
    elif pa.types.is_dictionary(kind):
        _check(array.dictionary)
        # The indices alone: of values of any type, only their number matters.
        blank = pa.nulls(len(array.dictionary))
        pa.DictionaryArray.from_arrays(array.indices, blank, safe=False).validate(full=True)
    elif pa.types.is_string(kind):
        array.view(pa.binary()).validate(full=True)
    elif pa.types.is_large_string(kind):
        array.view(pa.large_binary()).validate(full=True)
    elif pa.types.is_string_view(kind):
        array.view(pa.binary_view()).validate(full=True)
    else:
        array.validate(full=True)
