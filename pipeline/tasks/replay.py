"""`task=replay`: make one batch again, from its address.

Prints its rows and its hash to stdout, and writes the tensors as `batch.safetensors` and, for
images, a contact sheet with landmarks into the run folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from penstock.build.data import DataParts, Split
from penstock.config.schema import Config
from penstock.distributed.world import World
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch, batch_hash
from penstock.loading.collate import plain
from penstock.loading.facts import NAMELESS, Fields, SomeRows, own_row, table_of
from penstock.order.address import Address
from penstock.order.plan import End
from penstock.order.seeding import scope
from penstock.runs.folder import RunFolder
from penstock.runs.only_shown import only_shown
from penstock.tasks.summary import put_rows
from penstock.terminal import one_line, put, say


def run(config: Config) -> None:
    """Recompute batch (`config.epoch`, `config.step`) of `config.split`."""
    data = DataParts(config, World())
    split = getattr(data, config.split)
    batch = recompute(split, config)
    put_rows(describe_rows(split.dataset, batch, data.fields))
    put(f"{config.epoch} {config.step} {batch.request.valid} {batch_hash([batch])}")
    folder = RunFolder.claim(Path(config.run_dir), config.model_dump())
    fields = {"position": torch.from_numpy(batch.positions), **batch}
    fields["index"] = torch.from_numpy(batch.indices)
    path = folder.path / "batch.safetensors"
    save_file(
        {
            # safetensors refuses views and subclasses of tensors, such as torchvision's.
            name: plain(value).contiguous()
            for name, value in fields.items()
            if isinstance(value, torch.Tensor)
        },
        path,
    )
    put(path)
    # The tensors are what was asked for; a field that cannot be drawn costs a warning.
    with only_shown("the picture"):
        from penstock.addons.reports.samples import draw_batch

        if (picture := draw_batch(split, batch, folder.path)) is not None:
            put(picture)
    folder.finish("done")
    folder.release()


def recompute(split: Split, config: Config) -> Batch:
    """The batch at the configured address, hashed."""
    plan, where = split.plan, f"epoch {config.epoch} of the {config.split} split"
    steps, address = plan.limit(config.epoch), Address(config.epoch, config.step)
    if steps is not None and config.step >= steps:
        reason = f"{where} has {steps} steps, 0 to {steps - 1}, and no step {config.step}"
        raise ConfigError(Problem("step", reason))
    # It can still be made, and people want to see the batch that they skip.
    if address in plan.skipped:
        say(f"training leaves this batch out: trainer.skip={plan.skipped}")
    request: Any = plan.request(*address)
    # A notebook that replays a batch keeps its own draws.
    with scope():
        batch: Batch | End = split.fetch(hashed=True)(request)
    if isinstance(batch, End):
        raise ConfigError(Problem("step", f"{where} ends before step {config.step}"))
    return batch


def describe_rows(dataset: Any, batch: Batch, fields: Fields | None = None) -> list[list[str]]:
    """A header and a row a sample: position, index, and columns of the dataset's table.

    Where a filter leaves rows out, also the dataset's own row.
    """
    table: Any = table_of(dataset, fields or NAMELESS)
    names = [] if table is None else [n for n in ("path", "class", "label") if n in table.columns]
    own = ["row"] if isinstance(dataset, SomeRows) else []
    lines = [["position", "index", *own, *names]]
    for position, index in zip(batch.positions.tolist(), batch.indices.tolist(), strict=True):
        row = [str(position), str(index), *([str(own_row(dataset, index))] if own else [])]
        lines.append([*row, *(one_line(table[name].iloc[index]) for name in names)])
    return lines
