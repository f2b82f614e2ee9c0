"""Making a pack: the loader's workers read every sample once, in order; this process writes them.

The pack is written to a hidden folder, which is renamed when it is complete; of several processes
one writes, and the others wait. Memory: about 8 MiB a batch ahead, for a dataset of any size.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
import torchvision
from torchvision import tv_tensors

from penstock.addons.packs.fields import Column, Encode, Field
from penstock.addons.packs.folder import RECORD, Pack, PackWriter, is_pack, read_record
from penstock.addons.packs.recipe import Recipe
from penstock.addons.packs.table import write_answers
from penstock.datasets.files import Files
from penstock.distributed.world import World, usable_cpus
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.disk import sync_folder
from penstock.files.locks import lock, lock_beside
from penstock.files.paths import is_remote, join
from penstock.loading.batch import Batch
from penstock.loading.encoded import EncodedImage
from penstock.loading.fetch import Fetch
from penstock.loading.fields import Fields
from penstock.loading.loader import Loader
from penstock.loading.workers.options import LoaderOptions
from penstock.order.keys import IntArray
from penstock.order.plan import Plan, is_stream
from penstock.order.samplers import Sequential
from penstock.order.seeding import Seeding, scope
from penstock.terminal import progress
from penstock.transforms import native_images

_log = logging.getLogger(__name__)

_TRIED = 8  # samples, evenly spread
_BATCH_BYTES = 8 << 20
_LARGEST_BATCH = 256
_WRITING = ".writing-"
_WAY_OUT = (
    "\nA pack has every row of its dataset, whatever bad_samples.on_error says: repair the sample, "
    "or set data.packed=null. task=check data.packed=null lists all that cannot be read"
)

Backend = Literal["process", "thread"]


def pack(
    dataset: Any,
    split: str,
    recipe: Recipe,
    cache_dir: str,
    out: str | None = None,
    options: LoaderOptions | None = None,
    fingerprint: str | None = None,
    names: Fields | None = None,
    key: str | None = None,
    files: Files | None = None,
) -> Path | str:
    """The folder or address of a dataset's pack, which is made if it is not there.

    Args:
        dataset: map-style, with a `fingerprint`.
        split: of the dataset, "train" or "val".
        recipe: what is done to samples first.
        cache_dir: packs are kept in the folder `packed` in it.
        out: the pack goes to `out`/`split` instead, a folder or an address.
        options: of the workers; without any, one process or thread a core is used.
        fingerprint: of the dataset; None takes its own.
        names: for samples that are not dicts.
        key: by which the pack is found again, other than by the fingerprint: with the code and the
            arguments of a dataset of a person's own; "" where nothing tells when it changes.
        files: access to an address.

    Raises:
        ConfigError: the dataset cannot be packed, or `out` holds something else.
        DataError: a sample is bad, or the pack cannot be written.
    """
    fingerprint = _packable(dataset, fingerprint if key is None or key else "")
    name = recipe.name(key or fingerprint)

    def made(folder: Path) -> Path:
        return _made(
            folder,
            name,
            fingerprint,
            split,
            recipe,
            Fetch(
                dataset,
                recipe.steps(),
                _Plain(recipe.collate()),
                0,
                fields=names or Fields(),
            ),
            options or LoaderOptions(),
        )

    if out is None:
        folder = Path(cache_dir, "packed", name).expanduser().absolute()
        with _refusing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        return made(folder)
    if is_remote(out):
        return _sent(join(out, split), name, files or Files(), Path(cache_dir, "sending"), made)
    return made(Path(out, split).expanduser().absolute())


def _made(
    folder: Path,
    name: str,
    fingerprint: str,
    split: str,
    recipe: Recipe,
    fetch: Fetch,
    options: LoaderOptions,
) -> Path:
    """The folder, with the pack of that name, which is made if it is not there."""
    if _is_there(folder, name):
        return folder
    with _refusing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock(lock_beside(folder), f"packs {folder}"):
            if not _is_there(folder, name):
                _remove_leftovers(folder)
                record = {
                    "name": name,
                    "split": split,
                    "dataset": {
                        "class": type(fetch.dataset).__qualname__,
                        "fingerprint": fingerprint,
                    },
                }
                _make(fetch, recipe, record, folder, options)
    return folder


def _sent(address: str, name: str, files: Files, where: Path, made: Callable[[Path], Path]) -> str:
    """The address, to which a pack was sent if it is not there.

    It is made in a folder of this machine, which a killed run leaves for the next.
    """
    remote = files.remote
    folder = where.expanduser().absolute() / name
    with _refusing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock(lock_beside(folder), f"packs {address}"):
            if remote.find([join(address, RECORD)])[0] is not None:
                record = files.read(
                    join(address, RECORD), lambda path: read_record(Path(path), address)
                )
                _check_name(record, name, address)
                return address
            made(folder / "pack")
            remote.send(folder / "pack", address, RECORD, "pack.out")
            shutil.rmtree(folder)
    return address


def _packable(dataset: Any, named: str | None) -> str:
    kind = type(dataset).__name__
    if is_stream(dataset):
        raise ConfigError(
            Problem(
                "data.packed",
                f"{kind} is a stream, which can only be read forwards; "
                "packing is for datasets with rows",
            )
        )
    fingerprint = getattr(dataset, "fingerprint", None) if named is None else named
    if not fingerprint:
        raise ConfigError(
            Problem(
                "data.packed",
                f"{kind} has no `fingerprint`, which tells when its samples "
                "differ from the packed ones; give it one (docs/own_dataset.md)",
            )
        )
    if not len(dataset):
        raise DataError(f"{kind} has no samples to pack")
    return str(fingerprint)


def _is_there(folder: Path, name: str) -> bool:
    if not is_pack(folder):
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(
                Problem(
                    "pack.out", f"{str(folder)!r} exists and is not a pack; choose another folder"
                )
            )
        return False
    _check_name(Pack(folder).record, name, str(folder))
    return True


def _check_name(record: Mapping[str, Any], name: str, folder: str) -> None:
    if record.get("name") != name:
        raise ConfigError(
            Problem(
                "pack.out",
                f"{folder!r} holds other samples than these (another dataset, "
                "pack.size or pack.format); delete it or choose another folder",
            )
        )


def _remove_leftovers(target: Path) -> None:
    """Delete what killed writers have left in the folder of packs; `place` is locked."""
    for folder in target.parent.glob(f".*{_WRITING}*"):
        of = target.with_name(folder.name[1:].partition(_WRITING)[0])
        if of == target:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with suppress(BlockingIOError), lock(lock_beside(of)):
            shutil.rmtree(folder, ignore_errors=True)


def _make(
    fetch: Fetch,
    recipe: Recipe,
    record: dict[str, Any],
    folder: Path,
    options: LoaderOptions,
) -> None:
    dataset, split = fetch.dataset, record["split"]
    rows, samples, size = _try_out(fetch, recipe, folder)
    hidden = folder.with_name(f".{folder.name}{_WRITING}{os.getpid()}-{secrets.token_hex(4)}")
    hidden.mkdir()
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    if recipe.decoder == "native":
        versions["jpeg"] = native_images.module("jpeg").library
    try:
        record |= {
            "fingerprint": recipe.fingerprint(record["dataset"]["fingerprint"]),
            "recipe": vars(recipe),
            "versions": versions,
            **write_answers(hidden, dataset, fetch.fields, rows, samples),
        }
        began = time.perf_counter()
        plan = Plan(Sequential(len(dataset)), size)
        with (
            Loader(plan, fetch, _readers(options, recipe, dataset), World()) as loader,
            progress(f"packing {split}", len(dataset)) as show,
        ):
            _write(loader.epoch(0), hidden, record, show)
        with suppress(OSError):  # some network drives cannot
            sync_folder(hidden)
        if folder.is_dir():  # empty, or `_is_there` would have refused it
            folder.rmdir()
        hidden.rename(folder)
        with suppress(OSError):
            sync_folder(folder.parent)
        rate = len(dataset) / (time.perf_counter() - began)
        _log.info("packed %s: %d samples, %.0f a second", split, len(dataset), rate)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _readers(options: LoaderOptions, recipe: Recipe, dataset: object) -> LoaderOptions:
    """The run's own workers; where it has none, one a core."""
    options = replace(options, pin_memory=False, in_order=True, persistent_workers=False)
    if options.backend != "main" and options.num_workers:
        return options
    backend = backend_for(dataset, recipe)
    return LoaderOptions(backend, usable_cpus()) if usable_cpus() > 1 else LoaderOptions()


def backend_for(dataset: object, recipe: Recipe) -> Backend:
    """Threads where decoders release the interpreter lock, since processes copy pixels."""
    unlocked = recipe.decoder == "native" or str(getattr(dataset, "reader", "")).startswith(
        "torchvision"
    )
    return "thread" if unlocked else "process"


class _Plain:
    """A collate function: columns and fields as plain values, which any backend can hand over."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        done = self._encode(samples)
        for part in ("columns", "fields"):
            done[part] = {name: dict(vars(entry)) for name, entry in done[part].items()}
        return done


def _write(
    batches: Iterable[Batch],
    folder: Path,
    record: dict[str, object],
    show: Callable[..., None],
) -> None:
    writer: PackWriter | None = None
    done = 0
    try:
        for batch in batches:
            if batch["differs"]:
                row, reason = batch["differs"]
                raise _differs(int(batch.indices[row]), reason)
            fields = {name: Field(**field) for name, field in batch["fields"].items()}
            columns = {name: Column(**column) for name, column in batch["columns"].items()}
            writer = writer or PackWriter(folder, fields)
            try:
                writer.append(columns, fields)
            except DataError as error:
                raise _differs(int(batch.indices[0]), str(error)) from error
            done += len(batch.indices)
            show(done)
        assert writer is not None, "a dataset without samples"
        writer.finish(record)
    finally:
        if writer is not None:
            writer.close()


def _differs(row: int, reason: str) -> DataError:
    return DataError(f"sample {row} cannot be packed with those before it: {reason}")


def _try_out(
    fetch: Fetch, recipe: Recipe, folder: Path
) -> tuple[IntArray, list[dict[str, Any]], int]:
    """A few rows and samples, which show what cannot be packed, and the samples in a batch."""
    dataset = fetch.dataset
    rows = np.unique(np.linspace(0, len(dataset) - 1, _TRIED).astype(np.int64))
    try:
        with scope():
            samples = [fetch.fields.named(_still(dataset, int(row))) for row in rows]
    except DataError as error:
        raise DataError(f"{error}{_WAY_OUT}") from error
    _check_pictures(samples[0], recipe, dataset)
    steps = recipe.steps()
    done = recipe.collate()([steps(sample) if steps else sample for sample in samples])
    if done["differs"]:
        row, reason = done["differs"]
        raise _differs(int(rows[row]), reason)
    total = sum(len(column.numbers) for column in done["columns"].values())
    each = max(total // len(rows), 1)
    needed, free = each * len(dataset), shutil.disk_usage(folder.parent).free
    _log.info("packing %d samples into %s: about %s", len(dataset), folder, _size(needed))
    if needed > 1.2 * free:
        _refuse(
            folder,
            OSError(errno.ENOSPC, f"about {_size(needed)} are needed, and {_size(free)} are free"),
        )
    return rows, samples, min(max(_BATCH_BYTES // each, 1), _LARGEST_BATCH)


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _still(dataset: Any, row: int) -> Any:
    """A sample; one that is drawn at random is refused."""
    seeding = Seeding()
    try:
        sample = seeding.run(lambda: dataset[row])
    except OSError as error:
        raise DataError(f"sample {row}: {type(error).__name__}: {error}") from error
    if seeding.drawn:
        raise ConfigError(
            Problem(
                "data.packed",
                f"{type(dataset).__name__}.__getitem__ draws from "
                f"{' and '.join(seeding.drawn)}; packed, its samples are the same in every epoch. "
                "Draw in a transform instead",
            )
        )
    return sample


def _check_pictures(sample: object, recipe: Recipe, dataset: object) -> None:
    """Refuse a recipe that does not apply to the samples."""
    values = list(sample.values()) if isinstance(sample, dict) else []
    kind = type(dataset).__name__
    pictures = (tv_tensors.Image, EncodedImage)
    if recipe.size is not None and not any(isinstance(v, pictures) for v in values):
        raise ConfigError(
            Problem(
                "pack.size",
                f"{recipe.size}, but samples of {kind} hold no torchvision Image; "
                "set pack.size=null",
            )
        )
    encoded = any(isinstance(value, EncodedImage) for value in values)
    if recipe.format == "encoded" and not encoded:
        raise ConfigError(
            Problem(
                "pack.format",
                f"encoded, but {kind} gives no undecoded pictures (it takes no "
                "argument `lazy`); set pack.format=pixels",
            )
        )


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _refuse(folder, error)


def _refuse(folder: Path, error: OSError) -> NoReturn:
    causes = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EFBIG: "a file is larger than this process may write (ulimit -f)",
    }
    cause = causes.get(error.errno or 0, error.strerror or str(error))
    more = f" ({error.strerror})" if error.errno == errno.ENOSPC and error.strerror else ""
    raise DataError(
        f"the pack {str(folder)!r} cannot be written: {cause}{more}. Free some space, or set a "
        "smaller pack.size, pack.format=encoded, or another place (cache_dir, pack.out)"
    ) from error
