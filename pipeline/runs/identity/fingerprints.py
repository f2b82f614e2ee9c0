"""Dataset fingerprints: `data.fingerprint: names | sizes | content`.

names      names of files, and how they are read and divided: `names_fingerprint()`
sizes      also their sizes, or blocks of a few large files: `fingerprint`
content    names, and a hash of each file: `data_files()`, with (name, path) of each, or (name,
           address, version) if a store guarantees the content; or `path(index)`
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem
from penstock.loading.facts import SomeRows
from penstock.order.plan import length_of

KEY = "data.fingerprint"


def fingerprint_of(dataset: object, mode: str, cache_dir: str | Path) -> str:
    """The fingerprint of a dataset.

    Args:
        cache_dir: keeps hashes of files.

    Raises:
        ConfigError: this dataset has no fingerprint of this kind.
        DataError: a store gives no version of a file's content.
    """
    if isinstance(dataset, SomeRows):
        return dataset.fingerprint_with(fingerprint_of(dataset.dataset, mode, cache_dir))
    names = getattr(dataset, "names_fingerprint", None)
    if mode == "names":
        if names is None:
            raise _refusal(dataset, mode)
        return str(names())
    own = getattr(dataset, "fingerprint", None) if mode == "sizes" or names is None else names()
    own = str(own or length_of(dataset))
    return own if mode == "sizes" else _with_content(dataset, own, cache_dir)


def other_than_own(dataset: object, config: Config) -> str | None:
    """The configured fingerprint; None if that is the dataset's own one."""
    mode = config.data.fingerprint
    return None if mode == "sizes" else fingerprint_of(dataset, mode, config.cache_dir)


def _with_content(dataset: object, own: str, cache_dir: str | Path) -> str:
    """The hash of `own` and all files."""
    from penstock.runs.identity.contents import UNREADABLE, digests

    listed = dataset.data_files() if hasattr(dataset, "data_files") else _by_path(dataset)
    files = list(dict.fromkeys((str(n), str(p), *map(str, v)) for n, p, *v in listed))
    if not files:
        raise _refusal(dataset, "content")
    hashes = {path: "" for _, path, *version in files if not any(version)}
    if hashes:
        hashes = dict(zip(hashes, digests(list(hashes), cache_dir), strict=True))
    if hashes and not hasattr(dataset, "data_files") and set(hashes.values()) == {UNREADABLE}:
        raise _refusal(dataset, "content")
    # A name may hold a line feed, a version never does.
    rows = [
        (hashes.get(path) or " ".join(version[:1]).replace("\n", " "), name)
        for name, path, *version in files
    ]
    digest = hashlib.blake2b(f"content {own}\n".encode(), digest_size=16)
    for content, name in rows:
        encoded = os.fsencode(name)
        digest.update(f"{len(encoded)} {content}\n".encode() + encoded)
    return digest.hexdigest()


def _by_path(dataset: Any) -> Iterator[tuple[str, ...]]:
    """The files that `path(index)` names, relative to their common folder."""
    length = length_of(dataset)
    if not length or not callable(getattr(dataset, "path", None)):
        raise _refusal(dataset, "content")
    paths = [str(Path(dataset.path(index)).absolute()) for index in range(length)]
    root = os.path.commonpath({str(Path(path).parent) for path in paths})
    return ((os.path.relpath(path, root), path) for path in paths)


def _refusal(dataset: object, mode: str) -> ConfigError:
    member = "`names_fingerprint()`" if mode == "names" else "`data_files()`"
    return ConfigError(
        Problem(
            KEY,
            f"{mode} needs the files of the dataset, which {type(dataset).__name__} does "
            f"not list; add {member} to it (docs/own_dataset.md), or set this to sizes",
        )
    )


def recorded(mode: str) -> dict[str, str]:
    """The entry of a run's fingerprint for `mode`; none for sizes."""
    return {} if mode == "sizes" else {KEY: mode}
