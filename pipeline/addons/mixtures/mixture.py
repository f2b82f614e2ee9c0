"""Several map-style datasets as one, whose rows `sampler=mixture` chooses in proportion to weights.

Rows are numbered through the sources in their order, so a source that is added last changes no
number. A mixture hands on what its sources have in common: facts, classes, tables, files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from torch.utils.data import Dataset

from penstock.addons.mixtures.order import MixtureOrder, Weights
from penstock.addons.splits.division import same_classes
from penstock.config.targets import arguments, called
from penstock.datasets.files import DataFile
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count
from penstock.loading.collate import joined
from penstock.loading.facts import classes_of
from penstock.loading.fetch import reads_whole
from penstock.order.keys import IntArray, hash64
from penstock.order.plan import Plan, is_stream
from penstock.runs.identity import fingerprint_of
from penstock.training.loop import Observer, Record
from penstock.training.meter import Step


class Mixture(Dataset[Any]):
    """Rows of several sources.

    Args:
        sources: map-style datasets by name. The build hands `split` to each of them as well.
        weights: of each source, by name: a number, or knots [[step, weight], ...] of the whole run,
            at which it changes; before its first knot it is that of the first. None: by length.
        knots: what they count; a step is a batch.
        passes: how often a source is read at most, by name; then the others have its share.
        num_samples: positions of an epoch; None: as many as all sources have rows.

    Attributes:
        mixing: the arguments for the order, by name.
        source_lengths: rows of each source, by name.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Weights | None = None,
        knots: Literal["steps", "samples"] = "steps",
        passes: Mapping[str, Count] | None = None,
        num_samples: Count | None = None,
    ) -> None:
        streams = [n for n, one in sources.items() if is_stream(one) or not hasattr(one, "__len__")]
        if streams or not sources:
            reason = f"{', '.join(streams) or 'none'}; allowed: datasets with rows (no streams)"
            raise ConfigError(Problem("dataset.sources", reason))
        # Else label 3 would mean a dog in one source and a ship in another.
        same_classes({name: classes_of(one) for name, one in sources.items()}, "dataset.sources")
        self.sources = dict(sources)
        self.mixing = {
            "weights": weights,
            "knots": knots,
            "passes": passes or {},
            "num_samples": num_samples,
        }
        self.source_lengths = {name: len(source) for name, source in sources.items()}
        self._firsts = np.cumsum([0, *self.source_lengths.values()], dtype=np.int64)
        self._parts = list(self.sources.values())
        # A source that says nothing is taken to draw.
        self.draws = any(getattr(source, "draws", True) for source in self._parts)

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

    def path(self, index: int) -> str:
        """The file of a row, after the name of its source; the row's number where it has none."""
        name, row = self.place_of(index)
        path = getattr(self.sources[name], "path", None)
        return f"{name}/{path(row) if callable(path) else row}"

    @property
    def classes(self) -> list[str]:
        """The classes of all sources; none if one of them has none."""
        return min(map(classes_of, self._parts), key=len)

    @property
    def facts(self) -> dict[str, int]:
        """The facts that all sources share."""
        facts = [dict(getattr(source, "facts", {})) for source in self._parts]
        # A fact that differs is none of the whole: a model cannot have two sizes.
        return {k: v for k, v in facts[0].items() if all(other.get(k) == v for other in facts)}

    @property
    def metadata(self) -> Any:
        """The tables of all sources, with `source` as the first column; it is made anew each time.

        A column that a source lacks has no values in its rows; `path` is as `path(index)` has it.
        """
        import pandas as pd

        tables = []
        for name, source in self.sources.items():
            table: Any = getattr(source, "metadata", None)
            if not hasattr(table, "columns"):
                table = pd.DataFrame(index=range(len(source)))
            # A column of the same name in a source's own table would hide where rows come from.
            table = table.drop(columns="source", errors="ignore").reset_index(drop=True)
            if "path" in table.columns:
                table["path"] = f"{name}/" + table["path"].astype(str)
            tables.append(table)
        whole = pd.concat(tables, ignore_index=True)
        # A byte or two a row, where a column of names takes eight.
        numbers = np.arange(len(tables), dtype=np.min_scalar_type(-len(tables)))
        codes = numbers.repeat([*self.source_lengths.values()])
        whole.insert(0, "source", pd.Categorical.from_codes(codes, pd.Index([*self.sources])))
        return whole

    @property
    def fingerprint(self) -> str:
        """Changes with any source's, with their names and order, and with how they are mixed."""
        return self._joined(str(getattr(part, "fingerprint", len(part))) for part in self._parts)

    def names_fingerprint(self) -> str:
        """The same without the sizes of the sources' files."""
        return self._joined(fingerprint_of(part, "names") for part in self._parts)

    def _joined(self, fingerprints: Iterable[str]) -> str:
        parts = [*self.sources, *fingerprints, json.dumps(self.mixing, sort_keys=True)]
        return f"{hash64(0, *parts):016x}"

    def data_files(self) -> list[DataFile]:
        """The files of all sources, under `source/name`."""
        return [
            DataFile(f"{name}/{file[0]}", *file[1:])
            for name, source in self.sources.items()
            for file in source.data_files()
        ]

    def fetch_batch(self, indices: IntArray, in_place: bool = False) -> dict[str, Any]:
        """The fields of a batch, gathered from each source; see `loading/fetch.py: _way_of`.

        Raises:
            DataError: sources have different fields, or of other types, which samples may have.
        """
        by_source = list(self._by_source(indices))
        parts = [source.fetch_batch(rows) for source, _, rows in by_source]
        if any(list(part) != list(parts[0]) for part in parts):
            raise DataError("sources have different fields")
        # Rows were gathered source by source, and go back to the order of the request.
        back = np.argsort(np.concatenate([places for _, places, _ in by_source]))
        return {name: joined([part[name] for part in parts], back) for name in parts[0]}

    def _by_source(
        self, indices: Sequence[int] | IntArray
    ) -> Iterator[tuple[Any, IntArray, IntArray]]:
        """Each source that has some of the rows, where they stand in `indices`, and its rows."""
        whole = np.asarray(indices, np.int64)
        number = np.searchsorted(self._firsts, whole, side="right") - 1
        for source in np.unique(number).tolist():
            places = np.flatnonzero(number == source)
            yield self._parts[source], places, whole[places] - self._firsts[source]

    def _rows_at_once(self, indices: Sequence[int]) -> list[Any]:
        samples = {
            place: sample
            for source, places, rows in self._by_source(indices)
            for place, sample in zip(
                places.tolist(), source.__getitems__(rows.tolist()), strict=True
            )
        }
        return [samples[place] for place in range(len(indices))]

    def __getattr__(self, name: str) -> Any:
        """Members that a mixture has if all its sources have them."""
        parts = self.__dict__.get("_parts", ())  # copy and pickle look before there are any
        if parts and all(hasattr(source, name) for source in parts):
            match name:
                case "__getitems__":
                    return self._rows_at_once
                case "check":
                    return lambda row: self.sources[self.place_of(row)[0]].check(
                        self.place_of(row)[1]
                    )
                case "fetches_batches":  # of fields of the same kinds
                    whole = all(reads_whole(part) and part.fetches_batches for part in parts)
                    return whole and all(part.kinds == self.kinds for part in parts)
                case "kinds":
                    return parts[0].kinds
                case "lengths":
                    return np.concatenate([np.asarray(part.lengths) for part in parts])
                case "text_lengths":
                    return lambda *by: np.concatenate([part.text_lengths(*by) for part in parts])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def supplied_order(split: Any, node: Mapping[str, Any], supply: Mapping[str, Any]) -> Any:
    """The argument `order` of a sampler that puts the rows of a mixture together.

    Raises:
        ConfigError: the sampler takes none, or its steps have other numbers of samples.
    """
    mixing, outer = split.dataset.mixing, called(node)
    while isinstance(node.get("order"), Mapping):
        node = node["order"]
    if (inner := called(node)) is not MixtureOrder and "order" not in arguments(inner):
        reason = (
            f"{inner.__name__} chooses rows of all sources by itself, and dataset.weights would "
            "not hold; set sampler=mixture (docs/sampling.md)"
        )
        raise ConfigError(Problem("sampler", reason))
    changes = any(isinstance(weight, list) for weight in (mixing["weights"] or {}).values())
    if changes and outer is not MixtureOrder and mixing["knots"] == "steps":
        reason = (
            f"a step of {outer.__name__} has not batch.size samples of the mixture; write "
            "dataset.weights for numbers of samples, and set dataset.knots=samples"
        )
        raise ConfigError(Problem("dataset.knots", reason))
    return partial(MixtureOrder, **{name: supply[name] for name in arguments(MixtureOrder)})


def recorded(split: Any) -> dict[str, str]:
    """Entries of a split's fingerprint."""
    mixing, sources = split.dataset.mixing, split.dataset.sources
    return {f"dataset.{key}": json.dumps(mixing[key], sort_keys=True) for key in mixing} | {
        f"dataset.sources.{name}": f"{length} samples, {split.fingerprint_of(sources[name])}"
        for name, length in split.dataset.source_lengths.items()
    }


class MixtureRows(Observer):
    """Adds rows and passes of each source to every epoch's record, and to the manifest.

    They count the whole run, from the order and not from batches, so resumed runs agree. A sampler
    that packs rows takes some of them out of their turn: then an epoch is counted to a batch or so.

    Args:
        plan: of training, in the order `order` or one made of it.
        manifest: gets `mixture`, with `rows` and `passes` by source.
    """

    def __init__(self, plan: Plan, order: MixtureOrder, manifest: dict[str, Any]) -> None:
        self.plan, self.order, self.manifest = plan, order, manifest

    def on_epoch_start(self, epoch: int, steps: int | None, done: int) -> None:
        self._last = done - 1

    def on_steps(self, steps: Sequence[Step]) -> None:
        self._last = steps[-1].step

    def on_record(self, record: Record) -> None:
        request = self.plan.request(int(record["epoch"]), self._last)
        after = int(request.positions[: request.valid].max()) + 1
        consumed = self.order.consumed(
            request.epoch, after // getattr(self.plan.sampler, "times", 1)
        )
        self.manifest["mixture"] = consumed
        record |= {
            f"mixture/{name}/{key}": n for name in consumed for key, n in consumed[name].items()
        }


def observers(fit: Any) -> list[Observer]:
    """The observer of a plan whose order is a mixture; none where a batch is trained on again."""
    plan = fit.train_loader.plan
    order = getattr(plan, "sampler", None)
    while not isinstance(order, MixtureOrder | None):
        order = getattr(order, "order", None)
    return [MixtureRows(plan, order, fit.folder.manifest)] if order and not plan.again else []
