"""Generators that a dataset or a transform holds itself, seeded for each sample as the global ones.

A transform may keep `np.random.default_rng()` and draw from it; Albumentations 2 does. Such a
generator goes on from sample to sample, so what a sample draws would depend on which worker made
which samples before.

1. `PrivateGenerators` walks through the attributes of the parts: containers, wrapped functions,
   what functions refer to. It finds numpy's `Generator`, `BitGenerator` and `RandomState`,
   `random.Random` and `torch.Generator`.
2. `PrivateDraws` seeds them beside the global generators, each from the sample's key and its path.

Generators that are made anew at each call, and those of the system, cannot be found in this way;
`pipeline.loading.repeatable` tries that out. Threads share a generator, so they are refused.

Cost: none for samples of parts that hold no generator, under 1 ms an epoch to look; else about 10
us a generator and sample.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from pipeline.order.randomness import Draws, hash64

_MOST_ITEMS = 256  # of a container; longer ones hold data
_MOST_LOOKS = 4096
_LEAVES = (
    str, bytes, bytearray, int, float, complex, type(None), type, range, slice, frozenset, set,
    np.ndarray, np.generic, np.dtype, torch.Tensor, torch.dtype, torch.device, ModuleType,
    BuiltinFunctionType, CodeType,
)  # fmt: skip
# Packages whose code is not read for generators of its modules: they have none, or global ones.
_READ_BY_OTHERS = frozenset({
    "albucore", "albumentations", "builtins", "collections", "cv2", "functools",
    "matplotlib", "numpy", "omegaconf", "pathlib", "PIL", "pipeline", "pydantic", "scipy",
    "skimage", "torch", "torchvision", "typing",
})  # fmt: skip
# Objects of these packages hold data, or what belongs to the system.
_DATA = frozenset({
    "_io", "_thread", "fsspec", "h5py", "io", "logging", "mmap", "multiprocessing", "pandas",
    "pyarrow", "re", "socket", "threading", "weakref", "zarr",
})  # fmt: skip
# What is known to be the same again when it gets the same key.
_REPEATABLE = frozenset({
    "builtins", "collections", "functools", "pathlib", "pipeline", "torch",
    "torchvision",
})  # fmt: skip


class PrivateGenerators:
    """The generators that parts hold, found when they are asked for in an epoch for the first time.

    What a part makes for itself with its first sample is found by `grown`. Nothing of it travels to
    another process: generators are looked for where they are drawn from.

    Args:
        parts: by name. A generator's seeds depend on the name and on the way to it from there.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = dict(parts)
        self._epoch: int | None = None
        self._found: dict[str, Any] = {}
        self._foreign = False
        self._settled = False

    def __reduce__(self) -> tuple[type[PrivateGenerators], tuple[dict[str, Any]]]:
        return type(self), (self._parts,)

    def names(self, epoch: int) -> list[str]:
        """Where they are, such as `transform.noise.rng`."""
        self._look_in(epoch)
        return list(self._found)

    def is_foreign(self, epoch: int) -> bool:
        """Whether there is code of others among the parts, which may do as it likes."""
        self._look_in(epoch)
        return self._foreign

    def grown(self) -> bool:
        """Whether there are others now than when they were looked for; asked once, else False."""
        if self._settled:
            return False
        self._settled = True
        before = {id(one) for one in self._found.values()}
        self._look()
        return {id(one) for one in self._found.values()} != before

    def beside(self, draws: Draws) -> PrivateDraws:
        """`draws`, and the generators that were found."""
        return PrivateDraws(draws.others if isinstance(draws, PrivateDraws) else draws, self._found)

    def _look_in(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._look()
            self._epoch = epoch

    def _look(self) -> None:
        self._found, self._foreign = generators_in(self._parts)


class PrivateDraws:
    """Generators by name beside the global ones; see `pipeline.order.randomness.Draws`.

    Attributes:
        others: the global ones.
    """

    def __init__(self, others: Draws, generators: Mapping[str, Any]) -> None:
        self.others = others
        self._own = dict(generators)
        self._seeds = [(one, hash64("own", name)) for name, one in self._own.items()]

    def seed(self, key: int) -> None:
        self.others.seed(key)
        for generator, purpose in self._seeds:
            _seed(generator, hash64(key, purpose))

    def save(self) -> Any:
        return self.others.save(), [_state(one) for one in self._own.values()]

    def restore(self, states: Any) -> None:
        others, own = states
        self.others.restore(others)
        for generator, state in zip(self._own.values(), own, strict=True):
            _set_state(generator, state)

    def moved(self, before: Any) -> list[str]:
        others, own = before
        pairs = zip(self._own.items(), own, strict=True)
        return self.others.moved(others) + [
            name for (name, one), state in pairs if _frozen(_state(one)) != _frozen(state)
        ]


def generators_in(parts: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The generators of `parts` by where they are, and whether there is code of others in them.

    The global generators are none of them. An object that can be reached in two ways is named by
    the shorter one.
    """
    found: dict[str, Any] = {}
    foreign = False
    seen: dict[int, Any] = {}  # keeps what has been seen, whose id would be used again
    waiting = deque(parts.items())
    while waiting and len(seen) < _MOST_LOOKS:
        path, thing = waiting.popleft()
        if isinstance(thing, _LEAVES) or id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if _is_generator(thing):
            while path in found:
                path += "'"
            found[path] = thing
        elif _root(thing) not in _DATA:
            foreign = foreign or (_is_code(thing) and _root(thing) not in _REPEATABLE)
            waiting.extend((path + step, inner) for step, inner in _inside(thing))
    return found, foreign


def _is_generator(thing: Any) -> bool:
    """Whether it is a generator that can be seeded, and no global one."""
    if isinstance(thing, np.random.RandomState):
        return thing is not np.random.mtrand._rand and _is_twister(thing)
    if isinstance(thing, random.Random):
        return not isinstance(thing, random.SystemRandom) and thing is not _PYTHON
    if isinstance(thing, torch.Generator):
        return thing is not torch.default_generator
    return isinstance(thing, (np.random.Generator, np.random.BitGenerator))


_PYTHON: Any = random.seed.__self__  # type: ignore[attr-defined]


def _is_twister(state: np.random.RandomState) -> bool:
    return state.get_state(legacy=False)["bit_generator"] == "MT19937"  # type: ignore[call-overload, index, unused-ignore]


def _is_code(thing: Any) -> bool:
    """Whether it is called, or read as a dataset is."""
    kind = type(thing)
    return callable(thing) or hasattr(kind, "__getitem__") or hasattr(kind, "__iter__")


def _root(thing: Any) -> str:
    """The package in which a thing's code stands."""
    owner = thing if isinstance(thing, FunctionType) else type(thing)
    return (getattr(owner, "__module__", None) or "").partition(".")[0]


def _inside(thing: Any) -> Iterator[tuple[str, Any]]:
    """What a thing refers to, and how."""
    if isinstance(thing, Mapping) and isinstance(thing, dict):
        if len(thing) <= _MOST_ITEMS:
            yield from ((f"[{key!r}]", value) for key, value in list(thing.items()))
    elif isinstance(thing, (list, tuple, deque)):
        if len(thing) <= _MOST_ITEMS:
            yield from ((f"[{place}]", value) for place, value in enumerate(list(thing)))
    elif isinstance(thing, partial):
        yield from ((".func", thing.func), (".args", thing.args), (".keywords", thing.keywords))
    elif isinstance(thing, MethodType):
        yield from (("", thing.__self__), ("", thing.__func__))
    elif isinstance(thing, FunctionType):
        yield from _of_function(thing)
    else:
        yield from _of_instance(thing)


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Defaults, what stands in the closure, and the names of its module that it reads."""
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
    """Names that code and the functions inside it look up, global ones among them."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return [*code.co_names, *(name for one in inner for name in _names_in(one))]


def _of_instance(thing: Any) -> Iterator[tuple[str, Any]]:
    """Attributes, and of code of others those of the class and what its methods read."""
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
    if isinstance(generator, np.random.Generator):
        generator = generator.bit_generator
    if isinstance(generator, np.random.BitGenerator):
        generator.state = type(generator)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed & 0xFFFFFFFF)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    else:
        generator.manual_seed(seed)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        generator = generator.bit_generator
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator = generator.bit_generator
    if isinstance(generator, np.random.BitGenerator):
        generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _frozen(state: Any) -> Any:
    """A state in a form that compares."""
    if isinstance(state, dict):
        return {name: _frozen(value) for name, value in state.items()}
    if isinstance(state, torch.Tensor):
        state = state.numpy()
    return state.tobytes() if isinstance(state, np.ndarray) else state
