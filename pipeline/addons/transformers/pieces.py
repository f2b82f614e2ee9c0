"""Texts to the tokens of a model of transformers, by the tokenizer.json in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from penstock.addons.tokens.byte_pairs import BytePairs
from penstock.errors import ConfigError, Problem


class Pieces(BytePairs):
    """Adds `tokens`, int64[T], of a text, between the tokens that begin and end one.

    Args:
        vocabulary: a `tokenizer.json`, or the folder that has one.
        field: the field that holds the text.
        size: number of ids that the model has room for.
        begin, end: tokens of the vocabulary that stand before and behind a text.
        max_length: tokens kept from the start, with these two.

    Raises:
        ConfigError: `tokenizers` is not installed, or an argument is out of range.
        DataError: the vocabulary cannot be read.
    """

    def __init__(
        self,
        vocabulary: str,
        field: str = "text",
        size: int = 30522,
        begin: str = "[CLS]",
        end: str = "[SEP]",
        max_length: int = 128,
    ) -> None:
        path = Path(vocabulary).expanduser()
        path = path / "tokenizer.json" if path.is_dir() else path
        super().__init__(str(path), field, size, begin)
        self.max_length = max_length
        last = self._tokenizer.token_to_id(end)
        if last is None:
            reason = f"{end!r} is not in {vocabulary!r}; name the token that ends a text"
            raise ConfigError(Problem("end", reason))
        if max_length < 3:
            raise ConfigError(Problem("max_length", f"{max_length}; allowed: 3 or more"))
        self.end: int = last

    def _with_tokens(self, sample: dict[str, Any], text: str) -> dict[str, Any]:
        kept = self._encoded(text).ids[: self.max_length - 2]
        return {**sample, "tokens": torch.tensor([self.begin, *kept, self.end])}

    @property
    def counting(self) -> str:
        """A text that differs where the numbers of tokens may differ."""
        return f"{super().counting}, at most {self.max_length}"

    def length(self, text: str) -> int:
        """The number of tokens of a text, with those before and behind it."""
        return min(super().length(text) + 1, self.max_length)
