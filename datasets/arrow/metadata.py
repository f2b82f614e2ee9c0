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

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.datasets.arrow.columns import has_lengths, is_text, kinds_of, no_column
from pipeline.datasets.arrow.files import in_one_piece
from pipeline.datasets.arrow.labels import label_codes
from pipeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from pipeline.datasets.arrow.table import ArrowTable

# A column of the table: which column of the files it is made of, and how; None: as it is.
Made = tuple[str, Callable[["pa.Array"], Any] | None]

CLASS = "class"


def read_metadata(table: ArrowTable, wanted: Sequence[str] | None) -> pd.DataFrame:
    """A row per sample, in the order of the samples.

    Args:
        table: the samples.
        wanted: columns; None takes all there are.

    Raises:
        ConfigError: `wanted` names a column that cannot be made.
    """
    import pandas as pd
    import pyarrow as pa

    made = _all_columns(table)
    for name in wanted or ():
        if name not in made:
            raise ConfigError(Problem("dataset.metadata_columns", no_column(name, list(made))))
    made = made if wanted is None else {name: made[name] for name in wanted}
    sources = list(dict.fromkeys(source for source, _ in made.values()))
    parts = []
    for group in (group for group, count in enumerate(table.group_lengths) if count):
        read, _ = table.files.read(group, sources)
        arrays = {source: in_one_piece(read, source) for source in sources}
        part = pa.table({
            name: make(arrays[source]) if make else arrays[source]
            for name, (source, make) in made.items()
        })  # fmt: skip
        rows = table.rows_in(group)
        parts.append(part if len(rows) == part.num_rows else part.take(pa.array(rows)))
    frame: pd.DataFrame = pa.concat_tables(parts).unify_dictionaries().to_pandas()
    if CLASS in made:
        names = pd.Index(table.classes)
        frame[CLASS] = pd.Categorical.from_codes(frame[CLASS].to_numpy(), categories=names)
    return frame


def _all_columns(table: ArrowTable) -> dict[str, Made]:
    """Everything that can be in the table, by name."""
    schema = table.files.schema
    columns = {field.name: (field.column, field.kind) for field in table.fields}
    taken = {name for name, _ in columns.values()}
    for name in schema.names:
        kinds = kinds_of(schema.field(name).type)
        if kinds and name not in taken and name not in columns:
            columns[name] = (name, kinds[0])
    made: dict[str, Made] = {}
    for field, (name, kind) in columns.items():
        if kind == "label" and field in table.label_classes:
            made[field] = (name, partial(label_codes, classes=table.label_classes[field]))
            if field == next(iter(table.label_classes)):
                made.setdefault(CLASS, made[field])
        elif kind in ("number", "label", "text"):
            made[field] = (name, None)
        if kind == "text" or has_lengths(schema.field(name).type):
            made[f"{field}_length"] = (name, _lengths)
    return made


def _lengths(array: pa.Array) -> pa.Array:
    """Lengths of lists, or of texts in characters."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_text(array.type):
        return pc.utf8_length(array.cast(pa.large_string()))
    return pc.list_value_length(array)
