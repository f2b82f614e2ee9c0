"""What makes the batches of a split: runs with the same of it may hand each other batches."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.data_rules import mode_of
from pipeline.config.schema import TASK_KEYS
from pipeline.errors import ConfigError, Problem
from pipeline.loading.sharing.folder import KEY, ShareFolder
from pipeline.loading.sharing.share import Share
from pipeline.order.streams import length_of
from pipeline.runs.identity.sources import UNKNOWN, code_of, of_penstock
from pipeline.runs.run_folder import PACKAGES, version_of

if TYPE_CHECKING:
    from pipeline.build.data import Split

# Others measure the loader, or look for errors in the data.
TASKS = ("fit", "validate", "digest", "lr_find")
_READERS = ("pyarrow", "soundfile", "scipy", "opencv-python", "av", "transformers", "tokenizers")
_GIB = 2**30
# No batch depends on them; what the rest says of the objective are the names of fields.
_OTHER_KEYS = frozenset({
    "loader", "tune", "lr_find", "diff", "distributed", "model", "objective", "optimizer",
    "scheduler", "trainer", "tracker", "resume", "resume_despite", "sweep", "task", "run_dir",
    "cache_dir", *TASK_KEYS,
})  # fmt: skip


def share_of(split: Split, hashed: bool) -> Share | None:
    """Where the batches of `split` are shared; None where they are not to be.

    Args:
        hashed: whether their samples are hashed.

    Raises:
        ConfigError: it is not known what makes them.
    """
    config = split.config
    given = config.loader
    if given.share is None or config.task not in TASKS:
        return None
    size = None if given.share_size is None else int(given.share_size * _GIB)
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(split, hashed):
        digest.update(json.dumps(part, sort_keys=True, default=str).encode() + b"\n")
    again = split.name == "val"  # every validation asks for the same epoch
    last = config.trainer.max_epochs if config.task == "fit" else None
    return Share(ShareFolder(given.share, size), digest.hexdigest(), None if again else last, again)


def _parts(split: Split, hashed: bool) -> Iterator[Any]:
    config, world, fields = split.config, split.data.world, split.data.fields
    yield split.name, hashed, world.rank, world.size
    yield {key: value for key, value in config.plain().items() if key not in _OTHER_KEYS}
    yield split.fingerprint, fields.given, fields.usual, split.data.on_device
    # Statistics and facts of the training split go into steps of both.
    for one in dict.fromkeys((split, split.data.train)):
        yield one.name, *_contents(one)
    code = code_of(config)
    for key, modules in code.items():
        if UNKNOWN in modules.values():
            name = next(name for name, digest in modules.items() if digest == UNKNOWN)
            raise ConfigError(
                Problem(KEY, f"the source of {name} ({key}) is not known, so other runs may have "
                        "another one; put it into a file, or set loader.share=null")
            )  # fmt: skip
    yield code, of_penstock(), platform.python_version()
    yield {name: version_of(name) for name in (*PACKAGES, *_READERS)}


def _contents(split: Split) -> Iterator[Any]:
    """What tells the data of a split apart, down to the times of its files; a `stat` a file."""
    dataset = split.dataset
    told = split.data_fingerprint(mode_of(split.config))
    if told == "None" or told.isdigit():
        raise ConfigError(
            Problem(KEY, f"{type(dataset).__name__} does not say what its samples are made of, so "
                    "other runs may have other samples; give it a `fingerprint` "
                    "(docs/own_dataset.md), or set loader.share=null")
        )  # fmt: skip
    yield told
    if hasattr(dataset, "data_files"):
        files = ((str(path), *version) for _, path, *version in dataset.data_files())
    elif callable(getattr(dataset, "path", None)):
        files = ((str(dataset.path(index)),) for index in range(length_of(dataset) or 0))
    else:
        return
    for path, *version in files:
        try:
            found = Path(path).stat()
        except (OSError, ValueError):  # at an address, where the version tells
            yield path, *version
        else:
            yield str(Path(path).absolute()), found.st_size, found.st_mtime_ns
