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
import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torchvision import tv_tensors
from torchvision.transforms import v2

from penstock.addons.packs.folder import (
    RECORD,
    VERSION,
    Column,
    Encode,
    Field,
    Pack,
    PackWriter,
    describe,
    is_pack,
    read_record,
)
from penstock.addons.packs.packed import write_answers
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
from penstock.loading.facts import Fields
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Plan, Request, is_stream
from penstock.order.samplers import Sequential
from penstock.order.seeding import Seeding, scope
from penstock.runs.identity import fingerprint_of
from penstock.terminal import progress, put
from penstock.transforms.image_decoding import DecodeResizeCenterCrop

_log = logging.getLogger(__name__)

# Batches are as large as this, so that memory does not grow with the size of samples: there are
# as many as workers have in hand, and they wait for the disk.
_BATCH_BYTES = 8 << 20
# Samples of a few bytes: more of them in a batch would show no progress.
_LARGEST_BATCH = 256


class Recipe:
    """What is done to samples before they are packed; a transform.

    Args:
        size: pixels of the shorter side of every picture; None leaves samples as they are.
        square: cut a square out of the middle after that.
        format: "pixels", or "encoded" for the files that pictures come from.

    Attributes:
        shrinks: what tells its samples from those of the dataset; empty if they stay the same.
    """

    keyed = True  # nothing is drawn

    def __init__(
        self,
        size: int | None = None,
        square: bool = True,
        format: Literal["pixels", "encoded"] = "pixels",
    ) -> None:
        self.size, self.format, self.shrinks = size, format, list[object]()
        self.decode: DecodeResizeCenterCrop | None = None
        if size is not None:
            cut = [v2.CenterCrop(size)] if square else []
            self._resize = v2.Compose([v2.Resize(size, antialias=True), *cut])
            self.decode = DecodeResizeCenterCrop(size) if square else None
            # Pixels differ by rounding from one decoder to another.
            self.shrinks = [size, square, self.decode and self.decode.decoder]

    def __call__(self, sample: Mapping[str, Any]) -> Any:
        files = {name: of for name, of in sample.items() if isinstance(of, EncodedImage)}
        if self.format == "encoded":
            return sample
        # Points and boxes have to move along, which torchvision's transforms do.
        moving = any(isinstance(value, tv_tensors.TVTensor) for value in sample.values())
        if files and self.decode is not None and not moving:
            return sample  # `Squares` decodes them, a batch at once
        whole = {**sample, **{name: file.decode() for name, file in files.items()}}
        return whole if self.size is None else self._resize(whole)


class Squares(Encode):
    """Samples to columns, with the files of pictures decoded: uint8 [size, size, 3] each.

    A batch in one call of C, straight into the column: one by one it takes half as long again.
    """

    def __init__(self, fields: Mapping[str, Field], decode: DecodeResizeCenterCrop) -> None:
        super().__init__(fields)
        self._decode = decode

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        columns, keys = super().__call__(samples), np.zeros(len(samples), np.uint64)
        for name in self.fields:
            if self.fields[name].kind == "file":
                files = [sample[name] for sample in samples]
                pixels = self._decode.decode_batch(files, keys, channels_last=True)
                assert pixels is not None, "files can always be decoded in a batch"
                shapes = np.array([pixels.shape[1:]] * len(files), np.int32)
                columns[name] = Column(pixels.reshape(-1), shapes)
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
            arguments of a dataset of a person's own; "" where nothing tells when it changes.
        files: access to an address.

    Raises:
        ConfigError: the dataset cannot be packed, or `out` holds something else.
        DataError: a sample is bad, or the pack cannot be written.
    """
    kind, reason = type(dataset).__name__, ""
    own = fingerprint or getattr(dataset, "fingerprint", "") or ""
    if is_stream(dataset) or getattr(dataset, "mixing", None) is not None:
        reason = f"{kind} has no rows of its own: a stream is only read forwards; of a mixture, "
        reason += "pack each source, and name the packs in dataset.sources"
    # A pack would be found again for ever, however its data has changed.
    elif not own or key == "":
        reason = f"{kind} has no `fingerprint`, which tells when its samples differ from the packed"
        reason += " ones; give it one (docs/own_dataset.md)"
    elif not len(dataset):
        reason = f"{kind} has no samples to pack"
    if reason:
        raise ConfigError(Problem("data.packed", reason))
    name = _hash(["pack", VERSION, key or own, recipe.format, *recipe.shrinks])
    # Samples that stay as they are keep their fingerprint, and so a run may go on with the pack.
    record = {
        "name": name,
        "split": split,
        "fingerprint": _hash(["packed", own, *recipe.shrinks]) if recipe.shrinks else own,
        "dataset": {"class": kind, "fingerprint": own},
        "recipe": [recipe.format, *recipe.shrinks],
    }
    fetch = Fetch(dataset, recipe, List(), 0, fields=names or Fields())
    write = partial(_write, fetch, record, options or LoaderOptions())
    folder = Path(cache_dir, "packed", name).expanduser().absolute()
    address = join(out, split) if out and is_remote(out) else ""
    files = files or Files()
    if out and not address:
        folder = Path(out, split).expanduser().absolute()
    there = is_pack(folder)
    # One file is asked for, as not every store may be listed.
    if address:
        there = files.remote.find([join(address, RECORD)])[0] is not None
    if there:
        root = files.remote.folder(address) if address else Root(folder)
        if read_record(root)["name"] != name:
            reason = f"{str(root)!r} holds other samples than these (another dataset, pack.size or "
            reason += "pack.format); delete it or choose another folder"
            raise ConfigError(Problem("pack.out", reason))
    # What is in the way is replaced below, and this may be somebody's own.
    elif out and not address and folder.is_dir() and any(folder.iterdir()):
        reason = f"{str(folder)!r} exists and is not a pack; choose another folder"
        raise ConfigError(Problem("pack.out", reason))
    else:
        generated_folder(folder, write, "cache_dir (or pack.out)", is_pack)
        # Made on this machine first: headers are written last, and a store takes files as a whole.
        if address:
            files.remote.send(folder, address, RECORD, "pack.out")
    return address or folder


def _hash(parts: list[object]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _write(fetch: Fetch, record: dict[str, Any], options: LoaderOptions, folder: Path) -> None:
    """Write a pack into an empty folder."""
    for left in folder.parent.glob(f"{folder.name.rpartition('-')[0].rpartition('-')[0]}-*"):
        if left != folder:  # of a process that was killed; this one has the lock
            shutil.rmtree(left, ignore_errors=True)
    dataset, split = fetch.dataset, record["split"]
    sample = _first(fetch)
    fields = describe(sample)
    encode, decode = Encode(dict(fields)), fetch.transform.decode
    if decode is not None:
        encode = Squares(dict(fields), decode)
        pictures = [name for name in fields if fields[name].kind == "file"]
        fields |= {name: Field(name, "tensor", "|u1", 3, "Image") for name in pictures}
    each = sum(len(column.numbers) for column in encode([sample]).values())
    size = min(_BATCH_BYTES // max(each, 1) + 1, _LARGEST_BATCH)
    plan = Plan(Sequential(len(dataset)), size)
    with (
        closing(PackWriter(folder, fields)) as writer,
        Loader(plan, replace(fetch, collate=encode), options, World()) as loader,
        progress(f"packing {split}", len(dataset)) as show,
    ):
        for batch in loader.epoch(0):
            writer.append(dict(batch))
            show(writer.count)
        writer.finish({**record, **write_answers(folder, dataset, fetch.fields)})


def _first(fetch: Fetch) -> dict[str, Any]:
    """The first sample, transformed; raises what shows that its dataset cannot be packed so."""
    row, kind, recipe = np.zeros(1, np.int64), type(fetch.dataset).__name__, fetch.transform
    sample = {name: values[0] for name, values in fetch(Request(0, 0, row, row, 1)).items()}
    seeding, types = Seeding(), {*map(type, sample.values())}
    # Read once more without the fetch, which gives draws a seed and so would hide them.
    with scope():
        seeding.run(lambda: fetch.dataset[0])
    if seeding.drawn:
        reason = f"{kind}.__getitem__ draws from {' and '.join(seeding.drawn)}; packed, its "
        reason += "samples are the same in every epoch. Draw in a transform instead"
        raise ConfigError(Problem("data.packed", reason))
    if recipe.format == "encoded" and EncodedImage not in types:
        reason = f"encoded, but {kind} gives no undecoded pictures (it takes no argument `lazy`); "
        raise ConfigError(Problem("pack.format", f"{reason}set pack.format=pixels"))
    if recipe.shrinks and types.isdisjoint({tv_tensors.Image, EncodedImage}):
        reason = f"{recipe.size}, but samples of {kind} hold no torchvision Image; set it to null"
        raise ConfigError(Problem("pack.size", reason))
    if not sample:
        raise DataError("the samples have no fields, so there is nothing to pack")
    return sample


def opened(split: Split) -> Any:
    """The pack of a split, given or to be made."""
    folder = split.config.data.packed
    node: dict[str, Any] = {
        "_target_": "penstock.addons.packs.packed.Packed",
        "folder": str(pack_of(split) if folder == "auto" else folder),
        "cache_dir": f"{split.config.cache_dir}/text",
    }
    return split.read(split.decodes, ("data.packed", node))


def pack_of(split: Split) -> Path | str:
    """The folder or address of the split's pack, which is made if it does not exist."""
    made: Path | str = options(split.config, "pack", split)
    return made


def packed(
    split: Split,
    /,
    size: Count | None = None,
    square: bool = True,
    format: Literal["pixels", "encoded"] = "pixels",
    out: str | None = None,
) -> Path | str:
    """As `pack_of`, of the section `pack`.

    Args:
        size, square, format: as in `Recipe`.
        out: folder or address for packs; None: in `cache_dir`, by fingerprint.
    """
    if format == "encoded" and size is not None:
        reason = f"{size} would decode the files that pack.format=encoded keeps"
        raise ConfigError(
            Problem("pack.size", f"{reason}; set pack.size=null or pack.format=pixels")
        )
    # Undecoded where the dataset can: squares are decoded in part, and `format=encoded` keeps
    # files.
    dataset, workers = split.read(lazy=True), split.loader_options(packing=True)
    # Threads where decoders release the interpreter's lock, since processes copy pixels.
    threads = str(getattr(dataset, "reader", "")).startswith("torchvision")
    how = replace(
        workers,
        backend="thread" if threads else "process",
        num_workers=workers.num_workers or usable_cpus(),
        pin_memory=False,
        # Rows keep their numbers: those of a pack are those of its dataset.
        in_order=True,
        persistent_workers=False,
    )
    mode, cache_dir = split.config.data.fingerprint, split.config.cache_dir
    return pack(
        dataset,
        split.name,
        Recipe(size, square, format),
        cache_dir,
        out,
        how,
        None if mode == "sizes" else fingerprint_of(dataset, mode),
        split.data.fields,
        split.cache_key(dataset),
        options(split.config, "files"),
    )


def run(config: Config) -> None:
    """Pack `config.split`."""
    data, names = DataParts(config, World()), [str(config.split)]
    if config.split == "both":
        names = [split.name for split in data.splits]
    for name in names:
        folder = pack_of(getattr(data, name))
        pack = Pack(folder, options(config, "files"))
        put(f"{name} {pack.count} samples {sum(pack.record['files'].values())} bytes {folder}")
