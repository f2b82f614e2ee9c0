"""Text to sequences of token ids, without a vocabulary file.

Id 0 is padding, 1 is a text without any token, so that a sequence has at least one step. Cost:
about 5 us a text of 80 characters by bytes, 15 us by words.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count
from penstock.order.keys import hash64

Sample = dict[str, Any]

PADDING, EMPTY = 0, 1
_FIRST = 2  # id of the first byte or word
_WORDS = re.compile(r"\w+|[^\w\s]")


class Tokenize:
    """Adds `tokens`, int64[T], of a text; T is 1 or more.

    Args:
        field: the field that holds the text.
        kind: "bytes" for UTF-8 bytes; or "words" for words and signs, each hashed to an id by
            `hash64`, the same on every machine and in every version.
        size: number of ids, padding included: 258 for bytes, 8192 for words if it is None. With n
            different words, about n / (2 size) of them share an id with another.
        max_length: tokens kept, from the start; None keeps all.
        lower: convert to lower case.

    Raises:
        ConfigError: `size` is no number of ids of bytes.
    """

    def __init__(
        self,
        field: str = "text",
        kind: Literal["bytes", "words"] = "words",
        size: Annotated[int, Field(ge=3)] | None = None,
        max_length: Count | None = None,
        lower: bool = True,
    ) -> None:
        self.field, self.kind, self.max_length, self.lower = field, kind, max_length, lower
        self.size = size or (258 if kind == "bytes" else 8192)
        if kind == "bytes" and self.size != 258:
            raise ConfigError(
                Problem("size", f"{self.size}; bytes have 258 ids (256, padding, and no text)")
            )

    def __call__(self, sample: Sample) -> Sample:
        text = sample.get(self.field)
        if not isinstance(text, str):
            has = ", ".join(f"{name} ({type(value).__name__})" for name, value in sample.items())
            raise DataError(f"Tokenize needs a text in the field {self.field!r}; there is {has}")
        pieces = self._split(text)
        if isinstance(pieces, list):
            tokens = torch.tensor([word_id(word, self.size) for word in pieces])
        else:
            tokens = torch.from_numpy(np.frombuffer(pieces, np.uint8).astype(np.int64) + _FIRST)
        return {**sample, "tokens": tokens if len(tokens) else torch.tensor([EMPTY])}

    @property
    def counting(self) -> str:
        """What `length` depends on, as a text: the key of lengths that are kept."""
        return f"{self.kind}, at most {self.max_length}" + (", small letters" if self.lower else "")

    def length(self, text: str) -> int:
        """The number of tokens of a text, without making them; about 3 us for 80 characters."""
        return max(1, len(self._split(text)))

    def _split(self, text: str) -> bytes | list[str]:
        text = text.lower() if self.lower else text
        if self.kind == "bytes":
            # Cut twice: a long text is not encoded whole, and a character may have several bytes.
            return text[: self.max_length].encode("utf-8", "surrogatepass")[: self.max_length]
        return _WORDS.findall(text)[: self.max_length]


@lru_cache(maxsize=1 << 16)  # the words of a text are mostly common ones; a hash takes 2 us
def word_id(word: str, size: int) -> int:
    """The id of a word among `size`: 2 to size - 1."""
    return _FIRST + hash64("word", word) % (size - _FIRST)
