"""What a run's data and code are known by, and whether two runs had the same.

A dataset's fingerprint is of one of three kinds, `data.fingerprint`:

    names      names of files, and how they are read and divided: `names_fingerprint()`
    sizes      also their sizes, or blocks of a few large files: `fingerprint`
    content    names, and a hash of each file: `data_files()`, with (name, path) of each, or (name,
               address, version) if a store guarantees the content

Beside it, or in its place, stand other facts:

    code.MODULE      a hash of each module of a person's own that its classes are defined in
    arguments.NAME   as configured
    labels           a hash of its labels, as torch's `targets` have them, if it says nothing

Penstock's own datasets have nothing but a fingerprint, which covers all of it. One of a person's
own that has a fingerprint has its code and arguments beside it; those that name a file or folder
are left out, as data may move. One without a fingerprint is known by all of the rest, which is less
than its content: where everything agrees, it is not known to be the same.

A run's manifest has the facts of each split under `data.identity`, and its fingerprint those of the
training split, as `dataset.identity.NAME`. Its `code` has hashes of all code of a person's own, to
notice changes, and nothing whose version is in the manifest.

Cost: 10 ms for the code. Contents are hashed at each start, with about 1 GB/s and thread.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from penstock.config.identity import leaves
from penstock.config.targets import resolve, walk
from penstock.distributed.world import usable_cpus
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import hash_sample
from penstock.loading.facts import Fields, SomeRows, columns_of, unfiltered
from penstock.order.address import PLACE
from penstock.order.plan import length_of
from penstock.terminal import watched

UNKNOWN = "unknown"
UNREADABLE = "unreadable"

_VERSIONED = frozenset(sys.stdlib_module_names) | {
    "penstock",
    "hydra",
    "numpy",
    "torch",
    "torchvision",
}
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})


def code_of() -> dict[str, str]:
    """Hashes of all modules of a person's own that are loaded, by name.

    Also of those that no class of a part is defined in: what a step imports changes samples, too.
    """
    files = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    return {
        name: _hash_of(name)
        for name, path in sorted(files.items())
        if name.partition(".")[0] not in _VERSIONED
        # Of an installed package, its version says it.
        if path and not path.startswith(_INSTALLED)
    }


def modules_of(target: Any) -> dict[str, str]:
    """Hashes (16 hex digits) of the modules in which a class, and those that it derives from, or a
    function is defined, by name; UNKNOWN where there is no source. Without what has a version.
    """
    owners = inspect.getmro(target) if isinstance(target, type) else [inspect.unwrap(target)]
    names = [getattr(owner, "__module__", None) or UNKNOWN for owner in owners]
    return {
        name: _hash_of(name)
        for name in sorted(names)
        if name.partition(".")[0] not in _VERSIONED or name == "__main__"
    }


def _hash_of(module: str) -> str:
    """A hash of a loaded module's file; UNKNOWN for one that was typed into a notebook."""
    path = getattr(sys.modules.get(module), "__file__", None) or "/"
    if not Path(path).is_file():
        return UNKNOWN
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()


def digests(paths: Sequence[str]) -> list[str]:
    """The hash of each file's content, 32 hex digits; UNREADABLE for an unreadable file."""
    # Threads are enough: hashing and reading release the interpreter.
    with ThreadPool(usable_cpus()) as pool:
        hashed = pool.imap(_hash, paths)
        return list(watched(hashed, len(paths), f"hashing {len(paths)} files"))


def _hash(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError:
        return UNREADABLE


def fingerprint_of(dataset: Any, mode: str) -> str:
    """The fingerprint of a dataset.

    Args:
        mode: `data.fingerprint`.

    Raises:
        ConfigError: this dataset has no fingerprint of this kind.
        DataError: a store gives no version of a file's content.
    """
    if isinstance(dataset, SomeRows):
        return dataset.fingerprint_with(fingerprint_of(dataset.dataset, mode))
    names: Any = getattr(dataset, "names_fingerprint", None)
    member = {"names": "names_fingerprint", "content": "data_files"}.get(mode)
    if member and not hasattr(dataset, member):
        reason = (
            f"{mode} needs the files of the dataset, which {type(dataset).__name__} does not list; "
            f"add `{member}()` to it (docs/own_dataset.md), or set this to sizes"
        )
        raise ConfigError(Problem("data.fingerprint", reason))
    of_names = names is not None and mode != "sizes"
    own = names() if of_names else getattr(dataset, "fingerprint", None) or length_of(dataset)
    if mode != "content":
        return str(own)
    # A file that is in several rows counts once.
    files = dict.fromkeys((str(n), str(p), *map(str, v)) for n, p, *v in dataset.data_files())
    hashes = {path: "" for _, path, *version in files if not any(version)}
    if hashes:
        hashes = dict(zip(hashes, digests(list(hashes)), strict=True))
    digest = hashlib.blake2b(f"content {own}\n".encode(), digest_size=16)
    for name, path, *version in files:
        # A name may hold a line feed, a version never does.
        content = hashes.get(path) or " ".join(version[:1]).replace("\n", " ")
        encoded = os.fsencode(name)
        digest.update(f"{len(encoded)} {content}\n".encode() + encoded)
    return digest.hexdigest()


def tells_all(dataset: Any) -> bool:
    """Whether a dataset, and each that it is made of, has a fingerprint."""
    whole = unfiltered(dataset)
    sources = getattr(whole, "sources", None)
    if type(whole).__module__.startswith("penstock.") and isinstance(sources, Mapping):
        return all(map(tells_all, sources.values()))
    return getattr(whole, "fingerprint", None) is not None


def marks_of(node: Any, dataset: Any, has_fingerprint: bool, fields: Fields) -> dict[str, str]:
    """What identifies a dataset beside its fingerprint; empty for Penstock's own classes.

    Args:
        node: that it was built of, without secrets.
    """
    targets = [resolve(one["_target_"], key) for key, one in walk(node, "")]
    if has_fingerprint and all(
        str(getattr(target, "__module__", "")).startswith("penstock.") for target in targets
    ):
        return {}
    facts: dict[str, str] = {}
    for target in [*targets, type(unfiltered(dataset))]:
        facts |= {f"code.{name}": digest for name, digest in modules_of(target).items()}
    for name, value in leaves(node, "arguments"):
        text = str(value)
        if has_fingerprint and isinstance(value, str) and ("://" in text or os.path.exists(text)):  # noqa: PTH110  (a Path of "\0" raises)
            text = PLACE  # data may move
        facts[name] = text
    if not has_fingerprint and (columns := columns_of(dataset, fields)):
        facts["labels"] = hash_sample(columns).hex()
    return facts | ({"fields": ", ".join(fields.names)} if fields.names else {})
