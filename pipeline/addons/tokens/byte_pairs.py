"""Text to ids of byte pairs, by a vocabulary that is learned from the training texts or given.

Byte pairs (Sennrich et al. 2016, "Neural machine translation of rare words with subword units") of
the bytes of UTF-8, so that every text has ids and none is lost. It needs `tokenizers` (the extra
`text`), whose files `tokenizer.json` are read as they are; nothing is unpickled.

Cost: 1 us for 3 bytes; a vocabulary of 2048 from 2 MB of text takes 1 s, once.

A `tokenizer.json` may ask only some things of the package `tokenizers`, which obeys all.

A vocabulary may come from anybody. Its normalizer may replace each letter by a million, again and
again; its patterns may take time that doubles with each letter; and the head of a compiled table
may claim memory that no machine has, which ends the process. So all of that is looked at before.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.errors import ConfigError, DataError, Problem
from penstock.files import plain_json
from penstock.files.limits import Limits
from penstock.files.plain_json import JsonError, mapping, shown
from penstock.files.regular_file import read_regular
from penstock.order.randomness import IntArray

if TYPE_CHECKING:
    from tokenizers import Encoding

Sample = dict[str, Any]

BEGIN = "<|begin|>"
_LARGEST = 64 << 20  # bytes of a vocabulary
_USUAL_GROWTH, _LARGEST_TEXT = 12, 256 << 20  # of a normalizer; bytes that it may give


class BytePairs:
    """Adds `tokens`, int64[T], of a text, and `token_bytes`, int64[T], the bytes of each.

    The first token says that a document begins, and has no bytes; those of the others add up to the
    text in UTF-8. The names of special tokens are text like any other where a text has them.

    Args:
        vocabulary: a `tokenizer.json`, or "dataset" for one that the build learns from the training
            texts and keeps in the cache.
        field: the field that holds the text.
        size: number of ids that a model has room for; of a vocabulary to be learned, at most so
            many, 257 or more: it has the 256 bytes.
        begin: the token of the vocabulary that begins a document.

    Raises:
        ConfigError: `tokenizers` is not installed, or an argument is out of range.
        DataError: the vocabulary cannot be read.
    """

    def __init__(
        self, vocabulary: str, field: str = "text", size: int = 2048, begin: str = BEGIN
    ) -> None:
        tokenizers = _tokenizers()
        self.field, self.size = field, size
        content = _content(vocabulary)
        try:
            self._growth = checked(content)
            with _panics():
                self._tokenizer = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # of no class of its own
            raise DataError(f"{vocabulary!r} is no tokenizer.json: {error}") from None
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        first = self._tokenizer.token_to_id(begin)
        if first is None:
            reason = f"{begin!r} is not in {vocabulary!r}; name the token that begins a document"
            raise ConfigError(Problem("begin", reason))
        ids = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        if ids > size:
            raise ConfigError(Problem("size", f"{size}; {vocabulary!r} has {ids} ids"))
        self.begin: int = first
        digest = hashlib.blake2b(f"{begin}\0{content}".encode(), digest_size=16).hexdigest()
        self._counting = f"byte pairs {digest}"

    def __call__(self, sample: Sample) -> Sample:
        text = sample.get(self.field)
        if not isinstance(text, str):
            has = ", ".join(f"{name} ({type(value).__name__})" for name, value in sample.items())
            raise DataError(f"BytePairs needs a text in the field {self.field!r}; there is {has}")
        encoding = self._encoded(text)
        sizes = np.zeros(len(encoding.ids) + 1, np.int64)
        sizes[1:] = _bytes_of(text, encoding)
        return {
            **sample,
            "tokens": torch.tensor([self.begin, *encoding.ids]),
            "token_bytes": torch.from_numpy(sizes),
        }

    @property
    def counting(self) -> str:
        """A text that differs where the numbers of tokens may differ."""
        return self._counting

    def length(self, text: str) -> int:
        """The number of tokens of a text, that of its beginning included."""
        return len(self._encoded(text).ids) + 1

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; without those of beginnings."""
        return str(self._tokenizer.decode([number for number in ids if number != self.begin]))

    def _encoded(self, text: str) -> Encoding:
        if self._growth > _USUAL_GROWTH and self._growth * len(text) > _LARGEST_TEXT:
            raise DataError(
                f"a text of {len(text)} characters is too long for this vocabulary, "
                f"which may make {self._growth:.0f} times as many of it"
            )
        try:
            with _panics():
                return self._tokenizer.encode(text, add_special_tokens=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"a text cannot be encoded: {error}") from None


@contextmanager
def _panics() -> Iterator[None]:
    """Turn panics of `tokenizers`, which are no Exceptions, into ValueErrors.

    They come of tables that are damaged, and of patterns that give up on a text.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise ValueError(str(error)) from None
        raise


def learn(texts: Iterable[str], size: int, begin: str = BEGIN) -> str:
    """A vocabulary of byte pairs, as the content of a `tokenizer.json`.

    The same texts give the same one; fewer than `size` ids where they have no more pairs.

    Raises:
        ConfigError: `tokenizers` is not installed, or `size` has no room for 256 bytes.
    """
    tokenizers = _tokenizers()
    if size < 257:
        raise ConfigError(
            Problem(
                "size",
                f"{size}; allowed: 257 or more, as there are 256 bytes "
                "and the beginning of a document",
            )
        )
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[begin],
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(texts, trainer)
    return str(made.to_str())


def _content(path: str) -> str:
    try:
        return read_regular(Path(path).expanduser(), Limits(record_bytes=_LARGEST)).decode()
    except UnicodeDecodeError:
        raise DataError(f"{path!r} is no tokenizer.json: it is no text") from None
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"the vocabulary {path!r} cannot be read: {reason}") from error


def _bytes_of(text: str, encoding: Encoding) -> IntArray:
    """Bytes of each token: from the end of the one before it to its own, the last to the text's."""
    ends = np.array([end for _, end in encoding.offsets], np.int64)  # in characters
    if not len(ends):
        return ends
    ends[-1] = len(text)
    if not text.isascii():
        points = np.frombuffer(text.encode("utf-32-le"), "<u4")
        sizes = 1 + (points > 0x7F).astype(np.int64) + (points > 0x7FF) + (points > 0xFFFF)
        ends = np.concatenate([[0], np.cumsum(sizes)])[ends]
    # A character of several tokens ends with each of them.
    return np.diff(np.maximum.accumulate(ends), prepend=0)


def _tokenizers() -> Any:
    """The package; raises ConfigError unless it is installed."""
    # Its threads would stop working in workers that are forked, with a warning for each.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise ConfigError(
            f"byte pairs need tokenizers ({error}): pip install 'penstock-loader[text]', or take "
            "bytes: transform=text with kind=bytes"
        ) from error
    return tokenizers


_MEMORY = 1 << 30  # bytes; a vocabulary of 250,000 words takes a tenth
_LONGEST = 2048  # characters of a text that is no entry of the vocabulary
_LONGEST_MARK = 64  # of what is put before or behind every piece of a word
# Bytes out for a byte in, at most; of others 3, such as spaces around each letter.
_GROWTH = {"NFKC": 11, "NFKD": 11, "Strip": 1, "StripAccents": 1, "Nmt": 1, "Lowercase": 2}
_TIMES = re.compile(r"(?:[?*+]|\{\d{0,9},?\d{0,9}\})+")  # how often, behind a part of a pattern
_BRACES = re.compile(r"\{(\d*)(,?)(\d*)\}")
_FEW, _MOST_IN_A_ROW = 9, 2


def checked(content: str) -> float:
    """By how many times the normalizer of a `tokenizer.json` may enlarge a text, at most.

    Raises:
        JsonError: it is no JSON, or asks for what no vocabulary needs.
    """
    tokenizer = mapping(plain_json.parse(content, _MEMORY))
    others = {key: value for key, value in tokenizer.items() if key != "added_tokens"}
    for name, text in _texts(others):
        if name == "Regex":
            _check_pattern(text)
        most = _LONGEST_MARK if name in _MARKS else _LONGEST
        if len(text) > most and name != "precompiled_charsmap":
            raise JsonError(f"{name} has {len(text)} characters, more than {most}")
    return _growth(tokenizer.get("normalizer"))


_MARKS = ("continuing_subword_prefix", "end_of_word_suffix", "prepend")


def _texts(node: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Every text with the key that it stands at, but for the entries of the vocabulary."""
    if isinstance(node, str):
        yield name, node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            if key not in ("vocab", "merges"):
                yield from _texts(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value, name)


def _growth(node: object) -> float:
    """Bytes that a normalizer gives for each one it gets, at most."""
    if not isinstance(node, Mapping):
        return 1
    kind = str(node.get("type"))
    if kind == "Sequence":
        growth = 1.0
        for inner in node.get("normalizers") or ():
            growth *= _growth(inner)
        return growth
    if kind == "Replace":
        pattern, content = node.get("pattern"), len(str(node.get("content", "")).encode())
        text = pattern.get("String") if isinstance(pattern, Mapping) else None
        if text == "":
            raise JsonError("a normalizer replaces nothing by something")
        # A pattern may fit between any two letters.
        return max(1.0, content / len(text.encode())) if isinstance(text, str) else 1.0 + content
    if kind == "Precompiled":
        return _growth_by_table(node.get("precompiled_charsmap"))
    return _GROWTH.get(kind, 3)


def _growth_by_table(text: Any) -> float:
    """The longest text that a table of SentencePiece's puts instead of another; see its head."""
    try:
        table = base64.b64decode(text or "", validate=True)
    except (TypeError, ValueError) as error:
        raise JsonError(f"precompiled_charsmap is {shown(text)}, and no base64") from error
    size = int.from_bytes(table[:4], "little")
    if len(table) < 4 or size % 4 or size > len(table) - 4:
        raise JsonError(f"precompiled_charsmap claims {size} bytes, and has {len(table)}")
    return max(1, *map(len, table[4 + size :].split(b"\0")))


# `tokenizers` searches by Oniguruma, which backtracks without a limit of time. With one, or with a
# linear engine, this reading of patterns by patterns could go.
def _check_pattern(pattern: str) -> None:
    """Raise JsonError for a pattern whose time may double with each letter, or nearly so.

    That takes a repetition of what repeats or chooses, a call of a group, or many repetitions in a
    row. Those of well-known vocabularies have two in a row at most.
    """
    letters = re.sub(r"\\[^gk]|\[(?:\\.|[^\]\\])*\]", "x", pattern, flags=re.DOTALL)
    inside = [False]  # of each open group: whether it holds a choice or a repetition
    at = in_a_row = 0
    harmless = "\\" not in letters  # no call of a group, and no reference to one
    while at < len(letters) and harmless:
        letter = letters[at]
        times = _TIMES.match(letters, at + 1) if letter not in "(|" else None
        is_many = times is not None and _is_many(times[0])
        at = times.end() if times is not None else at + 1
        if letter == "(":
            inside.append(False)
            continue
        if letter == ")" and len(inside) > 1:
            inner = inside.pop()
            harmless = not (inner and is_many)
            inside[-1] |= inner
        inside[-1] |= is_many or letter == "|"
        in_a_row = in_a_row + is_many if letter != "|" else 0
        harmless = harmless and in_a_row <= _MOST_IN_A_ROW
    if not harmless:
        raise JsonError(
            f"the pattern {shown(pattern)} repeats what repeats, or refers to itself, "
            "which can take forever"
        )


def _is_many(times: str) -> bool:
    """Whether signs such as `*`, `??` or `{2,}` allow more than a few repetitions."""
    if {"*", "+"} & set(times):
        return True
    most = [last or (99 if comma else first) for first, comma, last in _BRACES.findall(times)]
    return any(int(count or 0) > _FEW for count in most)
