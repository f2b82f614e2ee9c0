"""Hashes of the code that makes samples, to notice changes. Cost: 10 ms.

They cover the modules of each part's classes and functions; all loaded modules of a user's package,
the module itself of an installed one, and nothing whose version is in the manifest.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import penstock
from penstock.config import targets
from penstock.config.schema import Config

OURS = "penstock"
_OURS = Path(penstock.__file__).parent
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
            for _, node in targets.walk(attrgetter(key)(config), key)
            for module in _hashes(targets.resolve(node["_target_"], key))
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
        elif path.startswith(str(_OURS) + os.sep):
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
        for folder, _, names in os.walk(_OURS, followlinks=True)
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
