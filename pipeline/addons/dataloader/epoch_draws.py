"""The random numbers that the orders of an epoch are drawn from, where torch's samplers draw them.

torch's samplers draw from a generator that a person gave, or else from the global one, from which
everybody draws. To be able to draw an epoch's order again, an `EpochDraws`

1. remembers the generators as they stood when the epoch began;
2. keeps a stream of its own instead of the global generator. It starts as a copy of it when
   the first epoch does, so that the order is torch's after the same `torch.manual_seed`, and starts
   again whenever somebody has just seeded the global generator. In between, a model's draws do not
   change which order comes next;
3. or, given a seed, draws every epoch from (seed, epoch) and remembers nothing.

Cost: 0.1 ms an epoch; a state is about 4 KB for each generator, and nothing with a seed.
"""

from __future__ import annotations

import base64
import inspect
import random
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from penstock.order.keys import hash64
from penstock.order.randomness import scope, seed_global

Snapshot = dict[str, Any]

_LARGEST = 1 << 16  # bytes of a generator's state; torch's have 5056
_MOST_GENERATORS = 64
_WORDS = 624  # of a Mersenne Twister


class EpochDraws:
    """The numbers that samplers draw, and the seeds of epochs.

    Args:
        sampler: of rows or of batches, or None; samplers that it wraps count, too.
        generator: the loader's, from which seeds of epochs are drawn; None: the global one.
        seed: draw everything from it and the epoch's number instead.
        once: draw one seed for all epochs, as torch does where workers are persistent; those of
            the later ones follow from it.

    Attributes:
        first: that seed, once it has been drawn.
    """

    def __init__(
        self, sampler: Any, generator: torch.Generator | None, seed: int | None, once: bool = False
    ) -> None:
        self._once = once
        self.first: int | None = None
        self._chain = list(wrapped(sampler))
        self._generator = generator
        self._seed = seed
        self._own: torch.Tensor | None = None  # the stream instead of the global generator
        self._restored: Snapshot | None = None

    def now(self) -> Snapshot:
        """Where the next epoch would be drawn from; see `plain`."""
        if self._seed is not None:
            return {"seed": self._seed}
        if self._restored is not None:
            return self._restored
        own = torch.default_generator.get_state() if self._starts_again() else self._own
        states = [generator.get_state() for generator in self._generators()]
        snapshot: Snapshot = {"torch": own, "generators": states}
        if self.first is not None:
            snapshot["first"] = self.first
        # Other samplers than torch's may draw from `random` or `numpy.random`.
        rows = (list, tuple, range, torch.Tensor, np.ndarray)
        others = (sampler for sampler in self._chain if not isinstance(sampler, rows))
        if any(not type(sampler).__module__.startswith("torch.") for sampler in others):
            snapshot |= {"random": random.getstate(), "numpy": np.random.get_state()}
        return snapshot

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Draw the next epoch from a plain `saved` snapshot.

        Raises:
            ValueError: it was saved with another seed, or only one of the two has one; or it is
                damaged.
        """
        if saved.get("seed") != self._seed:
            raise ValueError(
                f"the state was saved by a DataLoader with seed={saved.get('seed')!r:.60}, and "
                f"this one has seed={self._seed}, so that its epochs have other orders; use the "
                "same seed"
            )
        if self._seed is None:
            self._restored = from_plain(saved)

    @contextmanager
    def epoch(self, number: int) -> Iterator[int]:
        """The seed of an epoch; what samplers draw inside is drawn for that epoch."""
        if self._seed is not None:
            with scope():
                key = hash64(self._seed, "epoch", number)
                seed_global(key)
                for generator in self._generators():
                    generator.manual_seed(key)
                yield key >> 1
            return
        restored, self._restored = self._restored, None
        if restored is None:
            with self._in_place(None if self._starts_again() else self._own):
                yield self._draw_seed(self.first, number)
        else:
            for generator, state in zip(self._generators(), restored["generators"], strict=False):
                generator.set_state(state)
            with _python_and_numpy(restored), self._in_place(restored["torch"]):
                yield self._draw_seed(restored.get("first"), number)

    @contextmanager
    def _in_place(self, state: torch.Tensor | None) -> Iterator[None]:
        """Put our stream at `state` instead of the global generator; None: leave that."""
        outside = torch.default_generator.get_state()
        if state is not None:
            torch.default_generator.set_state(state)
        before = outside if state is None else state
        try:
            yield
        finally:
            self._own = torch.default_generator.get_state()
            if state is not None:
                torch.default_generator.set_state(outside)
                if not torch.equal(self._own, before):
                    # As somebody expects who draws after torch's loader: it has moved on.
                    torch.empty((), dtype=torch.int64).random_()

    def _draw_seed(self, first: int | None, number: int) -> int:
        if first is None:
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self._generator)
            seed = first = int(drawn.item())
        else:
            seed = hash64(first, "epoch", number) >> 1
        self.first = first if self._once else None
        return seed

    def _starts_again(self) -> bool:
        if self._own is None:
            return True
        seeded = torch.Generator().manual_seed(torch.default_generator.initial_seed())
        return torch.equal(seeded.get_state(), torch.default_generator.get_state())

    def _generators(self) -> list[torch.Generator]:
        """All that are drawn from besides the global one, each once."""
        candidates = [
            self._generator,
            *(getattr(sampler, "generator", None) for sampler in self._chain),
        ]
        different = {
            id(generator): generator
            for generator in candidates
            if isinstance(generator, torch.Generator)
        }
        return list(different.values())


def is_stateful(part: object) -> bool:
    """Whether a sampler, a dataset or an iterator can save where it stands.

    Methods that it makes up when it is asked, as a Mock does, are none (as in typing's protocols).
    """
    return all(
        callable(inspect.getattr_static(part, name, None))
        for name in ("state_dict", "load_state_dict")
    )


def wrapped(sampler: object) -> Iterator[object]:
    """A sampler, and those that it wraps.

    Attributes that an object makes up when it is asked (a Mock, a proxy) wrap nothing: they may
    never end.
    """
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        yield sampler
        seen.add(id(sampler))
        is_there = inspect.getattr_static(sampler, "sampler", None) is not None
        sampler = getattr(sampler, "sampler", None) if is_there else None


@contextmanager
def _python_and_numpy(snapshot: Snapshot) -> Iterator[None]:
    if "random" not in snapshot:
        yield
        return
    outside = random.getstate(), np.random.get_state()
    random.setstate(snapshot["random"])
    np.random.set_state(snapshot["numpy"])
    try:
        yield
    finally:
        random.setstate(outside[0])
        np.random.set_state(outside[1])


def plain(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as text and numbers, as JSON can hold them."""
    saved = dict(snapshot)
    if "torch" in saved:
        saved["torch"] = _text(saved["torch"])
        saved["generators"] = [_text(state) for state in saved["generators"]]
    if "random" in saved:
        version, words, gauss = saved["random"]
        saved["random"] = [version, _text(np.array(words, dtype=np.uint32)), gauss]
        name, keys, *rest = saved["numpy"]
        saved["numpy"] = [name, _text(keys), *rest]
    return saved


def from_plain(saved: Mapping[str, Any]) -> Snapshot:
    """The snapshot that `plain` was given, also of anybody's text; raises ValueError otherwise."""
    try:
        snapshot = dict(saved)
        if len(saved["generators"]) > _MOST_GENERATORS:
            raise ValueError(f"it has more than {_MOST_GENERATORS} generators")
        snapshot["torch"] = torch.from_numpy(_array(saved["torch"], np.uint8))
        states = [_array(text, np.uint8) for text in saved["generators"]]
        snapshot["generators"] = [torch.from_numpy(state) for state in states]
        torch.Generator().set_state(snapshot["torch"])  # refuses what is no state
        if "random" in saved:
            version, words, gauss = saved["random"]
            snapshot["random"] = version, tuple(_array(words, np.uint32).tolist()), gauss
            random.Random().setstate(snapshot["random"])
            name, keys, position, *rest = saved["numpy"]
            if type(position) is not int or not 0 <= position <= _WORDS:  # numpy reads at any place
                raise ValueError(f"numpy's generator is at {position!r:.60}")
            snapshot["numpy"] = (name, _array(keys, np.uint32), position, *rest)
            np.random.RandomState(0).set_state(snapshot["numpy"])
        return snapshot
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError, zlib.error) as error:
        raise ValueError(f"its generators: {type(error).__name__}: {str(error)[:300]}") from error


def _text(numbers: Any) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(numbers).tobytes())).decode()


def _array(text: str, kind: Any) -> Any:
    if len(text) > 2 * _LARGEST:
        raise ValueError(f"a state has {len(text)} characters")
    unpacking = zlib.decompressobj()
    content = unpacking.decompress(base64.b64decode(text, validate=True), _LARGEST)
    if not unpacking.eof:
        raise ValueError(f"a state is cut off, or larger than {_LARGEST} bytes")
    return np.frombuffer(content, dtype=kind).copy()
