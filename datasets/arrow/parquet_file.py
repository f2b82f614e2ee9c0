"""One open Parquet file; what is read of its row groups is decoded.

Before Arrow reads a row group, the headers of its pages say what they will become, and what exceeds
`limits.expansion` is refused (`arrow.parquet_pages`). Texts and bytes that a dictionary or common
prefixes could repeat beyond it are read a part of the rows at a time, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pipeline.datasets.arrow.parquet_footer import Chunk, row_groups
from pipeline.datasets.arrow.parquet_pages import Claim, claim_of
from pipeline.datasets.arrow.soundness import check_table
from pipeline.datasets.reading.expansion import allowed, check_expansion
from pipeline.files.limits import Limits

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetFile:
    """As `arrow.file.ArrowFile`.

    Args:
        path: of this machine; a regular file.
        name: what messages call it.
        limits: what it may claim.
    """

    def __init__(self, path: str, name: str, limits: Limits) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # Not mapped: a file that becomes shorter is then an error and no fatal signal.
        self._source = pa.OSFile(path)
        self._file = pq.ParquetFile(self._source)
        self._name, self._limits = name, limits
        self.check_length = _nothing
        footer = self._file.metadata
        self.schema = self._file.schema_arrow
        self.lengths = [footer.row_group(n).num_rows for n in range(footer.num_row_groups)]
        self._leaves = _leaves([footer.schema.column(n).path for n in range(footer.num_columns)],
                               set(self.schema.names))  # fmt: skip

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        claims, packed = self._claims(group, columns)
        budget = allowed(packed, self._limits)
        # Arrow's threads would compete with the loader's workers, which divide the work already.
        if sum(claim.most for claim in claims) <= budget:
            table = self._file.read_row_group(group, columns=list(columns), use_threads=False)
        else:
            rows = max(1, budget // max(1, sum(claim.cell for claim in claims)))
            table = self._in_parts(group, columns, rows, packed)
        check_table(table)
        return table, table.nbytes

    @cached_property
    def _chunks(self) -> list[list[Chunk]]:
        return row_groups(self._source, self._file.metadata.num_columns)

    def _claims(self, group: int, columns: Sequence[str]) -> tuple[list[Claim], int]:
        """What some columns of a row group claim, and their bytes in the file."""
        schema = self._file.metadata.schema
        claims, packed = [], 0
        for name in columns:
            for place in self._leaves.get(name, []):
                chunk = self._chunks[group][place]
                claims.append(claim_of(self._source, chunk, schema.column(place)))
                packed += chunk.size
        least = sum(claim.least for claim in claims)
        check_expansion(least, packed, self._limits, f"{self._name!r}, row group {group}")
        return claims, packed

    def _in_parts(self, group: int, columns: Sequence[str], rows: int, packed: int) -> pa.Table:
        import pyarrow as pa

        parts, size = [], 0
        for batch in self._file.iter_batches(rows, [group], list(columns), use_threads=False):
            parts.append(batch)
            size += batch.nbytes
            check_expansion(size, packed, self._limits, f"{self._name!r}, row group {group}")
        return pa.Table.from_batches(parts) if parts else self._file.schema_arrow.empty_table()


def _nothing() -> None:
    """What was read lies in memory."""


def _leaves(paths: Sequence[str], names: set[str]) -> dict[str, list[int]]:
    """Column -> numbers of the stored columns it is made of; a struct of two has two.

    A path joins names by dots, which names may hold as well.
    """
    found: dict[str, list[int]] = {name: [] for name in names}
    for number, path in enumerate(paths):
        parts = path.split(".")
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[:count])
            if name in names:
                found[name].append(number)
    return found
