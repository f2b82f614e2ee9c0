"""The vocabulary that a tokenizer learns from the training texts, kept in the cache."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.addons.tokens.byte_pairs import BEGIN, BytePairs, learn
from penstock.config import allow_list
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.disk import private_folder, write_atomically
from penstock.files.one_writer import one_writer
from penstock.order.randomness import hash64
from penstock.order.streams import is_stream
from penstock.terminal import watched

if TYPE_CHECKING:
    from penstock.build.data import Split

_MOST = 100_000  # texts that are learned from, spread evenly over the split
_log = logging.getLogger(__name__)


def of_split(split: Split, node: Mapping[str, Any]) -> Mapping[str, Any]:
    """A step's node with the vocabulary of the texts of a split, if it is `BytePairs`."""
    step = allow_list.resolve(node["_target_"], "transform")
    if not isinstance(step, type) or not issubclass(step, BytePairs):
        return node
    fingerprint = split.identity.cache_key(split.dataset)
    return with_vocabulary(node, split.dataset, fingerprint, split.config.cache_dir)


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
        raise ConfigError(
            Problem(
                "transform.train",
                "a vocabulary cannot be learned from a stream; set vocabulary to a tokenizer.json",
            )
        )
    size, field = int(node.get("size", 2048)), str(node.get("field", "text"))
    begin = str(node.get("begin", BEGIN))
    folder = private_folder(private_folder(Path(cache_dir).expanduser()) / "vocabularies")
    learned = "" if fingerprint else learn(_texts(dataset, field), size, begin)
    key = hash64("vocabulary", fingerprint or learned, size, field, begin)
    path = folder / f"{key:016x}.json"
    if not os.path.lexists(path):
        with one_writer(path, "learns the vocabulary") as lock:
            if not os.path.lexists(path):
                _log.info("learning a vocabulary of %d byte pairs from the training texts", size)
                learned = learned or learn(_texts(dataset, field), size, begin)
                write_atomically(path, learned.encode())
            lock.unlink(missing_ok=True)
    return {**node, "vocabulary": str(path)}


def _texts(dataset: Any, field: str) -> Iterator[str]:
    count = min(len(dataset), _MOST)
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
