"""`task=replay`: one batch again, from its address.

Prints the batch's rows and its hash to stdout, and writes into the run folder the tensors as
`batch.safetensors` and, for images, a contact sheet with the landmarks drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipeline.build.data import DataParts, Split
from pipeline.config.schema import Config
from pipeline.distributed.world import World
from pipeline.errors import ConfigError, Problem
from pipeline.loading.batch import Batch
from pipeline.loading.collate import plain
from pipeline.loading.dataset_facts import table_of
from pipeline.loading.fetch import batch_hash
from pipeline.loading.named_fields import Fields
from pipeline.order.randomness import scope
from pipeline.order.streams import End
from pipeline.runs.run_folder import RunFolder
from pipeline.tasks.predictions import denormalized
from pipeline.terminal import one_line, put

_SHOWN = 64  # images on a contact sheet


def run(config: Config) -> None:
    """Recompute batch (`config.epoch`, `config.step`) of `config.split`."""
    data = DataParts(config, World())
    split = data.split(config.split)
    batch = recompute(split, config)
    rows = describe_rows(split.dataset, batch, data.fields)
    put("\n".join("  ".join(cells) for cells in _aligned(rows)))
    put(f"{config.epoch} {config.step} {batch.request.valid} {batch_hash([batch])}")
    folder = RunFolder.claim(Path(config.run_dir), config.written())
    put(_write_tensors(batch, folder.path / "batch.safetensors"))
    shown = shown_images(batch, split)
    sheet = None if shown is None else draw(batch, shown, folder.path / "batch.png")
    if sheet is not None:
        put(sheet)
    folder.finish("done")


def recompute(split: Split, config: Config) -> Batch:
    """The batch at the configured address, hashed."""
    request = _request(split, config)
    with scope():
        batch = split.fetch(hashed=True)(request)
    if isinstance(batch, End):
        raise ConfigError(
            Problem("step", f"epoch {config.epoch} of the {config.split} split ends before step "
                    f"{config.step}")
        )  # fmt: skip
    return batch


def _request(split: Split, config: Config) -> Any:
    plan = split.plan
    steps = plan.limit(config.epoch)
    if steps is not None and config.step >= steps:
        raise ConfigError(
            Problem("step", f"epoch {config.epoch} of the {config.split} split has {steps} steps, "
                    f"0 to {steps - 1}; {config.step} is none of them")
        )  # fmt: skip
    return plan.request(config.epoch, config.step)


def describe_rows(dataset: Any, batch: Batch, fields: Fields | None = None) -> list[list[str]]:
    """A header and a line a sample: position, index, and what the dataset's table says."""
    table = table_of(dataset, fields)
    names = [] if table is None else [n for n in ("path", "class", "label") if n in table.columns]
    lines = [["position", "index", *names]]
    for position, index in zip(batch.positions.tolist(), batch.indices.tolist(), strict=True):
        known = [] if table is None else [one_line(table[name].iloc[index]) for name in names]
        lines.append([str(position), str(index), *known])
    return lines


def _aligned(lines: list[list[str]]) -> list[list[str]]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]


def _write_tensors(batch: Batch, path: Path) -> Path:
    from safetensors.torch import save_file

    own = {"position": torch.from_numpy(batch.positions), "index": torch.from_numpy(batch.indices)}
    fields = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    save_file({name: plain(value).contiguous() for name, value in (own | fields).items()}, path)
    return path


def shown_images(batch: Batch, split: Split) -> torch.Tensor | None:
    """The batch's images to be looked at, or None if it has none."""
    images = batch.get("image")
    if not isinstance(images, torch.Tensor) or images.ndim != 4 or images.shape[1] not in (1, 3):
        return None
    return denormalized(images, split.transform, split.batch_transform)


def draw(batch: Batch, images: torch.Tensor, path: Path) -> Path:
    """A contact sheet of the batch."""
    from pipeline.runs.pictures import contact_sheet

    labels = batch.get("label")
    captions = [f"{i}" for i in batch.indices.tolist()]
    if isinstance(labels, torch.Tensor):
        captions = [f"{i}: {n}" for i, n in zip(captions, labels.tolist(), strict=True)]
    points = batch.get("landmarks")
    return contact_sheet(
        images[:_SHOWN],
        path,
        landmarks=None if points is None else points[:_SHOWN],
        captions=captions[:_SHOWN],
        columns=8,
    )
