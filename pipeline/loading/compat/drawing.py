"""The rows of one epoch's batches, drawn from torch's samplers step by step.

A sampler may be endless, may lie about its length and may give rows of any kind, so nothing is
drawn before it is wanted. Workers are ahead of the consumer and so is the sampler: the state of a
sampler with a `state_dict` is kept for each step until that step has been delivered.

To begin at a later step, a sampler's state is loaded where it has one, and the steps in between are
drawn and dropped; that costs what drawing costs, and reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pipeline.order.streams import forwards

_NOTHING = object()  # a row may be None


@dataclass(frozen=True)
class _Kept:
    """The state of a sampler after so many samples, and whether it had ended."""

    samples: int
    state: Any
    ended: bool


class Drawing:
    """Batches of one epoch, as (step, place of the first row in the epoch, rows).

    Args:
        source: a sampler of rows, or one of batches.
        size: rows of a batch that are taken from `source`; None: its elements are handed on.
        drop_last: leave out a last, smaller batch; with `size`.
        every: steps between two states that are kept, of a sampler that has one.
    """

    def __init__(self, source: Any, size: int | None, drop_last: bool, every: int) -> None:
        self._source = source
        self._size, self._drop_last, self._every = size, drop_last, max(every, 1)
        self._rows: Any = None
        self._stateful: Any = None
        self._kept: dict[int, _Kept] = {}
        self._final: Any = None
        self._step = self._samples = 0
        self._ended = False
        self._first: tuple[int, int, Any] | None = None

    def begin(self, start: int, saved: Mapping[str, Any] | None, carried: Any = None) -> None:
        """Go to step `start`, and draw it: all that is random about it happens here.

        Args:
            saved: from `state`, of this epoch.
            carried: from `at_the_end`, of the epoch before.
        """
        owner = next((one for one in wrapped(self._source) if is_stateful(one)), None)
        state = carried if saved is None else saved["state"]
        of_iterator = saved is not None and saved["of"] == "iterator"
        if state is not None and owner is not None and not of_iterator:
            owner.load_state_dict(deepcopy(state))
        self._rows = iter(self._source)
        self._stateful = self._rows if is_stateful(self._rows) else owner
        if of_iterator and self._stateful is self._rows:
            self._rows.load_state_dict(deepcopy(state))
        if saved is not None and self._stateful is not None:
            self._step, self._samples = int(saved["step"]), int(saved["samples"])
            self._ended = bool(saved["ended"])
        self._keep()
        while self._step < start and self._take() is not None:
            pass
        self._first = self._take() if self._step == start else None
        if carried is not None and self._first is None:
            # Some samplers say at their end that nothing is left, and then begin anew.
            self._rows, self._ended = iter(self._source), False
            self._first = self._take()

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        batch = self._first
        while batch is not None:
            yield batch
            batch = self._take()

    def __len__(self) -> int:
        """As the sampler claims."""
        length = len(self._source)
        if self._size is None:
            return length
        return length // self._size if self._drop_last else -(-length // self._size)

    def state(self, step: int) -> dict[str, Any] | None:
        """The sampler's state from which `step` can be reached; None if it has none."""
        if self._stateful is None:
            return None
        known = max(number for number in self._kept if number <= step)
        kept = self._kept[known]
        of = "iterator" if self._stateful is self._rows else "sampler"
        return {"of": of, "step": known, "samples": kept.samples, "ended": kept.ended,
                "state": deepcopy(kept.state)}  # fmt: skip

    def at_the_end(self) -> Any:
        """The sampler's state once it had ended; None if it has none, or has not ended."""
        return deepcopy(self._final)

    def forget(self, step: int) -> None:
        """Drop states that are not needed to reach `step`."""
        if len(self._kept) > 1:
            for number in sorted(number for number in self._kept if number <= step)[:-1]:
                del self._kept[number]

    def _take(self) -> tuple[int, int, Any] | None:
        rows = self._next_rows()
        if self._ended and self._stateful is not None and self._stateful is not self._rows:
            self._final = deepcopy(self._stateful.state_dict())
        if rows is _NOTHING:
            return None
        drawn = self._step, self._samples, rows
        self._step += 1
        self._samples += len(rows) if isinstance(rows, (list, tuple)) else 1
        self._keep()
        return drawn

    def _next_rows(self) -> Any:
        if self._ended:
            return _NOTHING
        if self._size is None:
            rows = next(self._rows, _NOTHING)
            self._ended = rows is _NOTHING
            return rows
        rows = list(islice(forwards(self._rows), self._size))
        self._ended = len(rows) < self._size
        return _NOTHING if not rows or (self._ended and self._drop_last) else rows

    def _keep(self) -> None:
        if self._stateful is not None and (self._step % self._every == 0 or not self._kept):
            state = deepcopy(self._stateful.state_dict())
            self._kept[self._step] = _Kept(self._samples, state, self._ended)


def is_stateful(part: Any) -> bool:
    """Whether a sampler, a dataset or an iterator can save where it stands."""
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def wrapped(sampler: Any) -> Iterator[Any]:
    """A sampler, and those that it wraps."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None)
