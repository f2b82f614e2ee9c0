"""What a run's data and code are known by, and whether two runs had the same.

A dataset's fingerprint is of one of three kinds, `data.fingerprint`:

    names      names of files, and how they are read and divided: `names_fingerprint()`
    sizes      also their sizes, or blocks of a few large files: `fingerprint`
    content    names, and a hash of each file: `data_files()`, with (name, path) of each, or (name,
               address, version) if a store guarantees the content; or `path(index)`

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

import functools
import hashlib
import inspect
import logging
import os
import sqlite3
import stat
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock.config.schema import Config
from penstock.config.targets import SUPPLIED, arguments, resolve, walk
from penstock.distributed.world import usable_cpus
from penstock.errors import ConfigError, Problem
from penstock.files.locks import lock, lock_beside
from penstock.loading.facts import SomeRows, columns_of, unfiltered
from penstock.loading.fields import Fields
from penstock.loading.fingerprint import PLACE
from penstock.order.plan import length_of
from penstock.terminal import progress

OURS = "penstock"
_HOME = Path(penstock.__file__).parent
UNKNOWN = "unknown"
_STEPS = ("train", "val", "train_batch", "val_batch")
_PARTS = ("dataset", *(f"transform.{name}" for name in _STEPS), "sampler", "collate")
_VERSIONED = frozenset(sys.stdlib_module_names) | {"hydra", "numpy", "torch", "torchvision"}
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})

Code = dict[str, dict[str, str]]


def code_of(config: Config) -> Code:
    """Hash by module, by part; 16 hex digits, UNKNOWN where there is no source."""
    code: Code = {}
    for key in _PARTS:
        hashes = dict(
            module
            for _, node in walk(attrgetter(key)(config), key)
            for module in _hashes(resolve(node["_target_"], key))
        )
        if hashes:
            code[key] = dict(sorted(hashes.items()))
    return code


def changes(before: object, now: Code) -> Iterator[tuple[str, str, str, str]]:
    """Part, module, old and new hash of each changed module, once.

    Args:
        before: from another run's manifest, unchecked.
    """
    seen = set()
    for part, modules in now.items():
        old = before.get(part) if isinstance(before, Mapping) else None
        for name, digest in modules.items():
            was = old.get(name) if isinstance(old, Mapping) else None
            if isinstance(was, str) and was != digest and name not in seen:
                seen.add(name)
                yield part, name, was, digest


def modules_of(target: object) -> Iterator[tuple[str, str]]:
    """Name and hash of the modules in which a class, and those that it derives from, or a function
    is defined; without Penstock's own.
    """
    return _hashes(target, whole=False)


def _hashes(target: Any, whole: bool = True) -> Iterator[tuple[str, str]]:
    """Name and hash of the modules that a class or function comes from.

    Args:
        whole: with all loaded modules of a person's own package, and with Penstock.
    """
    owners = inspect.getmro(target) if isinstance(target, type) else (inspect.unwrap(target),)
    for owner in owners:
        name = getattr(owner, "__module__", None) or UNKNOWN
        top = name.partition(".")[0]
        if top in _VERSIONED and name != "__main__":
            continue
        path = _path(name)
        if path is None:
            try:  # what was typed into a notebook or a prompt
                yield name, _digest(inspect.getsource(owner).encode())
            except (OSError, TypeError):
                yield name, UNKNOWN
        elif path.startswith(str(_HOME) + os.sep):
            if whole:
                yield OURS, of_penstock()
        elif path.startswith(_INSTALLED) or not whole:
            yield name, _of_files((path,))
        else:
            loaded = [module for module in list(sys.modules) if module.partition(".")[0] == top]
            yield from (
                (module, _of_files((file,))) for module in loaded if (file := _path(module))
            )


def _path(module: str) -> str | None:
    path = getattr(sys.modules.get(module), "__file__", None)
    return path if isinstance(path, str) and Path(path).is_file() else None


@functools.cache
def of_penstock() -> str:
    """The hash of all of Penstock's own code; UNKNOWN if it cannot be read."""
    # In a checkout, `pipeline/datasets` is a link to the folder beside it.
    paths = (
        f"{folder}{os.sep}{name}"
        for folder, _, names in os.walk(_HOME, followlinks=True)
        for name in names
        if name.endswith((".py", ".c"))
    )
    return _of_files(sorted(paths))


def _of_files(paths: Iterable[str]) -> str:
    try:
        return _digest(*map(_content, paths))
    except OSError:
        return UNKNOWN


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # of 500 files; pathlib takes twice as long
        return file.readall()


def _digest(*contents: bytes) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for content in contents:
        digest.update(f"{len(content)};".encode() + content)
    return digest.hexdigest()


_log = logging.getLogger(__name__)

UNREADABLE = "unreadable"
SETTLED = 2.0  # seconds: the coarsest clock of a file system (FAT's)
_AT_ONCE = 1000  # files that a thread takes at a time
_CHUNK = 1 << 20  # bytes

Look = tuple[int, int, int, int, int]  # device, inode, size, mtime and ctime in ns


def digests(paths: Sequence[str], cache_dir: str | Path, settled: float = SETTLED) -> list[str]:
    """The hash of each file's content, 32 hex digits; UNREADABLE for an unreadable file.

    Args:
        cache_dir: keeps hashes, if it is writable.
        settled: age in seconds of a file from which on its hash is kept.
    """
    # Hashes are kept together with those of the same folder.
    folder = os.path.commonpath({str(Path(path).parent.absolute()) for path in paths})
    name = hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    file = Path(cache_dir).expanduser().absolute() / "fingerprints" / f"files-{name}.sqlite"
    before = time.time_ns() - int(settled * 1e9)
    kept: sqlite3.Connection | None = None
    known, found = dict[str, str](), list[tuple[str, str]]()
    with ExitStack() as stack:
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Of processes that start together, one hashes, and the others read what it has kept.
            stack.enter_context(lock(lock_beside(file), "hashes the same files"))
            kept = stack.enter_context(closing(sqlite3.connect(file)))
            kept.execute("CREATE TABLE IF NOT EXISTS files (look TEXT PRIMARY KEY, hash TEXT)")
            known = dict(kept.execute("SELECT look, hash FROM files"))
        except (OSError, sqlite3.Error) as error:
            _log.warning("%s cannot be used: %s; each start hashes all files", file, error)
        looks = _looks(paths)
        hashes = [known.get(str(look), "") if look else UNREADABLE for look in looks]
        unknown = [row for row, digest in enumerate(hashes) if not digest]
        size = sum(look[2] for row in unknown if (look := looks[row]))
        hashed = _hashed([paths[row] for row in unknown], size)
        try:
            for row, (look, digest) in zip(unknown, hashed, strict=True):
                hashes[row] = digest
                if look and max(look[3:]) < before:
                    found.append((str(look), digest))
        finally:  # also what was done before Ctrl-C
            if kept is not None and found:
                _keep(kept, found)
    return hashes


def _keep(kept: sqlite3.Connection, found: Sequence[tuple[str, str]]) -> None:
    try:
        with kept:
            kept.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", found)
    except sqlite3.Error as error:
        _log.warning("hashes of files are not kept: %s", error)


def _looks(paths: Sequence[str]) -> list[Look | None]:
    """How each file looks; None for anything else."""

    def look(path: str) -> Look | None:
        try:
            return _look(Path(path).stat())
        except (OSError, ValueError):
            return None

    starts = range(0, len(paths), _AT_ONCE)
    with ThreadPoolExecutor(usable_cpus()) as pool:
        parts = pool.map(lambda start: [*map(look, paths[start : start + _AT_ONCE])], starts)
        return list(chain.from_iterable(parts))


def _look(status: os.stat_result) -> Look | None:
    if not stat.S_ISREG(status.st_mode):
        return None
    times = status.st_mtime_ns, status.st_ctime_ns
    return (status.st_dev, status.st_ino, status.st_size, *times)


def _hashed(paths: Sequence[str], size: int) -> Iterator[tuple[Look | None, str]]:
    """As `_Hashing.of`, of each file."""
    if not paths:
        return
    files = "1 file" if len(paths) == 1 else f"{len(paths)} files"
    hashing = _Hashing()
    with (
        progress(f"hashing {files} once", size, "bytes") as show,
        ThreadPoolExecutor(usable_cpus()) as pool,
    ):
        try:
            results = [pool.submit(hashing.of, path) for path in paths]
            for count, result in enumerate(results):
                while not result.done():
                    show(hashing.bytes_done, f"{count} of {files}")
                    wait([result], 0.1)
                yield result.result()
        finally:  # after Ctrl-C the threads end with their current MiB
            hashing.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)


class _Hashing:
    """Hashes files in threads, until it is stopped.

    Attributes:
        bytes_done: of all files; a display's number, which threads may miscount.
    """

    def __init__(self) -> None:
        self.bytes_done, self.stopped = 0, False

    def of(self, path: str) -> tuple[Look | None, str]:
        """How a file looked before it was hashed, and its hash."""
        try:
            # One that became a pipe meanwhile does not keep this waiting.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
            with open(descriptor, "rb", buffering=0) as file:
                look = _look(os.fstat(descriptor))
                digest, buffer = hashlib.blake2b(digest_size=16), bytearray(_CHUNK)
                view = memoryview(buffer)
                while look and not self.stopped and (count := file.readinto(buffer)):
                    digest.update(view[:count])
                    self.bytes_done += count
        except OSError:
            return None, UNREADABLE
        whole = look is not None and not self.stopped
        return (look, digest.hexdigest()) if whole else (None, UNREADABLE)


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


_MOST_TEXT = 200  # characters of an argument

Facts = dict[str, str]


def tells_all(dataset: object) -> bool:
    """Whether a dataset, and each that it is made of, has a fingerprint."""
    if isinstance(dataset, SomeRows):
        return tells_all(dataset.dataset)
    sources = getattr(dataset, "sources", None)
    if type(dataset).__module__.startswith(f"{OURS}.") and isinstance(sources, Mapping):
        return all(map(tells_all, sources.values()))
    return getattr(dataset, "fingerprint", None) is not None


def marks_of(node: object, dataset: Any, has_fingerprint: bool, fields: Fields) -> Facts:
    """What a dataset is known by beside its fingerprint; nothing for Penstock's own."""
    facts = code_and_arguments(node, dataset, has_fingerprint)
    if not has_fingerprint:
        facts |= labels_of(columns_of(dataset, fields))
    return facts | ({"fields": ", ".join(fields.given)} if facts and fields.given else {})


def code_and_arguments(node: object, dataset: object, has_fingerprint: bool) -> Facts:
    """The code and the arguments of a dataset; none where all of it is ours.

    Args:
        node: that it was built of, without secrets.
        has_fingerprint: whether it has one.
    """
    targets = {key: resolve(one["_target_"], key) for key, one in walk(node, "")}
    kinds = [*targets.values(), type(unfiltered(dataset))]
    code = dict(one for kind in kinds for one in modules_of(kind))
    own = {
        key: not str(getattr(target, "__module__", "")).startswith(f"{OURS}.")
        for key, target in targets.items()
    }
    if has_fingerprint and not any(own.values()):
        return {}
    facts: dict[str, str] = {}
    # What ours takes is in its fingerprint, unless it stands in something that has none.
    whole_tree = not has_fingerprint and own.get("", True)
    for key, one in walk(node, ""):
        if own[key] or whole_tree:
            whole = {**_defaults(targets[key]), **one}
            for name, value in _leaves(whole, key.lstrip(".")):
                moves = has_fingerprint and _names_a_place(value)
                facts[f"arguments.{name}"] = PLACE if moves else _text(value)
    return {**{f"code.{name}": digest for name, digest in sorted(code.items())}, **facts}


def labels_of(columns: Mapping[str, Any]) -> Facts:
    """A hash of the columns that tell of a dataset; nothing where it has none."""
    digest = hashlib.blake2b(digest_size=8)
    for name, column in columns.items():
        values = np.asarray(column)
        digest.update(f"{name} {values.dtype} {values.shape}".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return {"labels": digest.hexdigest()} if columns else {}


def _defaults(target: object) -> dict[str, object]:
    """The arguments that a target has by default, but for what the build supplies."""
    plain = (str, int, float, bool, list, tuple, type(None))
    return {
        name: one.default
        for name, one in arguments(target).items()
        if isinstance(one.default, plain) and name not in SUPPLIED["dataset"]
    }


def _text(value: Any) -> str:
    text = str(value)
    if len(text) <= _MOST_TEXT:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[: _MOST_TEXT // 2]}... {digest}"


def _leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Key and value of each argument of a node, without those of nodes inside; `_target_` too."""
    for name, value in node.items() if isinstance(node, Mapping) else enumerate(node):
        inner = f"{key}.{name}".lstrip(".") if isinstance(node, Mapping) else f"{key}[{name}]"
        if isinstance(value, (Mapping, list)) and any(True for _ in walk(value, "")):
            if not (isinstance(value, Mapping) and "_target_" in value):
                yield from _leaves(value, inner)
        elif isinstance(value, Mapping) and value:
            yield from _leaves(value, inner)
        else:
            yield inner, value


def _names_a_place(value: object) -> bool:
    if not isinstance(value, str) or not value:
        return False
    try:
        return "://" in value or Path(value).exists()
    except (OSError, ValueError):
        return False
