"""Hashes of the code that makes samples, so that a changed line of it can be told.

For each part (the dataset, a split's transforms, the sampler, the collate function) the modules
that its classes and functions come from, bases included. Of a person's own package all loaded
modules count, since a helper's line changes samples as well; of what is installed, the module
itself. torch and what else the manifest has a version of is left out, and Penstock is one hash.

Nothing is imported for it that a run has not imported. Cost: 10 ms, mostly Penstock's own files.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pipeline
from pipeline.config import allow_list
from pipeline.config.nodes import parts, walk
from pipeline.config.schema import Config

OURS = "penstock"
_OURS = Path(pipeline.__file__).parent
UNKNOWN = "unknown"
_PARTS = ("dataset", "transform", "sampler", "collate")
_VERSIONED = frozenset(sys.stdlib_module_names) | {"hydra", "numpy", "torch", "torchvision"}
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})

Code = dict[str, dict[str, str]]


def code_of(config: Config) -> Code:
    """Hash by module, by part; 16 hex digits, UNKNOWN where there is no source."""
    found: Code = {}
    for part in parts(config):
        if part.key.split(".")[0] in _PARTS:
            hashes = {
                name: digest
                for _, node in walk(part.node, part.key)
                for name, digest in _hashes(allow_list.resolve(node["_target_"], part.key))
            }
            found |= {part.key: dict(sorted(hashes.items()))} if hashes else {}  # fmt: skip
    return found


def changes(before: Any, now: Code) -> Iterator[tuple[str, str, str, str]]:
    """Part, module and both hashes of each module that is another one now, each module once.

    Args:
        before: of another run's manifest; whatever it is.
    """
    told = set()
    for part, modules in now.items():
        old = before.get(part) if isinstance(before, Mapping) else None
        for name, digest in modules.items():
            was = old.get(name) if isinstance(old, Mapping) else None
            if isinstance(was, str) and was != digest and name not in told:
                told.add(name)
                yield part, name, was, digest


def _hashes(found: Any) -> Iterator[tuple[str, str]]:
    """Name and hash of the modules that a class or function comes from."""
    owners = inspect.getmro(found) if isinstance(found, type) else (inspect.unwrap(found),)
    for owner in owners:
        name = getattr(owner, "__module__", None) or UNKNOWN
        top = name.partition(".")[0]
        if top in _VERSIONED and name != "__main__":
            continue
        if _is_ours(name):
            yield OURS, _of_penstock()
            continue
        path = _path(name)
        if path is None:
            yield name, _of_source(owner)
        elif path.startswith(_INSTALLED):
            yield name, _of_files((path,))
        else:
            yield from ((one, _of_files((_path(one) or "",))) for one in _loaded(top))


def _loaded(top: str) -> list[str]:
    """The loaded modules of a package that have a file."""
    names = [name for name in list(sys.modules) if name.partition(".")[0] == top]
    return [name for name in names if _path(name)]


def _path(module: str) -> str | None:
    path = getattr(sys.modules.get(module), "__file__", None)
    return path if isinstance(path, str) and Path(path).is_file() else None


def _is_ours(module: str) -> bool:
    path = _path(module)
    return path is not None and path.startswith(str(_OURS) + os.sep)


@functools.cache
def _of_penstock() -> str:
    # In a checkout, `pipeline/datasets` is a link to the folder beside it.
    found = (Path(folder, name) for folder, _, names in os.walk(_OURS, followlinks=True)
             for name in names)  # fmt: skip
    return _of_files(sorted(str(path) for path in found if path.suffix in (".py", ".c")))


def _of_source(owner: Any) -> str:
    """The hash of what was typed into a notebook or a prompt."""
    try:
        return _digest(inspect.getsource(owner).encode())
    except (OSError, TypeError):
        return UNKNOWN


def _of_files(paths: Any) -> str:
    try:
        return _digest(*(Path(path).read_bytes() for path in paths))
    except OSError:
        return UNKNOWN


def _digest(*contents: bytes) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for content in contents:
        digest.update(f"{len(content)};".encode() + content)
    return digest.hexdigest()
