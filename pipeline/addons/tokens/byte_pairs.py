"""Text to ids of byte pairs, by a vocabulary that is learned from the training texts or given.

Byte pairs (Sennrich et al. 2016, "Neural machine translation of rare words with subword units") of
the bytes of UTF-8, so that every text has ids and none is lost. It needs `tokenizers` (the extra
`text`), whose files `tokenizer.json` are read as they are; nothing is unpickled.

Cost: 1 us for 3 bytes; a vocabulary of 2048 from 2 MB of text takes 1 s, once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.datasets.files import generated_folder
from penstock.errors import ConfigError, DataError, Problem
from penstock.order.keys import IntArray, hash64
from penstock.order.plan import is_stream
from penstock.terminal import watched

if TYPE_CHECKING:
    from tokenizers import Encoding

BEGIN = "<|begin|>"
_MOST = 100_000  # texts that are learned from, spread evenly over the split


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

    Attributes:
        counting: a text that differs where the numbers of tokens may differ.

    Raises:
        ConfigError: `tokenizers` is not installed, or an argument is out of range.
        DataError: the vocabulary cannot be read.
    """

    def __init__(
        self, vocabulary: str, field: str = "text", size: int = 2048, begin: str = BEGIN
    ) -> None:
        tokenizers = _tokenizers()
        self.field, self.size = field, size
        try:
            content = Path(vocabulary).expanduser().read_text(encoding="utf-8")
            self._tokenizer = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library's is of no class of its own
            reason = "cannot be read as a tokenizer.json"
            raise DataError(f"the vocabulary {vocabulary!r} {reason}: {error}") from None
        # A text may hold the name of a special token, which must not end its document there. Files
        # of others often say padding or a longest text, which would change the numbers of bytes.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        first = self._tokenizer.token_to_id(begin)
        if first is None:
            reason = f"{begin!r} is not in {vocabulary!r}; name the token that begins a document"
            raise ConfigError(Problem("begin", reason))
        # Special tokens are numbered behind the others, and a model has a row of weights for each.
        ids = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        if ids > size:
            raise ConfigError(Problem("size", f"{size}; {vocabulary!r} has {ids} ids"))
        self.begin: int = first
        # Lengths are kept under this name, and are others with another vocabulary or beginning.
        digest = hashlib.blake2b(f"{begin}\0{content}".encode(), digest_size=16).hexdigest()
        self.counting = f"byte pairs {digest}"

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        text = sample.get(self.field)
        if not isinstance(text, str):
            has = ", ".join(f"{name} ({type(value).__name__})" for name, value in sample.items())
            raise DataError(f"BytePairs needs a text in the field {self.field!r}; there is {has}")
        return self._with_tokens(sample, text)

    def _with_tokens(self, sample: dict[str, Any], text: str) -> dict[str, Any]:
        # Apart from the checks: `Pieces` of transformers has other tokens, and no sizes.
        encoding = self._encoded(text)
        return {
            **sample,
            "tokens": torch.tensor([self.begin, *encoding.ids]),
            "token_bytes": torch.from_numpy(np.append(0, _bytes_of(text, encoding))),
        }

    def length(self, text: str) -> int:
        """The number of tokens of a text, that of its beginning included."""
        return len(self._encoded(text).ids) + 1

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; without those of beginnings."""
        return str(self._tokenizer.decode([number for number in ids if number != self.begin]))

    def _encoded(self, text: str) -> Encoding:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"a text cannot be encoded: {error}") from None


def learn(texts: Iterable[str], size: int, begin: str = BEGIN) -> str:
    """A vocabulary of byte pairs, as the content of a `tokenizer.json`.

    The same texts give the same one; fewer than `size` ids where they have no more pairs.

    Raises:
        ConfigError: `tokenizers` is not installed, or `size` has no room for 256 bytes.
    """
    tokenizers = _tokenizers()
    if size < 257:
        reason = f"{size}; allowed: 257 or more, as there are 256 bytes and {begin!r}"
        raise ConfigError(Problem("size", reason))
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    # No space in front of a text: it would be a byte that the text does not have.
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
    except ImportError as error:
        raise ConfigError(
            f"byte pairs need tokenizers ({error}): pip install 'penstock-loader[text]', or take "
            "bytes: transform=text with kind=bytes"
        ) from error
    return tokenizers


def with_vocabulary(
    node: Mapping[str, Any], dataset: Any, fingerprint: str, cache_dir: str | Path
) -> dict[str, Any]:
    """A step with the file of its vocabulary, which is made unless it was before.

    Args:
        dataset: the training split.
        fingerprint: of its data, by which the file is found again; "": the texts are read each
            time, and the file is named by what was learned.

    Raises:
        ConfigError: the training split is a stream.
        DataError: its samples have no text.
    """
    if is_stream(dataset):
        reason = "a vocabulary cannot be learned from a stream; set vocabulary to a tokenizer.json"
        raise ConfigError(Problem("transform.train", reason))
    size, field = int(node.get("size", 2048)), str(node.get("field", "text"))
    begin = str(node.get("begin", BEGIN))
    # Data that cannot tell when it changes gets no file of an older version, at the cost of a pass.
    learned = "" if fingerprint else learn(_texts(dataset, field), size, begin)
    key = hash64("vocabulary", fingerprint or learned, size, field, begin)
    folder = Path(cache_dir).expanduser() / "vocabularies" / f"{key:016x}"

    def write(target: Path) -> None:
        content = learned or learn(_texts(dataset, field), size, begin)
        (target / "tokenizer.json").write_text(content, encoding="utf-8")

    generated_folder(folder, write, "cache_dir")
    return {**node, "vocabulary": str(folder / "tokenizer.json")}


def _texts(dataset: Any, field: str) -> Iterator[str]:
    count = min(len(dataset), _MOST)
    # Spread, as a file may be in the order of its sources.
    rows = np.linspace(0, len(dataset) - 1, count).round().astype(np.int64).tolist()
    for row in watched(rows, count, "reading text for the vocabulary"):
        sample = dataset[row]
        text = sample.get(field) if isinstance(sample, Mapping) else None
        if not isinstance(text, str):
            raise DataError(
                f"a vocabulary is learned from texts, and row {row} of the training "
                f"split has none in the field {field!r}"
            )
        yield text
