"""Rows of a map-style dataset, drawn from torch's samplers step by step.

A sampler may be endless, may lie about its length and may give rows of any kind, so nothing is
drawn before it is wanted. Workers are ahead of the consumer and so is the sampler: the state of a
sampler with a `state_dict` is kept for each step until that step has been delivered.

To begin at a later step, a sampler's state is loaded where it has one, and the steps in between are
drawn and dropped; that costs what drawing costs, and reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any

from penstock.addons.dataloader.epoch_draws import is_stateful, wrapped
from penstock.addons.dataloader.item_fetch import FetchResult, Keys
from penstock.addons.dataloader.progress import Progress, State
from penstock.order.streams import forwards

_NOTHING = object()  # a row may be None
_Drawn = tuple[int, int, Any]  # step, place of the first row in the epoch, rows


class RowsProgress(Progress):
    """Rows in the order of a sampler.

    All that is random about the epoch is drawn when it is made, inside of `EpochDraws.epoch`.

    Args:
        epoch, seed: of the pass.
        source: a sampler of rows, or one of batches.
        size: rows of a batch that are taken from `source`; None: its elements are handed on.
        drop_last: leave out a last, smaller batch; with `size`.
        every: steps between two states that are kept, of a sampler that has one.
        saved: of a progress to continue.
        carried: from `at_the_end` of the epoch before, if that was another loader's.
    """

    def __init__(
        self,
        epoch: int,
        seed: int,
        source: Any,
        size: int | None,
        drop_last: bool,
        every: int,
        saved: Mapping[str, Any],
        carried: Any,
    ) -> None:
        self._epoch, self._seed, self._source = epoch, seed, source
        self._size, self._drop_last, self._every = size, drop_last, max(every, 1)
        self._next = int(saved.get("step", 0))
        self._ahead = set(saved.get("ahead", ()))
        self._skipped = frozenset(self._ahead)
        self._kept: dict[int, State] = {}  # of the sampler, by step
        self._final: Any = None
        self._step = self._samples = 0
        self._ended = False
        self._begin(saved.get("sampler"), carried)

    def _begin(self, saved: Mapping[str, Any] | None, carried: Any) -> None:
        """Go to the next step, and draw it."""
        owner: Any = next((one for one in wrapped(self._source) if is_stateful(one)), None)
        state = carried if saved is None else saved["state"]
        of_iterator = saved is not None and saved["of"] == "iterator"
        if state is not None and owner is not None and not of_iterator:
            owner.load_state_dict(deepcopy(state))
        self._rows: Any = iter(self._source)
        self._stateful: Any = self._rows if is_stateful(self._rows) else owner
        if of_iterator and self._stateful is self._rows:
            self._rows.load_state_dict(deepcopy(state))
        if saved is not None and self._stateful is not None:
            self._step, self._samples = int(saved["step"]), int(saved["samples"])
            self._ended = bool(saved["ended"])
        self._keep()
        while self._step < self._next and self._draw() is not None:
            pass
        self._first = self._draw() if self._step == self._next else None
        if carried is not None and self._first is None:
            # Some samplers say at their end that nothing is left, and then begin anew.
            self._rows, self._ended = iter(self._source), False
            self._first = self._draw()

    def requests(self) -> Iterator[Keys]:
        drawn = self._first
        while drawn is not None:
            step, start, keys = drawn
            if step not in self._skipped:
                yield Keys(self._epoch, step, start, keys, self._seed)
            drawn = self._draw()

    def __len__(self) -> int:
        """As the sampler claims."""
        length = len(self._source)
        if self._size is None:
            return length
        return length // self._size if self._drop_last else -(-length // self._size)

    def accept(self, result: FetchResult) -> bool:
        self._ahead.add(result.request.step)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        if len(self._kept) > 1:  # drop states that are not needed to reach the next step
            for number in sorted(number for number in self._kept if number <= self._next)[:-1]:
                del self._kept[number]
        return True

    def state(self) -> State:
        sampler = None
        if self._stateful is not None:
            known = max(number for number in self._kept if number <= self._next)
            of = "iterator" if self._stateful is self._rows else "sampler"
            sampler = {"of": of, "step": known, **deepcopy(self._kept[known])}
        return {"step": self._next, "ahead": sorted(self._ahead), "sampler": sampler}

    def at_the_end(self) -> Any:
        """The sampler's state once it had ended; None if it has none, or has not ended."""
        return deepcopy(self._final)

    def _draw(self) -> _Drawn | None:
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
            self._kept[self._step] = {
                "samples": self._samples,
                "ended": self._ended,
                "state": state,
            }
