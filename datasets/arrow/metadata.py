"""The table of an Arrow table's samples: what samplers choose by.

    column of the files     in the table
    numbers                 as they are
    label fields            the number of the class; the first one's name too, as `class`
    text                    as it is, and its length in characters as `<name>_length`
    lists                   their length as `<name>_length`
    images, bytes           nothing

A field goes by its name in the samples, any other column by its name in the files. Only these
columns are read, a row group at a time; text is most of the cost, and `metadata_columns` leaves out
what is not needed: with `text_length` and without `text`, no text is held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.datasets.arrow.columns import has_lengths, kinds_of
from pipeline.datasets.arrow.files import in_one_piece
from pipeline.datasets.arrow.labels import label_codes
from pipeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from pipeline.datasets.arrow.table import ArrowTable

# A column of the table: which column of the files it is made of, and how.
Made = tuple[str, Callable[["pa.Array"], Any]]

CLASS = "class"


def read_metadata(table: ArrowTable) -> pd.DataFrame:
    """A row per sample, in the order of the samples.

    Raises:
        ConfigError: `metadata_columns` names a column that cannot be made.
    """
    import pandas as pd
    import pyarrow as pa

    made = _wanted(_all_columns(table), table.options.metadata_columns)
    sources = list(dict.fromkeys(source for source, _ in made.values()))
    used = [group for group, count in enumerate(table.group_lengths) if count]
    parts = [_part(table, group, made, sources) for group in used]
    frame: pd.DataFrame = pa.concat_tables(parts).unify_dictionaries().to_pandas()
    if CLASS in made:
        names = pd.Index(next(iter(table.classes.values())))
        frame[CLASS] = pd.Categorical.from_codes(frame[CLASS].to_numpy(), categories=names)
    return frame


def _part(table: ArrowTable, group: int, made: Mapping[str, Made], sources: list[str]) -> pa.Table:
    import pyarrow as pa

    read, _ = table.files.read(group, sources)
    arrays = {source: in_one_piece(read, source) for source in sources}
    part = pa.table({name: make(arrays[source]) for name, (source, make) in made.items()})
    rows = table.rows_in(group)
    return part if len(rows) == part.num_rows else part.take(pa.array(rows))


def _all_columns(table: ArrowTable) -> dict[str, Made]:
    """Everything that can be in the table, by name."""
    columns = {column.field: (column.name, column.kind) for column in table.columns}
    taken = {name for name, _ in columns.values()}
    for name in table.files.schema.names:
        kinds = kinds_of(table.files.schema.field(name).type)
        if kinds and name not in taken and name not in columns:
            columns[name] = (name, kinds[0])
    made: dict[str, Made] = {}
    for field, (name, kind) in columns.items():
        if kind == "label" and field in table.classes:
            classes = table.classes[field]
            made[field] = (name, partial(label_codes, classes=classes))
            if field == next(iter(table.classes)):
                made.setdefault(CLASS, made[field])
        elif kind in ("number", "label", "text"):
            made[field] = (name, _plain)
        if kind == "text" or has_lengths(table.files.schema.field(name).type):
            made[f"{field}_length"] = (name, _lengths)
    return made


def _plain(array: pa.Array) -> pa.Array:
    import pyarrow as pa

    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _lengths(array: pa.Array) -> pa.Array:
    """Lengths of lists, or of texts in characters."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = _plain(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kinds_of(array.type)[0] == "text":
        return pc.utf8_length(array.cast(pa.large_string()))
    return pc.list_value_length(array)


def _wanted(made: dict[str, Made], wanted: Any) -> dict[str, Made]:
    if wanted is None:
        return made
    for name in wanted:
        if name not in made:
            near = get_close_matches(str(name), made, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            reason = f"the table has no column {name!r}{hint} (it can have {', '.join(made)})"
            raise ConfigError(Problem("dataset.metadata_columns", reason))
    return {name: made[name] for name in wanted}
