"""Drawn strokes of four kinds and of different lengths, made on this machine.

A stroke is a moving pen: each step is its displacement (x, y), with noise. Its class is the way it
turns: not at all, left, right, or to and fro. The first use writes the files of `sequences` into a
folder of `root` that is named by its arguments. Cost: 25 us a stroke, once.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from penstock.datasets.reading.generated import generated_data
from penstock.datasets.reading.split import Split
from penstock.datasets.sequences import Sequences
from penstock.errors import ConfigError, Problem
from penstock.files.limits import Fraction, Seed
from penstock.order.keys import hash64

Steps = Annotated[int, Field(ge=3)]
VERSION = 1  # raise it when the strokes change
CLASSES = ("straight", "left", "right", "zigzag")
SHARES = (0.5, 0.25, 0.15, 0.1)  # of the strokes

_log = logging.getLogger(__name__)


class SyntheticSequences(Sequences):
    """Strokes; samples as in `Sequences`: `sequence` (float32 [T, 2]) and `label` (0 to 3).

    Args:
        root: folder that the data is written to, in one subfolder for each set of arguments; None:
            in the user's cache (see `penstock.datasets.reading.generated`).
        split: "train", "val" or "test".
        count: number of strokes of all splits, 8 or more.
        shortest, longest: bounds of the lengths, in steps; 3 or more.
        seed: other strokes for another seed.
        val_fraction, split_seed, test_fraction: as in `Sequences`.

    Raises:
        ConfigError: a number is out of range.
        DataError: the data cannot be written.
    """

    def __init__(
        self,
        root: str | None = None,
        split: Split = "train",
        count: Annotated[int, Field(ge=8)] = 2000,
        shortest: Steps = 5,
        longest: Steps = 120,
        seed: Seed = 0,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        test_fraction: Fraction = 0.0,
    ) -> None:
        if not shortest <= longest:
            reason = f"lengths from {shortest} to {longest}; shortest is the larger one"
            raise ConfigError(Problem("dataset.shortest", reason))
        name = f"{count}x{shortest}-{longest}-seed{seed}-v{VERSION}"
        lengths = shortest, longest
        with generated_data(
            root, "synthetic_sequences", name, lambda folder: _write(folder, count, lengths, seed)
        ) as made:
            super().__init__(
                made,
                split,
                val_fraction=val_fraction,
                split_seed=split_seed,
                test_fraction=test_fraction,
            )


def _write(folder: Path, count: int, lengths: tuple[int, int], seed: int) -> None:
    _log.info("drawing %d synthetic strokes into %s", count, folder.parent)
    random = np.random.default_rng(hash64(seed, "strokes"))
    # Exact shares, so that every class occurs; the order is random.
    bounds = np.round(np.cumsum(SHARES) * count).astype(np.int64)
    labels = np.searchsorted(bounds, random.permutation(count), side="right")
    strokes = [_stroke(int(label), lengths, random) for label in labels]
    offsets = np.cumsum([0, *(len(stroke) for stroke in strokes)], dtype=np.int64)
    np.save(folder / "values.npy", np.concatenate(strokes))
    np.save(folder / "offsets.npy", offsets)
    np.save(folder / "labels.npy", labels.astype(np.int64))
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n", encoding="utf-8")


def _stroke(
    label: int, lengths: tuple[int, int], random: np.random.Generator
) -> npt.NDArray[np.float32]:
    """The displacements of one stroke, float32[T, 2], each about 1 long."""
    # Short strokes are more frequent than long ones, as in most data.
    shortest, longest = np.log(lengths[0]), np.log(lengths[1] + 1)
    steps = min(int(np.exp(random.uniform(shortest, longest))), lengths[1])
    turn = random.uniform(0.25, 0.6)
    turns = {
        "straight": np.zeros(steps),
        "left": np.full(steps, -turn),
        "right": np.full(steps, turn),
        "zigzag": np.where(np.arange(steps) % 2, 2.2 * turn, -2.2 * turn),
    }[CLASSES[label]]
    heading = random.uniform(0, 2 * np.pi) + np.cumsum(turns + random.normal(0, 0.04, steps))
    speed = random.uniform(0.8, 1.2)
    moves = speed * np.stack([np.cos(heading), np.sin(heading)], axis=1)
    return (moves + random.normal(0, 0.05, moves.shape)).astype(np.float32)
