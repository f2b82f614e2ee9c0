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
training split, as `dataset.identity.NAME`. Its `code` has hashes of all code that makes samples, to
notice changes: of the modules of each part's classes and functions, all loaded modules of a user's
package, the module itself of an installed one, and nothing whose version is in the manifest.

Cost: 10 ms for the code. Contents are hashed with about 1 GB/s and thread the first time, then a
`stat` a file: `<cache_dir>/fingerprints` keeps the hashes by device, inode, size, mtime and ctime,
which no program can set.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import sqlite3
import stat
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from multiprocessing.pool import ThreadPool
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from penstock.config.identity import leaves
from penstock.config.schema import Config
from penstock.config.targets import resolve, walk
from penstock.distributed.world import usable_cpus
from penstock.errors import ConfigError, Problem
from penstock.files.locks import lock, lock_beside
from penstock.loading.facts import Fields, SomeRows, columns_of, unfiltered
from penstock.order.address import PLACE
from penstock.order.plan import length_of
from penstock.terminal import progress

UNKNOWN = "unknown"
UNREADABLE = "unreadable"
SETTLED = 2.0  # seconds: the coarsest clock of a file system (FAT's)

_STEPS = ("train", "val", "train_batch", "val_batch")
_PARTS = ("dataset", *(f"transform.{name}" for name in _STEPS), "sampler", "collate")
_VERSIONED = frozenset(sys.stdlib_module_names) | {
    "penstock",
    "hydra",
    "numpy",
    "torch",
    "torchvision",
}
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
_MOST_TEXT = 200  # characters of an argument
_log = logging.getLogger(__name__)

Code = dict[str, dict[str, str]]


def code_of(config: Config) -> Code:
    """Hash by module, by part: of all code that makes samples and is nobody's release."""
    code: Code = {}
    for key in _PARTS:
        for _, node in walk(attrgetter(key)(config), key):
            found = modules_of(resolve(node["_target_"], key), whole=True)
            if found:
                code[key] = {**code.get(key, {}), **found}
    return code


def modules_of(target: Any, whole: bool = False) -> dict[str, str]:
    """Hashes (16 hex digits) of the modules in which a class, and those that it derives from, or a
    function is defined, by name; UNKNOWN where there is no source. Without what has a version.

    Args:
        whole: with all loaded modules of a person's own package.
    """
    found: dict[str, str] = {}
    for owner in inspect.getmro(target) if isinstance(target, type) else [inspect.unwrap(target)]:
        name = getattr(owner, "__module__", None) or UNKNOWN
        top, path = name.partition(".")[0], _file_of(name)
        if top in _VERSIONED and name != "__main__":
            continue
        found[name] = _hash_of(path)
        # What a step imports changes samples, too; of an installed package the version says it.
        if whole and path and not path.startswith(_INSTALLED):
            names = [one for one in sys.modules if one.partition(".")[0] == top]
            found |= {one: _hash_of(file) for one in names if (file := _file_of(one))}
    return dict(sorted(found.items()))


def _file_of(module: str) -> str | None:
    """The file of a loaded module; None for one that was typed into a notebook or a prompt."""
    path = getattr(sys.modules.get(module), "__file__", None)
    return path if isinstance(path, str) and Path(path).is_file() else None


def _hash_of(path: str | None) -> str:
    if path is None:
        return UNKNOWN
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()


def digests(paths: Sequence[str], cache_dir: str | Path, settled: float = SETTLED) -> list[str]:
    """The hash of each file's content, 32 hex digits; UNREADABLE for an unreadable file.

    Args:
        cache_dir: keeps hashes, if it is writable.
        settled: age in seconds of a file from which on its hash is kept: within a tick of the
            clock, it may change once more and look the same.
    """
    # Hashes are kept together with those of the same folder.
    folder = os.path.commonpath({str(Path(path).parent.absolute()) for path in paths})
    name = hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    file = Path(cache_dir).expanduser().absolute() / "fingerprints" / f"files-{name}.sqlite"
    before = time.time_ns() - int(settled * 1e9)
    kept, known, found = None, dict[str, str](), list[tuple[str, str]]()
    with ExitStack() as stack, ThreadPool(usable_cpus()) as pool:
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Of processes that start together, one hashes, and the others read what it has kept.
            stack.enter_context(lock(lock_beside(file), "hashes the same files"))
            kept = stack.enter_context(closing(sqlite3.connect(file)))
            kept.execute("CREATE TABLE IF NOT EXISTS files (look TEXT PRIMARY KEY, hash TEXT)")
            known = dict(kept.execute("SELECT look, hash FROM files"))
        except (OSError, sqlite3.Error) as error:
            _log.warning("%s cannot be used: %s; each start hashes all files", file, error)
        looks = pool.map(_look, paths, chunksize=1000)
        hashes = [known.get(str(look), UNREADABLE) for look in looks]
        new = [row for row, look in enumerate(looks) if look and str(look) not in known]
        show = stack.enter_context(progress(f"hashing {len(new)} files once", len(new)))
        try:
            hashed = pool.imap(_hash, [paths[row] for row in new])
            for done, (row, hashes[row]) in enumerate(zip(new, hashed, strict=True), 1):
                look = looks[row]  # of before it was hashed
                if look and max(look[3:]) < before and hashes[row] != UNREADABLE:
                    found.append((str(look), hashes[row]))
                show(done)
        finally:  # also what was done before Ctrl-C
            if kept is not None and found:
                with suppress(sqlite3.Error), kept:  # on a full disk they are hashed again
                    kept.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", found)
    return hashes


def _look(path: str) -> tuple[int, int, int, int, int] | None:
    """Device, inode, size, and times of change in ns of a file; None for anything else."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    times = status.st_mtime_ns, status.st_ctime_ns
    is_file = stat.S_ISREG(status.st_mode)
    return (status.st_dev, status.st_ino, status.st_size, *times) if is_file else None


def _hash(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError:
        return UNREADABLE


def fingerprint_of(dataset: Any, mode: str, cache_dir: str | Path) -> str:
    """The fingerprint of a dataset.

    Args:
        mode: `data.fingerprint`.
        cache_dir: keeps hashes of files.

    Raises:
        ConfigError: this dataset has no fingerprint of this kind.
        DataError: a store gives no version of a file's content.
    """
    if isinstance(dataset, SomeRows):
        return dataset.fingerprint_with(fingerprint_of(dataset.dataset, mode, cache_dir))
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
    files = dict.fromkeys((str(n), str(p), *map(str, v)) for n, p, *v in dataset.data_files())
    hashes = {path: "" for _, path, *version in files if not any(version)}
    if hashes:
        hashes = dict(zip(hashes, digests(list(hashes), cache_dir), strict=True))
    digest = hashlib.blake2b(f"content {own}\n".encode(), digest_size=16)
    for name, path, *version in files:
        # A name may hold a line feed, a version never does.
        content = hashes.get(path) or " ".join(version[:1]).replace("\n", " ")
        encoded = os.fsencode(name)
        digest.update(f"{len(encoded)} {content}\n".encode() + encoded)
    return digest.hexdigest()


def tells_all(dataset: Any) -> bool:
    """Whether a dataset, and each that it is made of, has a fingerprint."""
    if isinstance(dataset, SomeRows):
        return tells_all(dataset.dataset)
    sources = getattr(dataset, "sources", None)
    if type(dataset).__module__.startswith("penstock.") and isinstance(sources, Mapping):
        return all(map(tells_all, sources.values()))
    return getattr(dataset, "fingerprint", None) is not None


def marks_of(node: Any, dataset: Any, has_fingerprint: bool, fields: Fields) -> dict[str, str]:
    """What a dataset is known by beside its fingerprint; nothing where all of it is Penstock's.

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
        elif len(text) > _MOST_TEXT:
            text = f"{text[: _MOST_TEXT // 2]}... {hashlib.sha256(text.encode()).hexdigest()[:16]}"
        facts[name] = text
    if not has_fingerprint and (columns := columns_of(dataset, fields)):
        digest = hashlib.blake2b(digest_size=8)
        for name, column in columns.items():
            values = np.asarray(column)
            digest.update(f"{name} {values.dtype} {values.shape}".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
        facts["labels"] = digest.hexdigest()
    return facts | ({"fields": ", ".join(fields.given)} if fields.given else {})
