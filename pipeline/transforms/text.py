"""Text to sequences of token ids, without a vocabulary file.

Id 0 is padding, 1 is a text without any token, so that a sequence has at least one step. Cost:
about 5 us a text of 80 characters by bytes, 10 us by words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

import torch

from penstock.errors import ConfigError, DataError, Problem
from penstock.order.keys import hash64

Sample = dict[str, Any]

PADDING, EMPTY = 0, 1
_FIRST = 2  # id of the first byte or word

_LONG = 1 << 16  # characters of a text whose words are found one by one
_LONG_WORD = 256  # characters; longer ones are not kept

_WORDS = re.compile(r"\w+|[^\w\s]")


class Tokenize:
    """Adds `tokens`, int64[T], of a text; T is 1 or more.

    Args:
        field: the field that holds the text.
        kind: "bytes" for UTF-8 bytes; or "words" for words and signs, each hashed to an id by
            `hash64`, the same on every machine and in every version.
        size: number of ids, padding included: 258 for bytes, 3 or more for words. With n different
            words, about n / (2 size) of them share an id with another.
        max_length: tokens kept, from the start; None keeps all.
        lower: convert to lower case.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        field: str = "text",
        kind: Literal["bytes", "words"] = "words",
        size: int | None = None,
        max_length: int | None = None,
        lower: bool = True,
    ) -> None:
        self.field, self.kind, self.max_length, self.lower = field, kind, max_length, lower
        self.size = size if size is not None else 258 if kind == "bytes" else 8192
        problems = []
        if self.kind not in ("bytes", "words"):
            problems.append(Problem("kind", f"{self.kind!r}; allowed: bytes, words"))
        if self.kind == "bytes" and self.size != 258:
            reason = f"{self.size}; bytes have 258 ids (256, padding, and no text)"
            problems.append(Problem("size", reason))
        if self.kind == "words" and self.size < 3:
            problems.append(Problem("size", f"{self.size}; allowed: 3 or more"))
        if self.max_length is not None and self.max_length < 1:
            problems.append(Problem("max_length", f"{self.max_length}; allowed: 1 or more, null"))
        if problems:
            raise ConfigError(problems)

    def __call__(self, sample: Sample) -> Sample:
        text = sample.get(self.field)
        if not isinstance(text, str):
            has = ", ".join(f"{name} ({type(value).__name__})" for name, value in sample.items())
            raise DataError(f"Tokenize needs a text in the field {self.field!r}; there is {has}")
        return {**sample, "tokens": self._tokens(text)}

    def _tokens(self, text: str) -> torch.Tensor:
        pieces = self._split(text)
        if not isinstance(pieces, bytes):
            tokens = torch.tensor([_id(word, self.size) for word in pieces] or [EMPTY])
        elif pieces:
            tokens = torch.frombuffer(bytearray(pieces), dtype=torch.uint8).long() + _FIRST
        else:
            tokens = torch.tensor([EMPTY])
        return tokens

    @property
    def counting(self) -> str:
        """A text that differs where the numbers of tokens differ."""
        return f"{self.kind}, at most {self.max_length}" + (", small letters" if self.lower else "")

    def length(self, text: str) -> int:
        """The number of tokens of a text, without making them; about 3 us for 80 characters."""
        pieces = self._split(text)
        return max(1, len(pieces) if isinstance(pieces, (bytes, list)) else sum(1 for _ in pieces))

    def _split(self, text: str) -> bytes | list[str] | Iterator[str]:
        text = text.lower() if self.lower else text
        if self.kind == "bytes":
            return text[: self.max_length].encode("utf-8", "surrogatepass")[: self.max_length]
        if len(text) <= _LONG:
            return _WORDS.findall(text)[: self.max_length]
        # All words of a text of any length would take many times its memory.
        return (match[0] for match in islice(_WORDS.finditer(text), self.max_length))


def _id(word: str, size: int) -> int:
    """As `word_id`, which would keep 65,536 words of any length."""
    return word_id(word, size) if len(word) <= _LONG_WORD else word_id.__wrapped__(word, size)


@lru_cache(maxsize=1 << 16)
def word_id(word: str, size: int) -> int:
    """The id of a word among `size`: 2 to size - 1."""
    return _FIRST + hash64("word", word) % (size - _FIRST)
