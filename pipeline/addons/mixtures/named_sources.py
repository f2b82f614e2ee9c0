"""What a dataset that is made of others, by name, tells of them together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from penstock.datasets.reading.data_file import DataFile
from penstock.errors import ConfigError, Problem


class NamedSources(ABC):
    """Several datasets by name.

    Attributes:
        sources: the datasets by name.
    """

    sources: dict[str, Any]

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
            raise ConfigError(Problem("dataset.fingerprint", reason))
        return getattr(source, method)


def is_stream(source: Any) -> bool:
    """Whether a dataset can only be read forwards."""
    return not hasattr(source, "__getitem__") or isinstance(source, IterableDataset)
