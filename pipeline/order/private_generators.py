"""Generators that a dataset or a transform holds itself, seeded for each sample as the global ones.

A transform may draw from an `np.random.default_rng()` of its own; Albumentations 2 does. Unseeded,
its draws would depend on which worker made which samples before. Generators that are made at each
call are not found here; `penstock.loading.repeatable` tests for them. Cost: under 1 ms an epoch to
look, and about 10 us a sample for each generator that is found.
"""

from __future__ import annotations

import io
import random
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from penstock.order.generator_states import comparable
from penstock.order.keys import hash64
from penstock.order.randomness import Draws
from penstock.order.seeding import ThreadRandomness, held_by_parts, opened_by_parts

_MOST_ITEMS = 256  # of a container; longer ones hold data
_MOST_LOOKS = 4096
_LEAVES = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    type(None),
    type,
    range,
    slice,
    frozenset,
    set,
    np.ndarray,
    np.generic,
    np.dtype,
    torch.Tensor,
    torch.dtype,
    torch.device,
    ModuleType,
    BuiltinFunctionType,
    CodeType,
)
# Packages whose code is not read for generators of its modules: they have none, or global ones.
_READ_BY_OTHERS = frozenset(
    {
        "albucore",
        "albumentations",
        "builtins",
        "collections",
        "cv2",
        "functools",
        "matplotlib",
        "numpy",
        "omegaconf",
        "pathlib",
        "PIL",
        "penstock",
        "pydantic",
        "scipy",
        "skimage",
        "torch",
        "torchvision",
        "typing",
    }
)
# Objects of these packages hold data, or what belongs to the system.
_DATA = frozenset(
    {
        "_io",
        "_thread",
        "fsspec",
        "h5py",
        "io",
        "logging",
        "mmap",
        "multiprocessing",
        "pandas",
        "pyarrow",
        "re",
        "socket",
        "threading",
        "weakref",
        "zarr",
        "zipfile",
    }
)
# Code of these packages gives the same sample for the same key.
_REPEATABLE = frozenset(
    {
        "builtins",
        "collections",
        "functools",
        "pathlib",
        "penstock",
        "torch",
        "torchvision",
    }
)
_PYTHON: object = random.seed.__self__  # type: ignore[attr-defined]


class PrivateGenerators:
    """The generators that parts hold, looked for once an epoch and in each process.

    Args:
        parts: by name. A generator's seeds depend on the name and on the way to it from there.

    Attributes:
        is_foreign: whether the parts contain code of other packages than those known to be
            repeatable, as far as `beside` has looked.
        refreshed: whether `refresh` was called. Parts may make generators with their first sample,
            so once is enough.
    """

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._parts = dict(parts)
        self._epoch: int | None = None
        self._found: dict[str, object] = {}
        self._files: list[str] = []
        self.is_foreign = False
        self.refreshed = False

    def __reduce__(self) -> tuple[type[PrivateGenerators], tuple[dict[str, object]]]:
        return type(self), (self._parts,)

    def beside(self, draws: Draws, epoch: int) -> Draws:
        """`draws`, and the generators that parts hold in `epoch`; `draws` itself if there are none.

        Raises:
            SharedGeneratorError: there are some, or open files, and `draws` are those of a thread.
        """
        if epoch != self._epoch:
            self._found, self._files, self.is_foreign = generators_and_files_in(self._parts)
            self._epoch = epoch
        if self._files and isinstance(draws, ThreadRandomness):
            raise opened_by_parts(self._files)
        if not self._found:
            return draws
        if isinstance(draws, ThreadRandomness):
            raise held_by_parts(list(self._found))
        return PrivateDraws(draws.others if isinstance(draws, PrivateDraws) else draws, self._found)

    def refresh(self) -> bool:
        """Look again; whether there are others than before."""
        self.refreshed = True
        before = {id(generator) for generator in self._found.values()}
        self._found, self._files, self.is_foreign = generators_and_files_in(self._parts)
        return {id(generator) for generator in self._found.values()} != before


class PrivateDraws:
    """Generators by name beside `others`, the global ones, each seeded by key and name."""

    def __init__(self, others: Draws, generators: Mapping[str, object]) -> None:
        self.others = others
        # A numpy Generator has its state in its BitGenerator.
        self._own = {
            name: getattr(generator, "bit_generator", generator)
            for name, generator in generators.items()
        }
        self._purposes = [hash64("own", name) for name in self._own]

    def seed(self, key: int) -> None:
        self.others.seed(key)
        for generator, purpose in zip(self._own.values(), self._purposes, strict=True):
            _seed(generator, hash64(key, purpose))

    def save(self) -> object:
        return self.others.save(), [_state(generator) for generator in self._own.values()]

    def restore(self, states: Any) -> None:
        others, own = states
        self.others.restore(others)
        for generator, state in zip(self._own.values(), own, strict=True):
            _set_state(generator, state)

    def moved(self, before: Any) -> list[str]:
        others, own = before
        pairs = zip(self._own.items(), own, strict=True)
        return self.others.moved(others) + [
            name
            for (name, generator), state in pairs
            if comparable(_state(generator)) != comparable(state)
        ]


def generators_and_files_in(
    parts: Mapping[str, object],
) -> tuple[dict[str, object], list[str], bool]:
    """What `parts` hold: generators by path, the paths of open files, and whether there is code of
    other packages.

    Global generators are left out, and files of Penstock's own, which are read at positions. An
    object that can be reached in two ways has the shorter path.
    """
    generators: dict[str, object] = {}
    files: list[str] = []
    foreign = False
    seen: dict[int, object] = {}  # keeps objects alive, whose ids would be used again
    waiting = deque(parts.items())
    while waiting and len(seen) < _MOST_LOOKS:
        path, thing = waiting.popleft()
        if isinstance(thing, _LEAVES) or id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if _is_generator(thing):
            while path in generators:
                path += "'"
            generators[path] = thing
        elif _root(thing) not in _DATA:
            kind = type(thing)
            runs = callable(thing) or hasattr(kind, "__getitem__") or hasattr(kind, "__iter__")
            foreign = foreign or (runs and _root(thing) not in _REPEATABLE)
            for step, inner in _inside(thing):
                if not isinstance(inner, io.IOBase):
                    waiting.append((path + step, inner))
                elif _root(thing) != "penstock" and not inner.closed and inner.readable():
                    files.append(path + step)
    return generators, files, foreign


def _is_generator(thing: Any) -> bool:
    """Whether `thing` is a generator that can be seeded, and not a global one."""
    if isinstance(thing, np.random.RandomState):
        state: Any = thing.get_state(legacy=False)
        return thing is not np.random.mtrand._rand and state["bit_generator"] == "MT19937"
    if isinstance(thing, random.Random):
        return not isinstance(thing, random.SystemRandom) and thing is not _PYTHON
    if isinstance(thing, torch.Generator):
        return thing is not torch.default_generator
    return isinstance(thing, (np.random.Generator, np.random.BitGenerator))


def _root(thing: object) -> str:
    owner = thing if isinstance(thing, FunctionType) else type(thing)
    return (getattr(owner, "__module__", None) or "").partition(".")[0]


# Objects, closures and the globals that functions read are walked, since nothing tells which
# generators a part draws from. If parts named theirs, all of what follows could go.


def _inside(thing: object) -> Iterator[tuple[str, Any]]:
    """The objects that a thing refers to, each with the step to it."""
    if isinstance(thing, (dict, list, tuple, deque)):
        items = thing.items() if isinstance(thing, dict) else enumerate(thing)
        if len(thing) <= _MOST_ITEMS:
            yield from ((f"[{key!r}]", value) for key, value in list(items))
    elif isinstance(thing, partial):
        yield from ((".func", thing.func), (".args", thing.args), (".keywords", thing.keywords))
    elif isinstance(thing, MethodType):
        yield from (("", thing.__self__), ("", thing.__func__))
    elif isinstance(thing, FunctionType):
        yield from _of_function(thing)
    else:
        yield from _of_instance(thing)


def _of_function(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Defaults, the closure, and the names of its module that it reads."""
    yield from (("", value) for value in function.__defaults__ or ())
    yield from ((f" {name}", value) for name, value in (function.__kwdefaults__ or {}).items())
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f" {name}", cell.cell_contents
        except ValueError:  # not filled yet
            continue
    if _root(function) not in _READ_BY_OTHERS:
        for name in _names_in(function.__code__):
            if name in function.__globals__:
                yield f" {name}", function.__globals__[name]


def _names_in(code: CodeType) -> list[str]:
    """Names, global ones among them, that code and the functions inside it look up."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [*code.co_names, *(name for function in inner for name in _names_in(function))]


def _of_instance(thing: object) -> Iterator[tuple[str, object]]:
    """Attributes; outside of known packages also those of the class and what its methods read."""
    yield from ((f".{name}", value) for name, value in list(getattr(thing, "__dict__", {}).items()))
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            try:
                yield f".{name}", object.__getattribute__(thing, name)
            except AttributeError:
                continue
        if (kind.__module__ or "").partition(".")[0] in _READ_BY_OTHERS:
            continue
        for name, value in vars(kind).items():
            if isinstance(value, (FunctionType, staticmethod, classmethod)):
                yield "", getattr(value, "__func__", value)
            elif not isinstance(value, property):
                yield f".{name}", value


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, np.random.BitGenerator):
        generator.state = type(generator)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed & 0xFFFFFFFF)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    else:
        generator.manual_seed(seed)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.BitGenerator):
        generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)
