"""Making a pack: what is done to samples before, and how they are written; `task=pack`.

    python run.py task=pack dataset=image_folder dataset.root=FOLDER pack.size=256

Packs into `cache_dir`, where `data.packed=auto` finds it, or into `pack.out`, unless it exists; to
an address by way of a folder in `cache_dir`. The loader's workers read every sample once, in order,
and this process writes them: about 8 MiB a batch ahead, for a dataset of any size. A pack is there
whole or not at all; of several processes one writes, and the others wait.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from torchvision import tv_tensors
from torchvision.transforms import v2

from penstock.addons.packs.folder import (
    RECORD,
    TABLE,
    VERSION,
    Column,
    Field,
    Pack,
    PackWriter,
    column,
    describe,
    read_record,
)
from penstock.build.data import DataParts, Split
from penstock.config.schema import Config
from penstock.config.targets import options
from penstock.datasets.files import Files, Root, generated_folder
from penstock.distributed.world import World, usable_cpus
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count
from penstock.files.paths import is_remote, join
from penstock.loading.collate import List
from penstock.loading.encoded import EncodedImage
from penstock.loading.facts import Fields, classes_of, columns_of, facts_of, table_of
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Plan, Request, is_stream
from penstock.order.samplers import Sequential
from penstock.order.seeding import Seeding, scope
from penstock.runs.identity import fingerprint_of
from penstock.terminal import progress, put
from penstock.transforms.image_decoding import DecodeResizeCenterCrop

# Batches are as large as this, so that memory does not grow with the size of samples: there are
# as many as workers have in hand, and they wait for the disk.
_BATCH_BYTES = 8 << 20
# Samples of a few bytes: more of them in a batch would show no progress.
_LARGEST_BATCH = 256


class Recipe:
    """What is done to samples before they are packed; a transform.

    Args:
        size: pixels of the side of every picture, the middle square of it; None leaves samples as
            they are.
        format: "pixels", or "encoded" for the files that pictures come from.

    Attributes:
        shrinks: what tells its samples from those of the dataset; empty if they stay the same.
        fields: that all samples have; None before the first one.
    """

    keyed = True  # nothing is drawn

    def __init__(
        self, size: int | None = None, format: Literal["pixels", "encoded"] = "pixels"
    ) -> None:
        self.size, self.format, self.shrinks = size, format, list[object]()
        self.fields: dict[str, Field] | None = None
        self.decode = DecodeResizeCenterCrop(size) if size is not None else None
        if self.decode:
            self._resize = v2.Compose([v2.Resize(size, antialias=True), v2.CenterCrop(size)])
            # Pixels differ by rounding from one decoder to another. True: squares.
            self.shrinks = [size, True, self.decode.decoder]

    def __call__(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        """The sample to be packed; DataError if its fields are not those of the others."""
        # Points and boxes have to move along, which torchvision's transforms do. Files alone stay
        # files where squares are wanted: `encode` decodes them, a batch at once.
        moving = any(isinstance(value, tv_tensors.TVTensor) for value in sample.values())
        if self.format == "pixels" and (moving or self.decode is None):
            sample = {
                name: value.decode() if isinstance(value, EncodedImage) else value
                for name, value in sample.items()
            }
            if self.size is not None:
                sample = self._resize(sample)
        now = describe(sample)
        was = now if self.fields is None else self.fields
        # Numbers of another type, or a field more, would be stored as those of the first sample
        # are, or be lost, without an error.
        unlike = [name for name in {**was, **now} if now.get(name) != was.get(name)]
        if unlike:
            raise DataError(
                f"cannot be packed with those before it: field {unlike[0]!r} is "
                f"{now.get(unlike[0])} and was {was.get(unlike[0])} before"
            )
        return sample


def encode(
    fields: Mapping[str, Field], decode: DecodeResizeCenterCrop | None, samples: Sequence[Any]
) -> dict[str, Any]:
    """Samples with these fields to a `Column` for each: a collate function.

    Args:
        decode: makes squares of the files of pictures, uint8 [size, size, 3], a batch in one call
            of C, straight into the column: one by one it takes half as long again.
    """
    columns, keys = dict[str, Any](), np.zeros(len(samples), np.uint64)
    for name, field in fields.items():
        values = [sample[name] for sample in samples]
        if decode is None or field.kind != "file":
            columns[name] = column(field, values)
        else:
            pixels: Any = decode.decode_batch(values, keys, channels_last=True)
            columns[name] = Column(
                pixels.reshape(-1), np.array([pixels.shape[1:]] * len(values), np.int32)
            )
    return columns


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
        options: of the workers; None: this process reads.
        fingerprint: of the dataset; None takes its own.
        names: for samples that are not dicts.
        key: by which the pack is found again, other than by the fingerprint: with the code and the
            arguments of your own dataset; "" where nothing tells when it changes.
        files: access to an address.

    Raises:
        ConfigError: the dataset cannot be packed, or `out` holds something else.
        DataError: a sample is bad, or the pack cannot be written.
    """
    kind, mixing = type(dataset).__name__, getattr(dataset, "mixing", None)
    rowless = is_stream(dataset) or mixing is not None
    own = fingerprint or getattr(dataset, "fingerprint", "") or ""
    _refuse(
        (
            rowless,
            "data.packed",
            f"{kind} has no rows of its own: a stream is only read forwards; of a mixture, pack "
            "each source, and name the packs in dataset.sources",
        ),
        # A pack would be found again for ever, however its data has changed.
        (
            not own or key == "",
            "data.packed",
            f"{kind} has no `fingerprint`, which tells when its samples differ from the packed "
            "ones; give it one (docs/own_dataset.md)",
        ),
        (
            not (rowless or len(dataset)),
            "data.packed",
            f"{kind} has no samples in the split {split!r}, so there is nothing to pack; correct "
            "its files or its filter",
        ),
    )
    name = _hash(["pack", VERSION, key or own, recipe.format, *recipe.shrinks])
    # Samples that stay as they are keep their fingerprint, and so a run may go on with the pack.
    record = {
        "name": name,
        "split": split,
        "fingerprint": _hash(["packed", own, *recipe.shrinks]) if recipe.shrinks else own,
        "dataset": {"class": kind, "fingerprint": own},
        "recipe": [recipe.format, *recipe.shrinks],
    }
    fetch, files = Fetch(dataset, recipe, List(), 0, fields=names or Fields()), files or Files()
    folder = Path(cache_dir, "packed", name).expanduser().absolute()
    address = join(out, split) if out and is_remote(out) else ""
    if out and not address:
        folder = Path(out, split).expanduser().absolute()
        # What is in the way would be replaced, and this may be somebody's own.
        _refuse(
            (
                folder.is_dir() and any(folder.iterdir()) and not (folder / RECORD).is_file(),
                "pack.out",
                f"{str(folder)!r} exists and is not a pack; choose another folder",
            )
        )
    # One file is asked for, as not every store may be listed.
    if not address or files.remote.find([join(address, RECORD)])[0] is None:
        generated_folder(
            folder,
            partial(_write, fetch, record, options or LoaderOptions()),
            "cache_dir (or pack.out)",
            lambda made: (made / RECORD).is_file(),
        )
        # Made on this machine first: headers are written last, and a store takes files as a whole.
        if address:
            files.remote.send(folder, address, RECORD, "pack.out")
    root = files.remote.folder(address) if address else Root(folder)
    _refuse(
        (
            read_record(root)["name"] != name,
            "pack.out",
            f"{str(root)!r} holds other samples than these (another dataset, pack.size or "
            "pack.format); delete it or choose another folder",
        )
    )
    return address or folder


def _refuse(*problems: tuple[bool, str, str]) -> None:
    """Raise ConfigError for the first of (whether it applies, key, message) that applies."""
    for applies, key, message in problems:
        if applies:
            raise ConfigError(Problem(key, message))


def _hash(parts: list[object]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _write(fetch: Fetch, record: dict[str, Any], options: LoaderOptions, folder: Path) -> None:
    """Write a pack into an empty folder."""
    # Of processes that were killed; this one has the lock.
    for left in {*folder.parent.glob(f"{folder.name.rsplit('-', 2)[0]}-*")} - {folder}:
        shutil.rmtree(left, ignore_errors=True)
    dataset, recipe, sample = fetch.dataset, fetch.transform, _first(fetch)
    fields = recipe.fields = describe(sample)
    collate = partial(encode, fields, recipe.decode)
    stored = {
        name: Field(name, "tensor", "|u1", 3, "Image")
        if field.kind == "file" and recipe.decode is not None
        else field
        for name, field in fields.items()
    }
    each = sum(len(column.numbers) for column in collate([sample]).values())
    plan = Plan(Sequential(len(dataset)), min(_BATCH_BYTES // max(each, 1) + 1, _LARGEST_BATCH))
    writer = PackWriter(folder, stored)
    with (
        Loader(plan, replace(fetch, collate=collate), options, World()) as loader,
        progress(f"packing {record['split']}", len(dataset)) as show,
    ):
        for batch in loader.epoch(0):
            writer.append(dict(batch))
            show(writer.count)
    writer.finish({**record, **_write_answers(folder, dataset, fetch.fields)})


def _write_answers(folder: Path, dataset: Any, fields: Fields) -> dict[str, Any]:
    """Write what `dataset` tells besides its samples; returns the entries of pack.json.

    Raises:
        DataError: a column of its table cannot be packed.
    """
    import pandas as pd
    import pyarrow as pa

    table, path = table_of(dataset, fields), getattr(dataset, "path", None)
    whole = pd.DataFrame(index=range(len(dataset))) if table is None else table
    more = {
        "length": columns_of(dataset).get("length"),
        "path": [*map(path, range(len(dataset)))] if callable(path) else None,
    }
    new = {name: of for name, of in more.items() if of is not None and name not in whole}
    try:
        # Feather keeps no index, and rows are numbered as samples are.
        whole.reset_index(drop=True).assign(**new).to_feather(folder / TABLE)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"the dataset's metadata cannot be packed: {str(error).splitlines()[0]}. Make its "
            "columns numbers, texts or categories."
        ) from error
    return {
        "reader": getattr(dataset, "reader", None),
        "facts": facts_of(dataset, fields),
        "classes": classes_of(dataset),
        "text": callable(getattr(dataset, "text_lengths", None)),
    }


def _first(fetch: Fetch) -> dict[str, Any]:
    """The first sample, transformed; raises what shows that its dataset cannot be packed so."""
    row, kind, recipe = np.zeros(1, np.int64), type(fetch.dataset).__name__, fetch.transform
    sample = {name: values[0] for name, values in fetch(Request(0, 0, row, row, 1)).items()}
    seeding, types = Seeding(), {*map(type, sample.values())}
    # Read once more without the fetch, which gives draws a seed and so would hide them.
    with scope():
        seeding.run(lambda: fetch.dataset[0])
    _refuse(
        (
            bool(seeding.drawn),
            "data.packed",
            f"{kind}.__getitem__ draws from {' and '.join(seeding.drawn)}; packed, its samples are "
            "the same in every epoch. Draw in a transform instead",
        ),
        (
            recipe.format == "encoded" and EncodedImage not in types,
            "pack.format",
            f"encoded, but {kind} gives no undecoded pictures (it takes no argument `lazy`); set "
            "pack.format=pixels",
        ),
        (
            bool(recipe.shrinks) and types.isdisjoint({tv_tensors.Image, EncodedImage}),
            "pack.size",
            f"{recipe.size}, but samples of {kind} hold no torchvision Image; set it to null",
        ),
        (not sample, "data.packed", "the samples have no fields, so there is nothing to pack"),
    )
    return sample


def opened(split: Split) -> Any:
    """The pack of a split, given or to be made."""
    folder = split.config.data.packed
    node = {
        "_target_": "penstock.addons.packs.folder.Packed",
        "folder": str(pack_of(split) if folder == "auto" else folder),
    }
    return split.read(split.decodes, ("data.packed", node))


def pack_of(split: Split) -> Path | str:
    """The folder or address of the split's pack, which is made if it does not exist."""
    return cast(Path | str, options(split.config, "pack", split))


def packed(
    split: Split,
    /,
    size: Count | None = None,
    format: Literal["pixels", "encoded"] = "pixels",
    out: str | None = None,
) -> Path | str:
    """As `pack_of`, of the section `pack`.

    Args:
        size, format: as in `Recipe`.
        out: folder or address for packs; None: in `cache_dir`, by fingerprint.
    """
    _refuse(
        (
            format == "encoded" and size is not None,
            "pack.size",
            f"{size} would decode the files that pack.format=encoded keeps; set pack.size=null or "
            "pack.format=pixels",
        )
    )
    # Undecoded where the dataset can: squares are decoded in part, and `format=encoded` keeps
    # files.
    dataset, workers = split.read(lazy=True), split.loader_options(packing=True)
    how = replace(
        workers,
        # Threads where decoders release the interpreter's lock, since processes copy pixels.
        backend="thread"
        if str(getattr(dataset, "reader", ""))[:11] == "torchvision"
        else "process",
        num_workers=workers.num_workers or usable_cpus(),
        pin_memory=False,
        # Rows keep their numbers: those of a pack are those of its dataset.
        in_order=True,
        persistent_workers=False,
    )
    return pack(
        dataset,
        split.name,
        Recipe(size, format),
        split.config.cache_dir,
        out,
        how,
        None
        if (mode := split.config.data.fingerprint) == "sizes"
        else fingerprint_of(dataset, mode),
        split.data.fields,
        split.cache_key(dataset),
        options(split.config, "files"),
    )


def run(config: Config) -> None:
    """Pack `config.split`."""
    data, name = DataParts(config, World()), str(config.split)
    for split in data.splits if name == "both" else [getattr(data, name)]:
        pack = Pack(folder := pack_of(split), options(config, "files"))
        put(f"{split.name} {pack.count} samples {pack.files.sizes.sum()} bytes {folder}")
