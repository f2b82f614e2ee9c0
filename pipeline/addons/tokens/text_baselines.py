"""Bits per byte of a text by means that learn nothing or little, for language models to beat.

    gzip -9, bz2 -9    the validation text alone, its documents one after the other
    byte frequencies   each byte for itself, as often as in the training text
    5-gram             each byte given the four before it in its document, counted in the training
                       text; orders are interpolated by Witten and Bell's rule

Cost: about 0.4 s a MB of training text for the 5-gram, of which the first `MOST` bytes count.
"""

from __future__ import annotations

import bz2
import gzip
import math
from collections.abc import Iterable
from itertools import chain

import numpy as np

from penstock.order.randomness import IntArray

MOST = 16 << 20  # bytes of training text, and as many of validation text
ORDER = 5
_BEGIN = 256  # stands before a document
_SYMBOLS = 257


def text_baselines(train: Iterable[str], val: Iterable[str]) -> dict[str, float]:
    """Bits per byte of the validation documents by name; {} where they have no byte."""
    learned, tested = _encoded(train), _encoded(val)
    text = b"".join(tested)
    if not text:
        return {}
    return {
        "gzip -9": 8 * len(gzip.compress(text, 9, mtime=0)) / len(text),
        "bz2 -9": 8 * len(bz2.compress(text, 9)) / len(text),
        "byte frequencies": n_gram_bits(learned, tested, 1),
        f"{ORDER}-gram": n_gram_bits(learned, tested, ORDER),
    }


def n_gram_bits(train: Iterable[bytes], val: Iterable[bytes], order: int) -> float:
    """Bits per byte of `val`, each byte given up to `order` - 1 before it in its document.

    p(c | h) = (n(h c) + t(h) p(c | h without its first byte)) / (n(h) + t(h)), where n counts in
    `train`, and t(h) is how many different bytes follow h there; without h, p is 1/256 at first.

    Args:
        order: 1 to 7; 1 takes bytes by their frequency alone.
    """
    if not 1 <= order <= 7:
        raise ValueError(f"order is {order}; allowed: 1 to 7, as 257^7 contexts fit 63 bits")
    counted, tested = _symbols(train, order), _symbols(val, order)
    likely = np.full(len(tested), 1 / 256)
    for size in range(1, order + 1):
        seen, mine = _keys(counted, size), _keys(tested, size)
        grams, times = np.unique(seen, return_counts=True)
        contexts, places = np.unique(grams // _SYMBOLS, return_inverse=True)
        after = np.bincount(places, minlength=len(contexts))  # different bytes
        total = np.bincount(places, times, minlength=len(contexts))
        of_gram = _found(grams, times, mine)
        of_context = _found(contexts, total, mine // _SYMBOLS)
        kinds = _found(contexts, after, mine // _SYMBOLS)
        known = of_context > 0
        likely[known] = (of_gram + kinds * likely)[known] / (of_context + kinds)[known]
    return float(-np.log2(likely).mean()) if len(tested) else math.nan


def _encoded(texts: Iterable[str]) -> list[bytes]:
    symbols, size = [], 0
    for text in texts:
        symbols.append(text.encode("utf-8", "surrogatepass")[: MOST - size])
        size += len(symbols[-1])
        if size >= MOST:
            break
    return symbols


def _symbols(texts: Iterable[bytes], order: int) -> IntArray:
    """A row for each byte of each document: it and the `order` - 1 symbols before it: int64[n, k].

    The byte comes last; before a document's first byte stand `_BEGIN`s.
    """
    head = [_BEGIN] * (order - 1)
    symbols = np.fromiter(chain.from_iterable(chain(head, text) for text in texts), np.int64)
    if not len(symbols):
        return np.zeros((0, order), np.int64)
    rows = np.lib.stride_tricks.sliding_window_view(symbols, order)
    return rows[rows[:, -1] != _BEGIN]


def _keys(rows: IntArray, size: int) -> IntArray:
    """One number for the last `size` symbols of each row."""
    keys = np.zeros(len(rows), np.int64)
    for column in range(rows.shape[1] - size, rows.shape[1]):
        keys = keys * _SYMBOLS + rows[:, column]
    return keys


def _found(keys: IntArray, values: IntArray, keys_wanted: IntArray) -> IntArray:
    """The value at each wanted key; 0 for one that is not among the ascending `keys`."""
    if not len(keys):
        return np.zeros(len(keys_wanted), np.int64)
    places = np.minimum(np.searchsorted(keys, keys_wanted), len(keys) - 1)
    return np.where(keys[places] == keys_wanted, values[places], 0)
