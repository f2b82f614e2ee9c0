"""`task=where`: at which addresses a sample was or will be seen, or which samples an address has.

    task=where sample=17 epochs=0:3           a row; also a path, or the end of one
    task=where sample='label == 3'            rows by an expression over the table
    task=where address=3,1200                 the rows of a batch, with their keys
    ... run=outputs/DATE/TIME                 the same of that run's configuration

An epoch is a function of the configuration, the seed and the dataset, so the plan lists it: no log
is needed and no sample is read. Cost: 20 us a batch and rank, and 20 us a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.addons.filters.expressions import Expression, is_expression
from penstock.build.data import DataParts, Split
from penstock.config.schema import Config
from penstock.distributed.world import World, default_processes
from penstock.errors import ConfigError, Problem
from penstock.loading.bad_samples import path_of
from penstock.loading.facts import SomeRows, own_row, table_of, unfiltered
from penstock.order.address import Address
from penstock.order.keys import sample_keys
from penstock.order.plan import Plan
from penstock.tasks.summary import put_rows
from penstock.terminal import one_line, say

MOST_ROWS = 100  # that are searched for
_COLUMNS = ("path", "class", "label")  # of the dataset's table, where it has them


def run(config: Config) -> None:
    """Answer what `config.sample` or `config.address` asks.

    Raises:
        ConfigError: neither or both are given, or there is no such sample or address.
    """
    if (config.sample is None) == (config.address is None):
        reason = "give this or address, one of the two: sample=17, or address=3,1200"
        raise ConfigError(Problem("sample", reason))
    split: Split = getattr(DataParts(config, World()), config.split)
    if not isinstance(split.plan, Plan):
        reason = (
            f"{type(split.dataset).__name__} is a stream: which record stands where is known only "
            "by reading up to it; task=replay makes the batch of an address"
        )
        raise ConfigError(Problem("dataset", reason))
    listing = _Listing(split, split.plan)
    if config.address is not None:
        lines = list(listing.of_address(Address(*config.address)))
    else:
        rows = _rows_of(config.sample, split)
        if len(rows) > MOST_ROWS:
            say(f"{len(rows)} samples, of which these are the first {MOST_ROWS}")
        lines = list(listing.of_rows(rows[:MOST_ROWS]))
        lines.sort(key=lambda line: int(line[0]))  # of a row, they stay in the order of training
    put_rows([listing.header, *lines])


class _Listing:
    """Lines of cells about a split.

    Attributes:
        every: the plan without what cuts an epoch short.
        end: the first address behind those that are trained on.
    """

    def __init__(self, split: Split, plan: Plan) -> None:
        self.split, self.plan, self.config, self.dataset = split, plan, split.config, split.dataset
        self.every = replace(plan, most=None, tail="keep" if plan.tail == "drop" else plan.tail)
        trainer = self.config.trainer
        self.end = Address(trainer.max_epochs, 0)
        if trainer.max_steps is not None and not plan.skipped:  # skipped batches are no steps
            steps = np.array([plan.steps(epoch) for epoch in range(trainer.max_epochs)])
            updates = np.cumsum([0, *-(-steps // trainer.accumulate)])
            last = int(np.searchsorted(updates, trainer.max_steps, side="right")) - 1
            self.end = Address(last, int(trainer.max_steps - updates[last]) * trainer.accumulate)
        table = table_of(self.dataset, split.data.fields)
        self.columns = {
            name: np.asarray(table[name])
            for name in _COLUMNS
            if table is not None and name in table.columns
        }
        packed = ["tokens", "block"] * plan.sampler.packs
        self.source = ["source"] * hasattr(unfiltered(self.dataset), "place_of")
        self.header = ["row", "epoch", "step", "position", "rank", "key", *packed]
        self.header += [*self.source, *self.columns, ""]

    def of_address(self, address: Address) -> Iterator[list[str]]:
        """The rows of a batch."""
        steps = self.plan.steps(address.epoch)
        if address.step >= steps:
            where = f"epoch {address.epoch} of the {self.split.name} split"
            reason = f"{where} has {steps} steps, 0 to {steps - 1}, and no step {address.step}"
            raise ConfigError(Problem("address", reason))
        yield from self._lines(address, np.ones(len(self.dataset), np.bool_))

    def of_rows(self, rows: list[int]) -> Iterator[list[str]]:
        """The places of rows in the epochs that are asked for, also behind the end of one."""
        wanted = np.zeros(len(self.dataset), np.bool_)
        wanted[rows] = True
        last = self.end.epoch + (self.end.step > 0) if self.split.name == "train" else 1
        given = f"0:{last}" if self.config.epochs is None else str(self.config.epochs)
        first, _, stop = given.partition(":")
        for epoch in range(int(first), int(stop or int(first) + 1)):
            missing = {str(self._own(row)) for row in rows}
            for step in range(self.every.steps(epoch)):
                for line in self._lines(Address(epoch, step), wanted):
                    missing.discard(line[0])
                    yield line
            empty = ["-"] * (len(self.header) - 3)
            yield from ([own, str(epoch), *empty, "not in this epoch"] for own in missing)

    def _lines(self, address: Address, wanted: np.ndarray) -> Iterator[list[str]]:
        """The places of the wanted rows (bool[rows]) in a batch."""
        distributed, world = self.config.distributed, 1
        if distributed.strategy != "none":
            world = default_processes() if distributed.nproc == "auto" else distributed.nproc
        for rank in range(world):
            share = self.every.request(*address, rank, world)
            for place in np.flatnonzero(wanted[share.indices[: share.valid]]).tolist():
                row, position = int(share.indices[place]), share.positions[place : place + 1]
                key = int(sample_keys(self.config.seed, address.epoch, position)[0])
                cells = [str(self._own(row)), *map(str, address), str(position[0]), str(rank)]
                cells.append(f"{key:016x}")
                if share.parts is not None:
                    start, stop, length, block = share.parts[place].tolist()
                    cells += [f"{start}:{stop} of {length}", str(block)]
                if self.source:
                    cells.append("{}:{}".format(*unfiltered(self.dataset).place_of(self._own(row))))
                cells += [one_line(column[row]) for column in self.columns.values()]
                yield [*cells, self._fate(address)]

    def _fate(self, address: Address) -> str:
        """Why a batch is not trained on, in a few words; empty for most."""
        steps = self.plan.steps(address.epoch)
        if address.step >= steps:
            return f"behind the {steps} batches of the epoch (batch.tail=drop, or a limit)"
        if address in self.plan.skipped:
            return "left out (trainer.skip)"
        if self.split.name == "train" and address >= self.end:
            return "behind the end (trainer.max_epochs, trainer.max_steps)"
        return ""

    def _own(self, row: int) -> int:
        own = own_row(self.dataset, row)
        return row if own is None else own


def _rows_of(sample: Any, split: Split) -> list[int]:
    """The rows that `sample` means, ascending, as the plan of `split` numbers them.

    Raises:
        ConfigError: there is no such sample, a name is that of several files, or the dataset's
            filter leaves them out.
    """
    whole, samples = unfiltered(split.dataset), sample if isinstance(sample, list) else [sample]
    own = sorted({row for one in samples for row in _own_rows(str(one).strip(), whole, split)})
    if not own:
        raise ConfigError(Problem("sample", "is empty; give a row, a path, or an expression"))
    if isinstance(split.dataset, SomeRows):
        rows = np.flatnonzero(np.isin(split.dataset.rows, own)).tolist()
    else:
        rows = own
    if not rows:
        raise ConfigError(Problem("sample", f"row {own[0]} is left out by the dataset's filter"))
    return rows


def _own_rows(text: str, whole: Any, split: Split) -> list[int]:
    """The dataset's own rows that are named by number, SOURCE:ROW, path, or expression."""
    source, _, number = text.rpartition(":")
    lengths = getattr(whole, "source_lengths", {})
    if number.lstrip("+-").isdecimal() and source in ("", *lengths):
        length = lengths[source] if source else len(whole)
        if not 0 <= int(number) < length:
            reason = f"row {text} does not exist; the {split.name} split has rows 0 to {length - 1}"
            raise ConfigError(Problem("sample", reason))
        names = list(lengths)[: list(lengths).index(source)] if source else []
        return [int(number) + sum(lengths[name] for name in names)]
    table = table_of(whole, split.data.fields)
    if not is_expression(text):
        paths: Iterable[str] = (path_of(whole, row) for row in range(len(whole)))
        if table is not None and "path" in table.columns:
            paths = map(str, table["path"])
        tail = "/" + text.lstrip("./")
        found = {row: path for row, path in enumerate(paths) if f"/{path}".endswith(tail)}
        exact = [row for row, path in found.items() if path == text]
        if len(names := sorted({*found.values()})) > 1 and not exact:
            some = ", ".join(names[:5])
            reason = f"{len(names)} files end in {text!r}: {some} ...; give more of the path"
            raise ConfigError(Problem("sample", reason))
        if found:
            return exact or [*found]
        if table is None or text not in table.columns:
            reason = f"no sample's path ends in {text!r}, and it is no expression over the table"
            raise ConfigError(Problem("sample", reason))
    rows: list[int] = np.flatnonzero(Expression(text, "sample").mask(table)).tolist()
    if not rows:
        raise ConfigError(Problem("sample", f"{text!r}: holds for none of {len(whole)} rows"))
    return rows
