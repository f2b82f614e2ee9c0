"""Seeds the generators that a sample's code draws from, so that its draws depend on its key alone.

Most data draws nothing, and seeding three global generators for each sample costs 9 us. `Seeding`
finds out which are drawn from with a canary:

1. Before a batch, each generator that is not known to be drawn from is seeded with a constant.
2. Afterwards one number is drawn from each. A number other than the first after that constant shows
   that the batch drew from it, and the batch is made again with this one seeded for each sample.

A DataLoader, whose workers are often new with each epoch, begins with all three as drawn from.

So the samples are the same as if everything were seeded for every sample, also where code draws for
the first time late. Generators that parts keep in attributes, lists and dicts are found by a walk
and are always seeded. Generators in closures, slots, classes and modules are not found; the first
sample of a process, made twice, shows them (`loading/fetch.py`).

Cost: 15 us a batch and 1 ms an epoch; a sample 1 us for torch, 2 for numpy, 5 for `random`, and for
each generator that a part keeps 3 to 7, or 20 if it is one of numpy's `default_rng`. `scope` has
the program's own generators put back, for 20 us.
"""

from __future__ import annotations

import io
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.order.keys import begin_sample, hash64

T = TypeVar("T")
_CANARY = 0x9E3779B9  # any constant
_KINDS = (
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
    random.Random,
    torch.Generator,
)
_MOST_ITEMS, _MOST_OBJECTS = 256, 4096  # longer containers hold data
# Types and packages whose attributes are data, or belong to the system.
_DATA = (type, ModuleType, torch.Tensor, io.IOBase)
_LIBRARIES = {"logging", "multiprocessing", "pandas", "pyarrow", "threading", "weakref"}
_stand_ins: list[np.random.MT19937] = []  # that no scope uses
# A generator whose state can be read in 1 us; that of the twister takes 75.
_SMALL = np.random.SFC64(_CANARY)
_number = torch.empty((), dtype=torch.int64)  # drawn into, as a default device may be another

# Bound methods, since numpy and `random` have no public name for their global generators.
_numpy: Any = np.random
GLOBAL: dict[str, Any] = {
    "random": random.seed.__self__,  # type: ignore[attr-defined]
    "numpy.random": _numpy.get_state.__self__,
    "torch": torch.default_generator,
}
_DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "numpy.random": np.random.random_sample,
    "torch": lambda: _number.random_().item(),
}


def _seeder(generator: Any) -> Any:
    """The function that seeds a generator with a number below 2^64."""
    if isinstance(generator, np.random.BitGenerator):
        return lambda key: setattr(generator, "state", type(generator)(key).state)
    if isinstance(generator, np.random.RandomState):
        return lambda key: generator.seed(key & 0xFFFFFFFF)  # it takes 32 bits
    # Not `torch.manual_seed`, which visits the accelerators and takes 100 times as long.
    return generator.manual_seed if isinstance(generator, torch.Generator) else generator.seed


_SEEDERS = {name: _seeder(generator) for name, generator in GLOBAL.items()}


def seed_global(key: int) -> None:
    """Seed `random`, `numpy.random` and torch's CPU generator of this process; 9 us."""
    for seed in _SEEDERS.values():
        seed(key)


@contextmanager
def scope() -> Iterator[None]:
    """Give `random`, `numpy.random` and torch's CPU generator back on exit as they were."""
    python, of_torch = random.getstate(), torch.default_generator.get_state()
    # A normal draw that numpy keeps for its next call is no part of a generator's state. Numpy has
    # no public name for it alone: `_bit_generator` spares copying the twister, 75 us a batch.
    ours = GLOBAL["numpy.random"]
    generator, ours._bit_generator = ours._bit_generator, _SMALL
    kept = ours.get_state(legacy=False)
    # Another generator stands in for numpy's, whose state takes longer to put back than the rest.
    stand_in = _stand_ins.pop() if _stand_ins else np.random.MT19937(_CANARY)
    _numpy.set_bit_generator(stand_in)
    try:
        yield
    finally:
        random.setstate(python)
        torch.default_generator.set_state(of_torch)
        _numpy.set_bit_generator(generator)
        if kept["has_gauss"]:
            ours._bit_generator = _SMALL
            ours.set_state(kept)
            ours._bit_generator = generator
        _stand_ins.append(stand_in)


with scope():
    seed_global(_CANARY)
    _RESETS: dict[str, Callable[[], object]] = {
        "random": partial(random.setstate, random.getstate()),
        "numpy.random": partial(np.random.seed, _CANARY),
        "torch": partial(torch.default_generator.set_state, torch.default_generator.get_state()),
    }
    _FIRST = {name: draw() for name, draw in _DRAWS.items()}


class SharedGeneratorError(PenstockError):
    """Data code draws from a generator that threads share."""

    exit_code = 2  # another backend is chosen, though only the first batch shows that it has to be


class Seeding:
    """The generators that the parts of a fetch draw from, as far as they are known.

    Args:
        parts: by name, to search for generators. The seeds of one depend on its path: the name and
            the attributes that lead to it, as `dataset.rng`.
        drawn: names of global generators that are taken to be drawn from. What the last sample of
            the first batch leaves alone is no longer one of them.

    Attributes:
        drawn: names of the global generators that are drawn from, in the order of finding.
        generators: that parts keep, by path; searched for once an epoch.
        open_files: that parts keep, as paths of attributes.
    """

    def __init__(
        self, parts: Mapping[str, object] | None = None, drawn: Collection[str] = ()
    ) -> None:
        self._parts = dict(parts or {})
        self._epoch, self._searches, self._key = -1, 0, 0
        self.drawn = [*drawn]
        self.generators: dict[str, Any] = {}
        self.open_files: list[str] = []
        self._seeders: list[tuple[int, Callable[[int], Any]]] = []

    def __reduce__(self) -> tuple[type[Seeding], tuple[dict[str, object], list[str]]]:
        return type(self), (self._parts, self.drawn)

    @property
    def seed(self) -> Callable[[int], None]:
        """The function that begins a sample, whose draws then depend on the given key alone."""
        return self._seed if self.drawn or self._seeders else begin_sample

    def _seed(self, key: int) -> None:
        self._key = key
        begin_sample(key)
        for name in self.drawn:
            _SEEDERS[name](key)
        for purpose, seed in self._seeders:
            seed(hash64(key, purpose))

    def run(self, make: Callable[[], T], epoch: int = 0) -> T:
        """The result of `make`, which calls `seed` for each sample; it may be called again."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._search()
        # It ends: each turn finds one of three global generators or, once, one that a part made.
        while True:
            idle = [name for name in GLOBAL if name not in self.drawn]
            for name in idle:
                _RESETS[name]()
            try:
                made = make()
            except Exception:  # what was drawn without a seed may be its cause
                if not self._missed(idle):
                    raise
            else:
                if not self._missed(idle):
                    return made

    def states(self) -> dict[str, Any]:
        """The states of all that is seeded, for `restore`."""
        return {path: _access(generator)[0]() for path, generator in self._seeded().items()}

    def restore(self, states: Mapping[str, Any]) -> None:
        """Put back what `states` gave."""
        for path, generator in self._seeded().items():
            if path in states:
                _access(generator)[1](states[path])

    def refuse_threads(self) -> None:
        """Raise SharedGeneratorError if threads would share what is seeded, or an open file."""
        drawn = " and ".join(self.drawn)
        shared = [f"the global state of {drawn}, which the data draws from"] if drawn else []
        shared += [f"the generator in {path}" for path in self.generators]
        shared += [f"{path}, a file opened before, with its position" for path in self.open_files]
        if shared:
            raise SharedGeneratorError(
                f"loader.backend: threads would share {' and '.join(shared)}, so a batch would "
                "depend on which thread runs when. Use loader.backend=process or "
                "loader.backend=main, or take draws from the sample's key (key_at_hand)"
            )

    def _seeded(self) -> dict[str, Any]:
        return {name: GLOBAL[name] for name in self.drawn} | self.generators

    def _missed(self, idle: list[str]) -> bool:
        """Whether a batch drew from what was not seeded for it."""
        before = self.generators
        drawn = [name for name in idle if _DRAWS[name]() != _FIRST[name]]
        self.drawn += drawn
        if self._searches == 1:  # parts may make generators with their first sample
            self._search()
            if not idle:
                # Behind the key that the last sample began with.
                numbers = {name: _DRAWS[name]() for name in GLOBAL}
                seed_global(self._key)
                self.drawn = [name for name in GLOBAL if _DRAWS[name]() != numbers[name]]
        return bool(drawn) or [*map(id, before.values())] != [*map(id, self.generators.values())]

    def _search(self) -> None:
        self._searches += 1
        self.generators, self.open_files = stateful_in(self._parts)
        self._seeders = [
            (hash64("own", path), _seeder(one)) for path, one in self.generators.items()
        ]


def stateful_in(parts: Mapping[str, object]) -> tuple[dict[str, Any], list[str]]:
    """What `parts` keep that has a state: generators by path, and the paths of open files.

    Global generators are left out, and files of Penstock's own, which are read at positions. An
    object with two paths has the shorter one.
    """
    generators, files = dict[str, Any](), list[str]()
    # It keeps objects alive, whose ids would be used again.
    seen: dict[int, object] = {id(generator): generator for generator in GLOBAL.values()}
    # First in, first out, so that the shorter path of an object is met first.
    waiting = deque((path, thing, "") for path, thing in parts.items())
    while waiting and len(seen) < _MOST_OBJECTS:
        path, thing, owner = waiting.popleft()
        if id(thing) in seen:
            continue
        if isinstance(thing, _KINDS) and not isinstance(thing, random.SystemRandom):
            seen[id(thing)] = thing
            # A numpy Generator has no `seed`; its bit generator has a state to set.
            generators[path] = getattr(thing, "bit_generator", thing)
        elif (
            isinstance(thing, io.IOBase) and not owner.startswith("penstock.") and not thing.closed
        ):
            files += [path] if thing.readable() else []
        elif inner := _inside(thing):
            seen[id(thing)] = thing
            waiting.extend((path + step, one, type(thing).__module__) for step, one in inner)
    return generators, files


def _inside(thing: Any) -> list[tuple[str, Any]]:
    """The attributes or items of an object, each with the step to it: `.name` or `[key]`."""
    if isinstance(thing, (dict, list, tuple, deque)):
        items = thing.items() if isinstance(thing, dict) else enumerate(thing)
        return [(f"[{key!r}]", value) for key, value in items] if len(thing) <= _MOST_ITEMS else []
    if isinstance(thing, MethodType):
        return [("", thing.__self__)]
    if isinstance(thing, partial):
        return [(f".{name}", getattr(thing, name)) for name in ("func", "args", "keywords")]
    if isinstance(thing, _DATA) or type(thing).__module__.partition(".")[0] in _LIBRARIES:
        return []
    return [(f".{name}", value) for name, value in getattr(thing, "__dict__", {}).items()]


def _access(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """The functions that get and set the state of a generator."""
    if isinstance(generator, np.random.BitGenerator):
        return lambda: generator.state, lambda state: setattr(generator, "state", state)
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    return generator.get_state, generator.set_state
