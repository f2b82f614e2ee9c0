"""The states of the global generators: taken, compared and put back, in a few microseconds.

`random.getstate` and `numpy.random.get_state` make objects of 624 numbers, which costs 50 us, where
a batch may take no longer. The numbers lie in memory in one piece: `take` copies the bytes, which
can be compared as they are, and only `put_back` makes objects of them, for the libraries' own
functions. numpy tells where its state lies; where CPython's lies is tried out at import. Where
either is not as expected, the libraries' own functions are used throughout.

Cost: 2 us to take or compare; about 30 us to put back what has moved.
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
        python: bytes of the words, or what `getstate` gives.
        python_gauss: a normal draw that `random` keeps for the next one.
        numpy: bytes of the words, or what `get_state` gives.
        numpy_gauss: whether there is such a draw of numpy's, and which.
        torch: bytes of what `get_state` gives.
    """

    python: Any
    python_gauss: float | None
    numpy: Any
    numpy_gauss: tuple[int, float]
    torch: bytes


# Their own functions, whatever stands in their places later on.
_getstate, _get_state = random.getstate, np.random.get_state
_python: Any = random.getrandbits.__self__  # type: ignore[attr-defined]


def _python_is_known() -> bool:
    """Whether an instance's index and words follow its head."""
    one = random.Random(5)
    one.random()
    words = np.array(one.getstate()[1], dtype=np.uint32)
    if type(one).__basicsize__ < _HEAD + _BYTES:
        return False
    return ctypes.string_at(id(one) + _HEAD, _BYTES) == np.roll(words, 1).tobytes()


def _numpy_is_known() -> bool:
    """Whether the words and their index lie where numpy says that the state is."""
    one = np.random.MT19937(5)
    state: Any = one.state["state"]
    words = np.append(state["key"], np.uint32(state["pos"])).astype(np.uint32)
    return ctypes.string_at(one.ctypes.state_address, _BYTES) == words.tobytes()


_PYTHON_IS_KNOWN = _python_is_known()
_numpy_generator: Any = getattr(np.random, "get_bit_generator", None)  # numpy 1.24 has it
_NUMPY_IS_KNOWN = _numpy_generator is not None and _numpy_is_known()


_PYTHON_WORDS = id(_python) + _HEAD


class _Numpy:
    """numpy's global generator, and what was seen of it last."""

    generator: Any = None
    address = 0
    seen = b""


_numpy = _Numpy()


def _take_numpy() -> tuple[Any, tuple[int, float]]:
    if not _NUMPY_IS_KNOWN:
        return _get_state(), (0, 0.0)
    generator = _numpy_generator()
    if generator is not _numpy.generator:
        if type(generator) is not np.random.MT19937:
            return _get_state(legacy=False), (0, 0.0)
        _numpy.generator, _numpy.seen = generator, b""
        _numpy.address = generator.ctypes.state_address
    words = ctypes.string_at(_numpy.address, _BYTES)
    if words == _numpy.seen:  # and no draw is kept: keeping one takes others first
        return words, (0, 0.0)
    state: Any = _get_state(legacy=False)
    gauss = state["has_gauss"], state["gauss"]
    _numpy.seen = b"" if gauss[0] else words
    return words, gauss


def _take_python() -> Any:
    return ctypes.string_at(_PYTHON_WORDS, _BYTES) if _PYTHON_IS_KNOWN else _getstate()


def take() -> States:
    """The states as they are."""
    words, gauss = _take_numpy()
    return States(_take_python(), _python.gauss_next, words, gauss, _take_torch())


def moved(before: States) -> list[str]:
    """Names of the generators that were drawn from, or seeded, since `take` gave `before`."""
    same = _take_python() == before.python and _python.gauss_next == before.python_gauss
    names = [] if same else ["random"]
    if not _is_same_numpy(before):
        names.append("numpy.random")
    if _take_torch() != before.torch:
        names.append("torch")
    return names


def _take_torch() -> bytes:
    state = torch.default_generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.nbytes)  # torch.equal takes ten times as long


def _is_same_numpy(before: States) -> bool:
    words, gauss = _take_numpy()
    if isinstance(words, bytes) and isinstance(before.numpy, bytes):
        return words == before.numpy and gauss == before.numpy_gauss
    return _as_text(words) == _as_text(before.numpy)


def _as_text(state: Any) -> bytes:
    """A state of numpy's in a form that compares."""
    values = state.values() if isinstance(state, dict) else state
    if not isinstance(values, bytes):
        return b"|".join(
            _as_text(one) if isinstance(one, (dict, tuple)) else np.asarray(one).tobytes()
            for one in values
        )
    return values


def put_back(before: States) -> None:
    """Let the generators stand where they stood; those that did not move are not touched."""
    for name in moved(before):
        _PUT_BACK[name](before)


def _put_python(before: States) -> None:
    state = before.python
    if isinstance(state, bytes):
        index, *words = np.frombuffer(state, dtype=np.uint32).tolist()
        state = random.Random.VERSION, (*words, index), before.python_gauss
    random.setstate(state)


def _put_numpy(before: States) -> None:
    state = before.numpy
    if isinstance(state, bytes):
        words = np.frombuffer(state, dtype=np.uint32)
        state = "MT19937", words[:-1], int(words[-1]), *before.numpy_gauss
    _numpy.seen = b""
    np.random.set_state(state)


def _put_torch(before: States) -> None:
    state = torch.frombuffer(bytearray(before.torch), dtype=torch.uint8)
    torch.default_generator.set_state(state)


_PUT_BACK = {"random": _put_python, "numpy.random": _put_numpy, "torch": _put_torch}
