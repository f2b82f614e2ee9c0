"""Several map-style datasets as one, whose rows `sampler=mixture` chooses in proportion to weights.

Rows are numbered through the sources in their order, so a source that is added last changes no
number. A mixture hands on what its sources have in common: facts, classes, tables, files, where
rows lie.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset, IterableDataset

from penstock.addons.splits.classes import united
from penstock.datasets.reading.fingerprint import DataFile
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count
from penstock.loading.collate import joined
from penstock.loading.facts import classes_of
from penstock.loading.whole_batches import reads_whole
from penstock.order.columns import EndToEnd
from penstock.order.keys import hash64

if TYPE_CHECKING:
    import pandas as pd

IntArray = npt.NDArray[np.int64]


class NamedSources(ABC):
    """Several datasets by name, with one numbering of their classes.

    Attributes:
        sources: the datasets by name.
    """

    sources: dict[str, Any]

    @property
    def classes(self) -> list[str]:
        """The classes of all sources; none if one of them has none."""
        return min(map(classes_of, self.sources.values()), key=len)

    @abstractmethod
    def _joined(self, fingerprints: Iterable[str]) -> str:
        """The fingerprint, of the sources' own ones."""

    @property
    def facts(self) -> dict[str, int]:
        """The facts that all sources share."""
        facts = [dict(getattr(source, "facts", {})) for source in self.sources.values()]
        return {k: v for k, v in facts[0].items() if all(other.get(k) == v for other in facts)}

    def names_fingerprint(self) -> str:
        """The same without the sizes of the sources' files."""
        return self._joined([self._own(name, "names_fingerprint")() for name in self.sources])

    def data_files(self) -> Iterator[DataFile]:
        """The files of all sources, under `source/name`."""
        for name in self.sources:
            for file in self._own(name, "data_files")():
                yield DataFile(f"{name}/{file[0]}", *file[1:])

    def _own(self, name: str, method: str) -> Any:
        source = self.sources[name]
        if not hasattr(source, method):
            reason = (
                f"{type(source).__name__}, the source {name!r}, has no `{method}` "
                "(docs/own_dataset.md); give it one, or set it to sizes"
            )
            raise ConfigError(Problem("data.fingerprint", reason))
        return getattr(source, method)


def is_stream(source: Any) -> bool:
    """Whether a dataset can only be read forwards."""
    return not hasattr(source, "__getitem__") or isinstance(source, IterableDataset)


class Mixture(NamedSources, Dataset[Any]):
    """Rows of several sources.

    The arguments after `sources` are for the order, and documented at
    `penstock.addons.mixtures.weights`.

    Args:
        sources: map-style datasets by name. The build hands `split` to each of them as well.

    Attributes:
        mixing: those other arguments, by name.
        source_lengths: rows of each source, by name.
    """

    mixes = True

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, Any] | None = None,
        linear: bool = False,
        knots: Literal["steps", "samples"] = "steps",
        passes: Mapping[str, int] | None = None,
        stop: Literal["all", "first"] = "all",
        num_samples: Count | None = None,
    ) -> None:
        if not sources:
            raise ConfigError(Problem("dataset.sources", "is empty; name at least one dataset"))
        for name, source in sources.items():
            if is_stream(source) or not hasattr(source, "__len__"):
                raise ConfigError(
                    Problem(
                        f"dataset.sources.{name}",
                        f"{type(source).__name__} is a stream, "
                        "whose rows cannot be chosen; set dataset=mixture_stream, which reads "
                        "all sources forwards",
                    )
                )
        self.sources = united(sources, "dataset.sources")
        self.mixing = {
            "weights": weights,
            "linear": linear,
            "knots": knots,
            "passes": passes or {},
            "stop": stop,
            "num_samples": num_samples,
        }
        self.source_lengths = {name: len(source) for name, source in sources.items()}
        self._firsts = np.cumsum([0, *self.source_lengths.values()], dtype=np.int64)
        self._parts = list(self.sources.values())
        if all(getattr(source, "draws", None) is False for source in self._parts):
            self.draws = False

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __getitem__(self, index: int) -> Any:
        source, row = self.place_of(index)
        return self.sources[source][row]

    def place_of(self, index: int) -> tuple[str, int]:
        """The name of a row's source, and its row there; IndexError outside of all."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} does not exist; there are {len(self)} rows")
        number = int(np.searchsorted(self._firsts, index, side="right")) - 1
        return list(self.sources)[number], int(index - self._firsts[number])

    @property
    def fetches_batches(self) -> bool:
        """Whether every source gathers rows, of fields of the same kinds."""
        return all(
            reads_whole(part) and getattr(part, "fetches_batches", False) for part in self._parts
        ) and all(part.kinds == self._parts[0].kinds for part in self._parts)

    @property
    def kinds(self) -> Mapping[str, str]:
        """Those of the sources' fields, where these are gathered."""
        kinds: Mapping[str, str] = self._parts[0].kinds
        return kinds

    def fetch_batch(self, indices: IntArray, in_place: bool = False) -> dict[str, Any]:
        """The fields of a batch, gathered from each source; see `WholeBatches`.

        Raises:
            DataError: sources have different fields, or of other types, which samples may have.
        """
        number = np.searchsorted(self._firsts, indices, side="right") - 1
        order = np.argsort(number, kind="stable")
        sources, starts = np.unique(number[order], return_index=True)
        parts = [
            self._parts[source].fetch_batch(indices[places] - self._firsts[source])
            for source, places in zip(
                sources.tolist(), np.split(order, starts[1:].tolist()), strict=True
            )
        ]
        if len(parts) == 1:
            return dict(parts[0])
        if any(list(part) != list(parts[0]) for part in parts):
            raise DataError("sources have different fields")
        back = np.empty(len(indices), np.int64)
        back[order] = np.arange(len(indices))
        return {name: joined([part[name] for part in parts], back) for name in parts[0]}

    def path(self, index: int) -> str:
        """The file of a row, after the name of its source; the row's number where it has none."""
        name, row = self.place_of(index)
        source = self.sources[name]
        path = getattr(source, "path", None)
        return f"{name}/{path(row) if callable(path) else row}"

    def check(self, index: int) -> str | None:
        """The error of a row that can be read, as its source finds it."""
        name, row = self.place_of(index)
        source = self.sources[name]
        return source.check(row) if hasattr(source, "check") else None

    @property
    def metadata(self) -> pd.DataFrame:
        """The tables of all sources, with `source` as the first column; it is made anew each time.

        A column that a source lacks has no values in its rows; `path` is as `path(index)` has it.
        """
        import pandas as pd

        tables = []
        for name, source in self.sources.items():
            table: Any = getattr(source, "metadata", None)
            if not hasattr(table, "columns"):
                table = pd.DataFrame(index=range(len(source)))
            table = table.drop(columns="source", errors="ignore").reset_index(drop=True)
            if "path" in table.columns:
                own = table["path"] if callable(getattr(source, "path", None)) else table.index
                table["path"] = f"{name}/" + own.astype(str)
            tables.append(table)
        try:
            whole = pd.concat(tables, ignore_index=True)
        except MemoryError as error:
            raise DataError(
                f"dataset: a table of {sum(map(len, tables)):,} rows, those of all sources, takes "
                "more memory than there is. Filter or weigh the sources one by one."
            ) from error
        names = sorted(self.sources)
        kind = np.min_scalar_type(-len(names))  # a byte a row, where a column of names takes eight
        numbers = np.array([names.index(name) for name in self.sources], kind)
        codes: npt.NDArray[np.integer[Any]] = np.repeat(numbers, [len(table) for table in tables])
        whole.insert(0, "source", pd.Categorical.from_codes(codes, pd.Index(names)))
        return whole

    @property
    def fingerprint(self) -> str:
        """Changes with any source's, with their names and order, and with how they are mixed."""
        return self._joined(str(getattr(part, "fingerprint", len(part))) for part in self._parts)

    def _joined(self, fingerprints: Iterable[str]) -> str:
        mixing = json.dumps(self.mixing, sort_keys=True)
        return f"{hash64(0, *self.sources, *fingerprints, mixing):016x}"

    def __getattr__(self, name: str) -> Any:
        """Members that only some sources have, and that others ask for with `hasattr`."""
        parts = self.__dict__.get("_parts", ())  # copy and pickle look before there are any
        offered = [hasattr(source, name) for source in parts]
        if name == "__getitems__" and offered and all(offered):
            return self._rows_at_once
        if name == "lengths" and offered and all(offered):
            return EndToEnd([source.lengths for source in parts])
        if name == "text_lengths" and offered and all(offered):
            return lambda length, counting: np.concatenate(
                [source.text_lengths(length, counting) for source in parts]
            )
        if name == "locality" and any(offered):
            return self._locality
        remote = [part for part in parts if getattr(part, "remote_files", None) is not None]
        if name in ("remote_files", "files_of") and len(remote) == 1:  # one process fetches
            return remote[0].remote_files if name == "remote_files" else self._files_of
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _rows_at_once(self, indices: Sequence[int]) -> list[Any]:
        return self._by_source(indices, lambda source, rows: source.__getitems__(rows.tolist()))

    def _files_of(self, indices: Sequence[int] | IntArray) -> list[list[str]]:
        def files(source: Any, rows: IntArray) -> Sequence[Any]:
            if getattr(source, "remote_files", None) is None:
                return [[]] * len(rows)
            return source.files_of(rows)

        return self._by_source(indices, files)

    def _locality(self, indices: IntArray) -> IntArray:
        def places(source: Any, rows: IntArray) -> Sequence[Any]:
            return source.locality(rows) if hasattr(source, "locality") else [0] * len(rows)

        # Numbers of the same file in two sources are told apart by the source.
        number = np.searchsorted(self._firsts, indices, side="right") - 1
        return np.array(self._by_source(indices, places)) * len(self._parts) + number

    def _by_source(
        self, indices: Sequence[int] | IntArray, read: Callable[[Any, IntArray], Sequence[Any]]
    ) -> list[Any]:
        """The results of `read` for the rows of each source, in the order of `indices`."""
        whole = np.asarray(indices, np.int64)
        number = np.searchsorted(self._firsts, whole, side="right") - 1
        result: list[Any] = [None] * len(whole)
        for source in np.unique(number).tolist():
            places = np.flatnonzero(number == source)
            values = read(self._parts[source], whole[places] - self._firsts[source])
            for position, value in zip(places.tolist(), values, strict=True):
                result[position] = value
        return result
