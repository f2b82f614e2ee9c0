"""`task=where`: at which addresses a sample was or will be seen, or which samples an address has.

    task=where sample=17 epochs=0:3           a row; also a path, or the end of one
    task=where sample='label == 3'            rows by an expression over the table
    task=where address=3,1200                 the rows of a batch, with their keys
    ... run=outputs/DATE/TIME                 the same of that run's configuration

An epoch is a function of the configuration, the seed and the dataset, so the plan lists it: no log
is needed and no sample is read. Cost: 20 us a batch and rank, and 20 us a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.addons.filters.expressions import Expression, is_expression
from penstock.build.data import DataParts, Split
from penstock.config.schema import Config
from penstock.distributed.world import World, default_processes
from penstock.errors import ConfigError, Problem
from penstock.loading.bad_samples import path_of
from penstock.loading.facts import SomeRows, table_of, unfiltered
from penstock.order.address import Address
from penstock.order.keys import sample_keys
from penstock.order.plan import Plan
from penstock.runs.run import Run
from penstock.tasks.summary import put_rows
from penstock.terminal import one_line


def run(config: Config) -> None:
    """Answer what `config.sample` or `config.address` asks.

    Raises:
        ConfigError: neither or both are given, or there is no such sample or address.
    """
    if (config.sample is None) == (config.address is None):
        raise ConfigError(
            Problem("sample", "give this or address, one of the two: sample=17, or address=3,1200")
        )
    if config.run is not None:
        Run(config.run, "run")  # otherwise a folder that is not there would be no base at all
    split: Split = getattr(DataParts(config, World()), config.split)
    if not isinstance(split.plan, Plan):
        raise ConfigError(
            Problem(
                "dataset",
                f"{type(split.dataset).__name__} is a stream: which record stands where is known "
                "only by reading up to it; task=replay makes the batch of an address",
            )
        )
    # Also what is cut off an epoch, which is what somebody who misses a sample looks for.
    every = replace(
        split.plan, most=None, tail="keep" if split.plan.tail == "drop" else split.plan.tail
    )
    table, wanted = table_of(split.dataset, split.data.fields), np.ones(len(split.dataset), bool)
    if config.address is not None:
        addresses = [Address(*config.address)]
        epoch, steps = addresses[0].epoch, split.plan.steps(addresses[0].epoch)
        if addresses[0].step >= steps:
            raise ConfigError(
                Problem(
                    "address",
                    f"epoch {epoch} of the {split.name} split has {steps} steps, 0 to {steps - 1}",
                )
            )
    else:
        wanted = _wanted(config.sample, split)
        last = config.trainer.max_epochs if split.is_train else 1
        first, _, stop = str(f"0:{last}" if config.epochs is None else config.epochs).partition(":")
        # No index from rows to addresses: listing costs 0.2 us a row, and an index is memory.
        addresses = [
            Address(at, step)
            for at in range(int(first), int(stop or int(first) + 1))
            for step in range(every.steps(at))
        ]
    lines = [line for each in addresses for line in _lines(split, every, table, each, wanted)]
    # Only columns that some line has: few datasets have paths, fewer are mixtures.
    names = list(dict.fromkeys(name for line in lines for name in line))
    put_rows([names, *([line.get(name, "") for name in names] for line in lines)])


def _lines(
    split: Split, every: Plan, table: Any, address: Address, wanted: np.ndarray
) -> Iterator[dict[str, str]]:
    """The places of the wanted rows (bool[rows]) in a batch: cells by the names of columns."""
    distributed, dataset = split.config.distributed, split.dataset
    nproc = 1 if distributed.strategy == "none" else distributed.nproc
    world = default_processes() if nproc == "auto" else nproc
    for rank in range(world):
        # What each rank reads, as a person who follows a bad batch looks into one rank's log.
        share = every.request(*address, rank, world)
        for place in np.flatnonzero(wanted[share.indices[: share.valid]]).tolist():
            row, position = int(share.indices[place]), share.positions[place : place + 1]
            own = int(dataset.rows[row]) if isinstance(dataset, SomeRows) else row
            cells: dict[str, object] = {
                "row": own,
                "epoch": address.epoch,
                "step": address.step,
                "position": int(position[0]),
                "rank": rank,
                "key": f"{sample_keys(split.config.seed, address.epoch, position)[0]:016x}",
            }
            if share.parts is not None:
                cells["tokens"] = "{}:{} of {}, block {}".format(*share.parts[place].tolist())
            if hasattr(unfiltered(dataset), "place_of"):  # a mixture
                cells["source"] = "{}:{}".format(*unfiltered(dataset).place_of(own))
            cells |= {
                name: one_line(table[name].iloc[row])
                for name in ("path", "class", "label")
                if table is not None and name in table
            }
            yield {**{name: str(cell) for name, cell in cells.items()}, "": _fate(split, address)}


def _fate(split: Split, address: Address) -> str:
    """Why a batch is not trained on, in a few words; empty for most."""
    plan, trainer = split.plan, split.config.trainer
    if address in plan.skipped:
        return "left out (trainer.skip)"
    steps = [plan.steps(epoch) or 0 for epoch in range(address.epoch + 1)]
    if address.step >= steps[-1]:
        return f"behind the {steps[-1]} batches of the epoch (batch.tail=drop, or a limit)"
    updates = sum(-(-count // trainer.accumulate) for count in (*steps[:-1], address.step + 1))
    # A skipped batch is no step, so where some are skipped the last batch is not known.
    is_over = trainer.max_steps is not None and updates > trainer.max_steps and not plan.skipped
    is_behind = split.is_train and (is_over or address.epoch >= trainer.max_epochs)
    return "behind the end (trainer.max_epochs, trainer.max_steps)" if is_behind else ""


def _wanted(sample: Any, split: Split) -> np.ndarray:
    """The rows that `sample` means, as the plan of `split` numbers them: bool[rows].

    Raises:
        ConfigError: there is no such sample, or the dataset's filter leaves it out.
    """
    whole = unfiltered(split.dataset)
    own, table = np.zeros(len(whole), bool), table_of(whole, split.data.fields)
    sources = {"": len(whole), **getattr(whole, "source_lengths", {})}
    for text in map(str, sample if isinstance(sample, list) else [sample]):
        source, _, number = text.strip().rpartition(":")
        if number.lstrip("+-").isdecimal() and source in sources:
            # Rows of a mixture's sources stand one after the other.
            first = sum([*sources.values()][1 : [*sources].index(source)])
            # A number that the source does not have selects nothing.
            own[first : first + sources[source]] |= np.arange(sources[source]) == int(number)
        elif is_expression(text):
            own |= Expression(text, "sample").mask(table)
        else:
            paths = (
                table["path"]
                if table is not None and "path" in table
                else (path_of(whole, row) for row in range(len(whole)))
            )
            # The end of a path is enough: people do not type the folder of the data.
            own |= [f"/{path}".endswith("/" + text.strip().lstrip("./")) for path in paths]
    # Numbers are the dataset's own; the plan counts what its filter has left.
    wanted: np.ndarray = own[split.dataset.rows] if isinstance(split.dataset, SomeRows) else own
    if not wanted.any():
        left = f", behind its filter, which leaves out {np.flatnonzero(own)[:3].tolist()}"
        raise ConfigError(
            Problem(
                "sample",
                f"{sample!r} is none of the {len(whole)} rows of the {split.name} split"
                f"{left if own.any() else ''}",
            )
        )
    return wanted
