"""Bad samples: which errors mean that a sample is bad, and what is done about its row.

    raise         the run ends with a message that names the sample
    substitute    another row takes its place
    skip          the row is left out, and the batch is smaller

The substitute is a function of the key (seed, epoch, position) and of the sampler's own order, so
batches agree for any ranks, workers and resumed runs, and no other row changes.

A sample is bad when its content is. While it is read, that is a DataError, an OSError, an EOFError,
a ValueError, a RuntimeError, a SyntaxError (parsers raise it), or an error of a decoding library.
In a transform it is a DataError, an OSError, an EOFError, a UnicodeError, or an error of a decoding
library: images are often decoded there. Everything else is a mistake in code (TypeError, NameError,
KeyError, a ValueError of a transform ...) or the machine's (no memory, no space, too many open
files, a store that does not answer), and is never left out.
"""

from __future__ import annotations

import errno
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from penstock.errors import ConfigError, DataError, PenstockError, UnreachableError
from penstock.loading.facts import sample_name
from penstock.order.keys import hash64
from penstock.order.permutation import Permutation
from penstock.order.plan import Request
from penstock.order.samplers import BatchStrategy

OnError = Literal["raise", "substitute", "skip"]
Stage = Literal["read", "transform", "collate"]
# Given a request and a place in it, rows for that place, best first.
Substitutes = Callable[[Request, int], Iterator[int]]

ATTEMPTS = 10  # rows that are read instead of a bad one, at most

# Errors of these kinds that are the code's or the machine's.
_NEVER = (
    UnreachableError, NotImplementedError, RecursionError, torch.OutOfMemoryError, ConnectionError,
    TimeoutError, ChildProcessError,
)  # fmt: skip
_MACHINE_CODES = {
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.ENOBUFS,
    errno.ENODEV,
}  # fmt: skip
# Packages whose own exceptions are about the data that they decode.
_DECODERS = {
    "PIL", "av", "binascii", "csv", "_csv", "cv2", "h5py", "imageio", "json", "lzma", "_lzma",
    "pickle", "_pickle", "pyarrow", "skimage", "soundfile", "struct", "tarfile", "tifffile",
    "wave", "xml", "zipfile", "zlib", "zstandard",
}  # fmt: skip

_WAY_OUT = (
    "\nbad_samples.on_error=skip or substitute leaves such samples out (a pack has every row, and "
    "leaves none out); task=check lists all"
)


class SampleError(PenstockError):
    """A person's own code failed on a sample; the message ends with its traceback."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A sample that is not in its batch; `path` is "" if the dataset does not know it.

    `cause` is the error in one line; `known` samples were not read, since a quarantine lists them;
    `row` is the dataset's own number where a filter has given it another one.
    """

    index: int
    position: int
    epoch: int
    step: int
    path: str
    cause: str
    known: bool = False
    row: int | None = None

    def __str__(self) -> str:
        where = f"(epoch {self.epoch}, step {self.step}, position {self.position})"
        path = f" {self.path}" if self.path and self.path not in self.cause else ""
        return f"sample {sample_name(self.index, self.row)} {where}{path}: {self.cause}"


@dataclass(frozen=True)
class BadSamples:
    """The policy for bad samples.

    Attributes:
        on_error: see the module. Known samples are skipped under "raise", too.
        known: causes by row, from a quarantine; these rows are not read.
        sampler: where substitutes come from; a copy, since threads ask for them. None: nothing is
            left out, or the fetch knows substitutes.
        seed: of the run.
    """

    on_error: OnError = "raise"
    known: Mapping[int, str] = field(default_factory=dict)
    sampler: Any = None  # Order | BatchStrategy | None
    seed: int = 0

    def substitutes(self, request: Request, slot: int) -> Iterator[int]:
        """Rows for the place of a bad one, best first; a function of the place's key.

        They come from other positions of the epoch, so that subsets and weights stay what they are.
        A batch strategy's row is replaced by another one of the same global batch, of the same
        group (identity) where the strategy has groups; then by rows of other batches.
        """
        sampler, epoch, position = self.sampler, request.epoch, int(request.positions[slot])
        key, size = hash64(self.seed, "substitute", epoch, position), sampler.size(epoch)
        if not isinstance(sampler, BatchStrategy):
            others = Permutation(size, key)(np.arange(min(ATTEMPTS, size))).tolist()
            yield from (int(sampler.indices(epoch, other, other + 1)[0]) for other in others)
            return
        positions, rows = sampler.batch(*request.address)
        own, group = int(np.flatnonzero(positions == position)[0]), sampler.group or len(rows)
        places = Permutation(len(rows), key)(np.arange(len(rows))).tolist()
        others = [place for place in places if rows[place] != rows[own]]
        # Rows of the same identity first, so that a batch keeps as many of each as it was drawn
        # for.
        others.sort(key=lambda place: place // group != own // group)
        others = others[: ATTEMPTS // 2]  # all of a batch may be bad
        yield from (int(rows[place]) for place in others)
        for attempt in range(len(others), ATTEMPTS):
            _, rows = sampler.batch(epoch, hash64(key, "batch", attempt) % size)
            yield int(rows[hash64(key, "row", attempt) % len(rows)])


def is_bad(error: Exception, stage: Stage) -> bool:
    """Whether `error` is about the sample, and not about the code or the machine."""
    of_machine = isinstance(error, OSError) and error.errno in _MACHINE_CODES
    # torch has no type of its own for a failed allocation on the CPU, only this text.
    if of_machine or isinstance(error, _NEVER) or "can't allocate memory" in str(error):
        return False
    of_reading = (ValueError, RuntimeError, SyntaxError) if stage == "read" else ()
    of_content = isinstance(error, (DataError, OSError, EOFError, UnicodeError, *of_reading))
    return of_content or type(error).__module__.split(".")[0] in _DECODERS


def explained(
    error: Exception, stage: Stage, on_error: OnError, sample: Callable[[str], LeftOut]
) -> PenstockError:
    """The error that ends the run, with the sample's index, address, file and cause.

    Args:
        sample: given a cause, the sample that it is of.
    """
    if isinstance(error, ConfigError) and stage == "transform":
        return error
    if isinstance(error, DataError) or (stage != "collate" and is_bad(error, "transform")):
        can_leave_out = on_error == "raise" and stage != "collate" and is_bad(error, stage)
        return DataError(str(sample(_named(error) + _WAY_OUT * can_leave_out)))
    hint = (
        f"bad_samples.on_error={on_error} leaves out samples that cannot be read; an error of this "
        "kind is taken for a mistake in code, or a lack of memory. If the sample is to blame, "
        "raise a penstock.errors.DataError instead.\n"
    )
    notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
    failed = f"{stage} failed{notes} with {type(error).__name__}: {error}\n"
    lines = "".join(traceback.format_exception(error))
    return SampleError(str(sample(failed + hint * (on_error != "raise") + lines)))


def in_one_line(error: Exception) -> str:
    """The error for tables: at most 300 characters."""
    return " ".join(_named(error).split())[:300]


def _named(error: Exception) -> str:
    return str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"


def path_of(dataset: Any, row: int) -> str:
    """The file of a sample, or "" if the dataset does not know it; never fails."""
    with suppress(Exception):
        path = getattr(dataset, "path", None)
        return str(path(row) if callable(path) else dataset.metadata["path"].iloc[row])
    return ""


class Budget:
    """How many samples of an epoch may be left out; those that a quarantine names are free.

    Args:
        limit: a count, or a share of the epoch's samples as a float in (0, 1], of which at least
            one is allowed.
        split: "train" or "val".
        length: samples in an epoch, by its number; None if unknown. A share is then one of the
            samples so far, and allows ten in any case.
    """

    def __init__(self, limit: int | float, split: str, length: Callable[[int], int | None]) -> None:
        self.limit, self._split, self._length = limit, split, length
        self.begin(0)

    def begin(self, epoch: int) -> None:
        self._epoch, self._seen, self._left_out = epoch, 0, list[LeftOut]()

    def add(self, samples: int, left_out: Sequence[LeftOut]) -> None:
        """Count a batch of `samples`, and what was left out of it.

        Raises:
            DataError: that is too much; names some of them.
        """
        self._seen += samples
        self._left_out += [sample for sample in left_out if not sample.known]
        length, count, allowed = self._length(self._epoch), len(self._left_out), self.limit
        if isinstance(allowed, float):
            share = math.ceil(allowed * (self._seen if length is None else length))
            allowed = max(share, 10 if length is None else 1)
        if count > allowed:
            named = "".join(f"\n  {sample}" for sample in self._left_out[:5])
            raise DataError(
                f"{count} bad samples in epoch {self._epoch} of the {self._split} split "
                f"({length or f'{self._seen} so far'} samples), and "
                f"bad_samples.budget={self.limit} allows {allowed}:{named}\nRepair or remove them "
                "(task=check lists all that is wrong), or raise bad_samples.budget"
            )
