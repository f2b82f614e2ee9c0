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
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch

from penstock.errors import ConfigError, DataError, PenstockError, UnreachableError
from penstock.loading.facts import sample_name
from penstock.order.keys import hash64
from penstock.order.permutation import Permutation
from penstock.order.plan import Plan, Request, StreamPlan
from penstock.order.samplers import BatchStrategy, Order

OnError = Literal["raise", "substitute", "skip"]
Stage = Literal["read", "transform", "collate"]

ATTEMPTS = 10  # rows that are read instead of a bad one, at most

_CONTENT = (DataError, OSError, EOFError, UnicodeError)
_WHILE_READING = (ValueError, RuntimeError, SyntaxError)
_CODE = (NotImplementedError, RecursionError)
_MACHINE = (torch.OutOfMemoryError, ConnectionError, TimeoutError, ChildProcessError)
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

_WAY_OUT = "\nbad_samples.on_error=skip or substitute leaves such samples out; task=check lists all"


class SampleError(PenstockError):
    """A person's own code failed on a sample; the message ends with its traceback."""


class BadSampleError(Exception):
    """A row that is to be left out: the cause in one line, and whether a quarantine lists it."""

    def __init__(self, cause: str, known: bool = False) -> None:
        super().__init__(cause)
        self.cause, self.known = cause, known

    def kept(self) -> BadSampleError:
        """The same without its traceback, whose frames hold all that was read of the sample."""
        return BadSampleError(self.cause, self.known)


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
    action: OnError
    known: bool = False
    row: int | None = None

    def __str__(self) -> str:
        where = f"(epoch {self.epoch}, step {self.step}, position {self.position})"
        path = f" {self.path}" if self.path and self.path not in self.cause else ""
        return f"sample {sample_name(self.index, self.row)} {where}{path}: {self.cause}"


class Substitutes(Protocol):
    """Chooses rows that may take the place of others."""

    def rows(self, request: Request, slot: int) -> Iterator[int]:
        """Candidates for the row in `slot` of `request`; a function of its key."""


@dataclass(frozen=True)
class BadSamples:
    """The policy for bad samples.

    Attributes:
        on_error: see the module. Known samples are skipped under "raise", too.
        substitutes: needed by "substitute"; otherwise they fill shares that would be empty.
        known: causes by row, from a quarantine; these rows are not read.
        way_out: what a message that ends the run says about samples that cannot be read.
    """

    on_error: OnError = "raise"
    substitutes: Substitutes | None = None
    known: Mapping[int, str] = field(default_factory=dict)
    way_out: str = _WAY_OUT

    @property
    def action(self) -> OnError:
        """Of a sample that is left out."""
        return "substitute" if self.on_error == "substitute" else "skip"


RAISE = BadSamples()


def rule(
    on_error: OnError, known: Mapping[int, str], sampler: Order | BatchStrategy | None, seed: int
) -> BadSamples:
    """The policy for a split; `sampler` is None for a stream, whose fetch knows its substitutes."""
    needed = sampler is not None and (on_error != "raise" or known)
    # A copy: the plan's own may be asked in other threads.
    return BadSamples(on_error, FromOrder(copy(sampler), seed) if needed else None, known)


class FromOrder:
    """Rows from other positions of the epoch, so that subsets and weights stay what they are.

    A batch strategy's row is replaced by another one of the same global batch, of the same group
    (identity) where the strategy has groups; then by rows of other batches.
    """

    def __init__(self, sampler: Any, seed: int) -> None:
        self.sampler, self.seed = sampler, seed

    def rows(self, request: Request, slot: int) -> Iterator[int]:
        sampler, epoch, position = self.sampler, request.epoch, int(request.positions[slot])
        key, size = hash64(self.seed, "substitute", epoch, position), sampler.size(epoch)
        if not isinstance(sampler, BatchStrategy):
            for other in Permutation(size, key)(np.arange(min(ATTEMPTS, size))).tolist():
                yield int(sampler.indices(epoch, other, other + 1)[0])
            return
        positions, rows = sampler.batch(*request.address)
        own = int(np.flatnonzero(positions == position)[0])
        places = Permutation(len(rows), key)(np.arange(len(rows)))
        others = [place for place in places.tolist() if rows[place] != rows[own]]
        if sampler.group:
            others.sort(key=lambda place: place // sampler.group != own // sampler.group)
        others = others[: ATTEMPTS // 2]  # all of a batch may be bad
        yield from (int(rows[place]) for place in others)
        for attempt in range(len(others), ATTEMPTS):
            _, rows = sampler.batch(epoch, hash64(key, "batch", attempt) % size)
            yield int(rows[hash64(key, "row", attempt) % len(rows)])


def is_bad(error: Exception, stage: Stage) -> bool:
    """Whether `error` is about the sample, and not about the code or the machine."""
    if isinstance(error, _CODE + _MACHINE) or _wants_memory(error):
        return False
    if isinstance(error, PenstockError):
        return isinstance(error, DataError) and not isinstance(error, UnreachableError)
    if isinstance(error, OSError) and error.errno in _MACHINE_CODES:
        return False
    return (stage == "read" and isinstance(error, _WHILE_READING)) or _is_content(error)


def _wants_memory(error: Exception) -> bool:
    """Whether this process ran out of memory."""
    of_torch = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return of_torch or isinstance(error, MemoryError)


def _is_content(error: Exception) -> bool:
    """Whether only a sample's content can have raised `error`."""
    if isinstance(error, _CONTENT) or type(error).__module__.split(".")[0] in _DECODERS:
        return True
    # torchvision's decoders raise a plain RuntimeError.
    frames = traceback.walk_tb(error.__traceback__)
    names = (frame.f_globals.get("__name__", "") for frame, _ in frames)
    return isinstance(error, RuntimeError) and any(n.startswith("torchvision.io") for n in names)


def explained(
    error: Exception,
    stage: Stage,
    request: Request,
    slot: int = 0,
    path: str = "",
    on_error: OnError = "raise",
    own: int | None = None,
    way_out: str = _WAY_OUT,
) -> PenstockError:
    """The error that ends the run, with the sample's index, address, file and cause.

    Args:
        own: the dataset's own row, see `LeftOut.row`.
        way_out: see `BadSamples`.
    """
    row, position = sample_name(int(request.indices[slot]), own), int(request.positions[slot])
    where = f"sample {row} (epoch {request.epoch}, step {request.step}, position {position})"
    where += f" {path}" if path and path not in str(error) else ""
    way_out = way_out if on_error == "raise" and is_bad(error, stage) else ""
    if isinstance(error, ConfigError) and stage == "transform":
        return error
    if isinstance(error, DataError):
        return DataError(f"{where}: {error}{way_out}")
    if stage != "collate" and not isinstance(error, PenstockError) and _is_content(error):
        return DataError(f"{where}: {type(error).__name__}: {error}{way_out}")
    hint = ""
    if _wants_memory(error):
        hint = (
            "This process may have no more memory (of the machine, or ulimit -v). The sample "
            "is not to blame, and is never left out for it. Fewer workers, a smaller batch or "
            "loader.prefetch_factor=1 need less.\n"
        )
    elif on_error != "raise":
        hint = (
            f"bad_samples.on_error={on_error} leaves out samples that cannot be read; an error of "
            "this kind is taken for a mistake in code. If the sample is to blame, raise a "
            "penstock.errors.DataError instead.\n"
        )
    notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
    lines = "".join(traceback.format_exception(error))
    return SampleError(
        f"{where}: {stage} failed{notes} with {type(error).__name__}: {error}\n{hint}{lines}"
    )


def in_one_line(error: Exception) -> str:
    """The error for tables: at most 300 characters."""
    text = " ".join(str(error).split())
    text = text if isinstance(error, DataError) else f"{type(error).__name__}: {text}"
    return text if len(text) <= 300 else text[:297] + "..."


def path_of(dataset: Any, row: int) -> str:
    """The file of a sample, or "" if the dataset does not know it; never fails."""
    try:
        if callable(getattr(dataset, "path", None)):
            return str(dataset.path(row))
        return str(dataset.metadata["path"].iloc[row])
    except Exception:
        return ""


_NAMED = 5  # samples that a message names
_UNKNOWN_LENGTH = 10  # samples of a stream of unknown length that a share always allows


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
        length, count = self._length(self._epoch), len(self._left_out)
        allowed = self.limit
        if isinstance(allowed, float):
            share = math.ceil(allowed * (self._seen if length is None else length))
            allowed = max(_UNKNOWN_LENGTH, share) if length is None else share
        if count > allowed:
            of = f"{self._seen} so far" if length is None else str(length)
            named = "".join(f"\n  {sample}" for sample in self._left_out[:_NAMED])
            more = f"\n  and {count - _NAMED} more" if count > _NAMED else ""
            raise DataError(
                f"{count} bad samples in epoch {self._epoch} of the {self._split} split "
                f"({of} samples), and bad_samples.budget={self.limit} allows {allowed}:"
                f"{named}{more}\nRepair or remove them (task=check lists all that is wrong), or "
                "raise bad_samples.budget"
            )


def epoch_length(plan: Plan | StreamPlan, dataset: Any) -> Callable[[int], int | None]:
    """Samples in an epoch, by its number, as a `Budget` wants it."""
    if isinstance(plan, StreamPlan):
        return lambda epoch: plan.length
    sampler = plan.sampler
    return sampler.size if isinstance(sampler, Order) else lambda epoch: len(dataset)
