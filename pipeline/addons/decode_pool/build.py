"""The identity of a split's batches: runs that agree in it may share batches."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.addons.decode_pool.folder import KEY, PoolFolder
from penstock.addons.decode_pool.pool import DecodePool
from penstock.addons.decode_pool.wrapper import SharedBatches
from penstock.config import changes
from penstock.distributed.world import World
from penstock.errors import ConfigError, Problem
from penstock.loading.known_by import tells
from penstock.loading.wrapped import unfiltered
from penstock.order.streams import length_of
from penstock.runs.identity.sources import UNKNOWN, code_of, of_penstock
from penstock.runs.manifest import PACKAGES
from penstock.runs.run_folder import version_of

if TYPE_CHECKING:
    from penstock.build.data import Split

_READERS = ("pyarrow", "soundfile", "scipy", "opencv-python", "av", "transformers", "tokenizers")
_GIB = 2**30


def pool_of(
    split: Split, hashed: bool = False, use: str = "", world: World | None = None
) -> DecodePool:
    """The pool of the batches of `split`, which `loader.share` names.

    Args:
        hashed: whether their samples are hashed.
        use: what else they are made for than training or validation, with other requests.
        world: whose batches they are, if not the split's.

    Raises:
        ConfigError: it is not known what makes them.
    """
    config = split.config
    name, size = config.loader.option("share"), config.loader.option("share_size")
    digest = hashlib.blake2b(digest_size=16)
    world = world or split.data.world
    for part in ((use, hashed, world.rank, world.size), *_parts(split)):
        digest.update(json.dumps(part, sort_keys=True, default=str).encode() + b"\n")
    again = split.name == "val"  # every validation asks for the same epoch
    last = config.trainer.max_epochs if config.task == "fit" and not use else None
    return DecodePool(
        PoolFolder(name, size and int(size * _GIB)),
        digest.hexdigest(),
        None if again else last,
        again,
    )


def _parts(split: Split) -> Iterator[Any]:
    config, fields = split.config, split.data.fields
    yield split.name
    yield changes.making(config, split.name)
    # What batches have of the objective are the names of fields.
    yield split.fingerprint, fields.given, fields.usual, split.data.on_device
    # Statistics and facts of the training split go into steps of both.
    for part in dict.fromkeys((split, split.data.train)):
        pool = next(wrapper for wrapper in part.wrappers if isinstance(wrapper, SharedBatches))
        yield part.name, pool.contents
    code = code_of(config)
    for key, modules in code.items():
        if UNKNOWN in modules.values():
            name = next(name for name, digest in modules.items() if digest == UNKNOWN)
            raise ConfigError(
                Problem(
                    KEY,
                    f"the source of {name} ({key}) is not known, so other runs may have "
                    "another one; put it into a file, or set loader.share=null",
                )
            )
    yield code, of_penstock(), platform.python_version()
    yield {name: version_of(name) for name in (*PACKAGES, *_READERS)}


def contents_of(dataset: Any, fingerprint: str) -> str:
    """A hash of what tells data apart, down to the times of its files; costs a `stat` a file.

    Args:
        told: the dataset's fingerprint.

    Raises:
        ConfigError: it says nothing.
    """
    if not tells(fingerprint):
        raise ConfigError(
            Problem(
                KEY,
                f"{type(dataset).__name__} does not say what its samples are made of, so "
                "other runs may have other samples; give it a `fingerprint` "
                "(docs/own_dataset.md), or set loader.share=null",
            )
        )
    digest = hashlib.blake2b(fingerprint.encode(), digest_size=16)
    sources = getattr(dataset, "sources", None)
    mixes = type(unfiltered(dataset)).__module__.startswith("penstock.")
    if mixes and isinstance(sources, Mapping):  # which tell it each in its own way
        for name, source in sources.items():
            own = contents_of(source, str(getattr(source, "fingerprint", None)))
            digest.update(json.dumps([name, own]).encode() + b"\n")
        return digest.hexdigest()
    files: Iterable[Sequence[str]] = ()
    if hasattr(dataset, "data_files"):
        files = ((str(path), *map(str, rest)) for _, path, *rest in dataset.data_files())
    elif callable(getattr(dataset, "path", None)):
        files = ((str(dataset.path(index)),) for index in range(length_of(dataset) or 0))
    for file in files:
        try:
            status = Path(file[0]).stat()
        except (OSError, ValueError):  # at an address, where the version tells
            entry: list[Any] = list(file)
        else:
            entry = [str(Path(file[0]).absolute()), status.st_size, status.st_mtime_ns]
        digest.update(json.dumps(entry).encode() + b"\n")
    return digest.hexdigest()
