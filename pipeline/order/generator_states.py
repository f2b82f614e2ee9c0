"""The states of the global generators: taken, compared and put back as bytes.

`random.getstate` and `numpy.random.get_state` make objects of 624 numbers, which takes 50 us; a
copy of their memory takes 2, and putting back what has moved about 30. numpy tells where its state
lies; where CPython's lies is checked at import. If either check fails, the libraries' own functions
are used.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any, NamedTuple

import numpy as np
import torch

_WORDS = 624  # of a Mersenne twister, uint32, and an int beside them that says which is next
_BYTES = 4 * (_WORDS + 1)
_HEAD = object.__basicsize__  # CPython's objects begin with it


class States(NamedTuple):
    """Of the three generators.

    Attributes:
        python, numpy: bytes of the words, or the result of `getstate` and `get_state`.
        python_gauss: a normal draw that `random` keeps for the next call.
        numpy_gauss: whether numpy keeps such a draw, and which.
        torch: bytes of the result of `get_state`.
    """

    python: Any
    python_gauss: float | None
    numpy: Any
    numpy_gauss: tuple[int, float]
    torch: bytes


# The libraries' own functions, also where something replaces them later.
_getstate, _get_state = random.getstate, np.random.get_state
_python: Any = random.getrandbits.__self__  # type: ignore[attr-defined]
_numpy_generator: Any = np.random.get_bit_generator  # type: ignore[attr-defined]


def _python_is_known() -> bool:
    """Whether an instance's index and words follow its head."""
    # CPython has no call that copies a state; with one, this and `ctypes` could go.
    generator = random.Random(5)
    generator.random()
    words = np.array(generator.getstate()[1], dtype=np.uint32)
    if type(generator).__basicsize__ < _HEAD + _BYTES:
        return False
    return ctypes.string_at(id(generator) + _HEAD, _BYTES) == np.roll(words, 1).tobytes()


def _numpy_is_known() -> bool:
    """Whether the words and their index lie where numpy says that the state is."""
    generator = np.random.MT19937(5)
    state: Any = generator.state["state"]
    words = np.append(state["key"], np.uint32(state["pos"])).astype(np.uint32)
    return ctypes.string_at(generator.ctypes.state_address, _BYTES) == words.tobytes()


_PYTHON_IS_KNOWN = _python_is_known()
_NUMPY_IS_KNOWN = _numpy_is_known()


class _Numpy:
    """numpy's global generator, and its words when they were last read."""

    generator: Any = None
    address = 0
    seen = b""


def take() -> States:
    """The current states."""
    python = ctypes.string_at(id(_python) + _HEAD, _BYTES) if _PYTHON_IS_KNOWN else _getstate()
    generator = _numpy_generator() if _NUMPY_IS_KNOWN else None
    words: Any
    gauss = 0, 0.0
    if type(generator) is np.random.MT19937:
        if generator is not _Numpy.generator:
            _Numpy.generator, _Numpy.seen = generator, b""
            _Numpy.address = generator.ctypes.state_address
        words = ctypes.string_at(_Numpy.address, _BYTES)
        if words != _Numpy.seen:  # else no draw is kept: keeping one takes others first
            state: Any = _get_state(legacy=False)
            gauss = state["has_gauss"], state["gauss"]
            _Numpy.seen = b"" if gauss[0] else words
    else:
        words = _get_state(legacy=False) if _NUMPY_IS_KNOWN else _get_state()
    tensor = torch.default_generator.get_state()
    # As bytes: torch.equal takes ten times as long as comparing them.
    torch_bytes = ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
    return States(python, _python.gauss_next, words, gauss, torch_bytes)


def moved(before: States) -> list[str]:
    """Names of the generators that were drawn from, or seeded, since `take` gave `before`."""
    now = take()
    names = []
    if (now.python, now.python_gauss) != (before.python, before.python_gauss):
        names.append("random")
    words, words_before = now.numpy, before.numpy
    if not isinstance(words, bytes):
        words, words_before = comparable(words), comparable(words_before)
    if (words, now.numpy_gauss) != (words_before, before.numpy_gauss):
        names.append("numpy.random")
    if now.torch != before.torch:
        names.append("torch")
    return names


def comparable(state: Any) -> Any:
    """A state of a generator in a form that `==` compares."""
    if isinstance(state, dict):
        return {name: comparable(value) for name, value in state.items()}
    if isinstance(state, tuple):
        return tuple(map(comparable, state))
    if isinstance(state, torch.Tensor):
        state = state.numpy()
    return state.tobytes() if isinstance(state, np.ndarray) else state


def put_back(before: States) -> None:
    """Restore the states; generators that did not move are not touched."""
    names = moved(before)
    if "random" in names:
        state = before.python
        if isinstance(state, bytes):
            index, *words = np.frombuffer(state, dtype=np.uint32).tolist()
            state = random.Random.VERSION, (*words, index), before.python_gauss
        random.setstate(state)
    if "numpy.random" in names:
        state = before.numpy
        if isinstance(state, bytes):
            numbers = np.frombuffer(state, dtype=np.uint32)
            state = "MT19937", numbers[:-1], int(numbers[-1]), *before.numpy_gauss
        _Numpy.seen = b""
        np.random.set_state(state)
    if "torch" in names:
        torch_state = torch.frombuffer(bytearray(before.torch), dtype=torch.uint8)
        torch.default_generator.set_state(torch_state)
