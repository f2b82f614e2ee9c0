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
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torchvision
from torchvision import tv_tensors
from torchvision.transforms import v2

from penstock.addons.packs.fields import Column, Encode, Field
from penstock.addons.packs.folder import RECORD, VERSION, Pack, PackWriter, is_pack, read_record
from penstock.addons.packs.packed import write_answers
from penstock.build.data import DataParts, Split
from penstock.config.schema import Config
from penstock.config.targets import options
from penstock.datasets.files import Files, generated_folder
from penstock.distributed.world import World, usable_cpus
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count
from penstock.files.paths import is_remote, join
from penstock.loading.encoded import EncodedImage
from penstock.loading.facts import Fields
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.keys import IntArray
from penstock.order.plan import Plan, is_stream
from penstock.order.samplers import Sequential
from penstock.order.seeding import Seeding, scope
from penstock.runs.identity import fingerprint_of
from penstock.terminal import progress, put
from penstock.transforms import native_images
from penstock.transforms.image_decoding import DecodeResizeCenterCrop

_log = logging.getLogger(__name__)

_TRIED = 8  # samples, evenly spread
_BATCH_BYTES = 8 << 20
_LARGEST_BATCH = 256
_WAY_OUT = (
    "\nA pack has every row of its dataset, whatever bad_samples.on_error says: repair the sample, "
    "or set data.packed=null. task=check data.packed=null lists all that cannot be read"
)

Backend = Literal["process", "thread"]


class CenterCrops(Encode):
    """Samples to columns, with encoded pictures decoded to [size, size, 3] in one call of C.

    The middle of a picture, as large as fits, is resized as by `DecodeResizeCenterCrop`.

    Raises:
        DataError: a file is not a picture.
        ConfigError: the native decoder was not built.
    """

    def __init__(self, size: int) -> None:
        self._step = DecodeResizeCenterCrop(size, size, decoder="native")

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        files = [name for name, value in samples[0].items() if isinstance(value, EncodedImage)]
        for number, sample in enumerate(samples):
            if [name for name, value in sample.items() if isinstance(value, EncodedImage)] != files:
                reason = f"it has no file of a picture in each of {', '.join(files)}"
                return {"columns": {}, "fields": {}, "differs": (number, reason)}
        rest = [{name: sample[name] for name in sample if name not in files} for sample in samples]
        done = super().__call__(rest)
        if done["differs"]:
            return done
        for name in files:
            done["columns"][name] = self._column([sample[name] for sample in samples])
            done["fields"][name] = Field(name, "tensor", "|u1", 3, "Image")
        for part in ("columns", "fields"):
            done[part] = {name: done[part][name] for name in samples[0]}
        return done

    def _column(self, files: list[EncodedImage]) -> Column:
        keys = np.zeros(len(files), np.uint64)
        pixels = self._step.decode_batch(files, keys, channels_last=True)
        assert pixels is not None, "files can always be decoded in a batch"
        return Column(pixels.reshape(-1), np.array([pixels.shape[1:]] * len(files), np.int32))


def fits(dataset: Any) -> bool:
    """Whether `CenterCrops` applies: encoded pictures, and no masks, points or boxes."""
    try:
        sample = dataset[0]
    except Exception:  # packing finds the error again, and reports it
        return False
    values = list(sample.values()) if isinstance(sample, dict) else []
    moving = any(isinstance(value, tv_tensors.TVTensor) for value in values)
    return any(isinstance(value, EncodedImage) for value in values) and not moving


@dataclass(frozen=True)
class Recipe:
    """The steps applied to a dataset's samples before they are packed.

    Attributes:
        size: pixels of the shorter side of every picture; None leaves samples as they are.
        square: cut a square out of the middle after that.
        format: "pixels", or "encoded" for the files that pictures come from.
        decoder: "reader" for the dataset's own and torchvision's resizing, or "native" for the
            decoder in C, which needs encoded pictures.
    """

    size: int | None = None
    square: bool = True
    format: Literal["pixels", "encoded"] = "pixels"
    decoder: Literal["reader", "native"] = "reader"

    def natively(self) -> Recipe | None:
        """This recipe with the native decoder; None where that was not built or does not apply."""
        able = self.size is not None and self.square and self.format == "pixels"
        built = native_images.module("jpeg") is not None
        return replace(self, decoder="native") if able and built else None

    def steps(self) -> v2.Compose | None:
        """The transform of a sample; None if it stays as it is."""
        if self.size is None or self.decoder == "native":
            return None
        steps = [v2.Resize(self.size, antialias=True)]
        return v2.Compose(steps + ([v2.CenterCrop(self.size)] if self.square else []))

    def collate(self) -> Encode:
        """The function that turns samples into columns."""
        return CenterCrops(self.size) if self.decoder == "native" and self.size else Encode()

    def name(self, fingerprint: str) -> str:
        """The name of a pack; other samples, another name."""
        return _hash(["pack", VERSION, fingerprint, self.format, *self._shrunk()])

    def fingerprint(self, fingerprint: str) -> str:
        """The fingerprint of the packed dataset; the dataset's own where samples stay the same."""
        return fingerprint if self.size is None else _hash(["packed", fingerprint, *self._shrunk()])

    def _shrunk(self) -> list[object]:
        if self.size is None:
            return []
        # Pixels differ by rounding from one decoder to another.
        return [self.size, self.square, *(["native"] if self.decoder == "native" else [])]


def _hash(parts: list[object]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


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
    kind = type(dataset).__name__
    named = fingerprint if key is None or key else ""
    fingerprint = str((getattr(dataset, "fingerprint", "") if named is None else named) or "")
    reason = ""
    if is_stream(dataset):
        reason = f"{kind} is a stream, which can only be read forwards; packing is for rows"
    elif not fingerprint:
        reason = f"{kind} has no `fingerprint`, which tells when its samples differ from the packed"
        reason += " ones; give it one (docs/own_dataset.md)"
    if reason:
        raise ConfigError(Problem("data.packed", reason))
    if not len(dataset):
        raise DataError(f"{kind} has no samples to pack")
    name, fields = recipe.name(key or fingerprint), names or Fields()
    record = {"name": name, "split": split, "dataset": {"class": kind, "fingerprint": fingerprint}}
    fetch = Fetch(dataset, recipe.steps(), _Plain(recipe.collate()), 0, fields=fields)
    write = partial(_write, fetch, recipe, record, options or LoaderOptions())
    remote = out is not None and is_remote(out)
    if out is None:
        folder = Path(cache_dir, "packed", name).expanduser().absolute()
    elif remote:
        address = join(out, split)
        files = files or Files()
        if files.remote.find([join(address, RECORD)])[0] is not None:
            _check_name(read_record(files.remote.folder(address)), name, address)
            return address
        # A folder of this machine, which a killed run leaves for the next.
        folder = Path(cache_dir, "sending", name).expanduser().absolute()
    else:
        folder = Path(out, split).expanduser().absolute()
        if is_pack(folder):
            _check_name(Pack(folder).record, name, str(folder))
        elif folder.exists() and any(folder.iterdir()):
            reason = f"{str(folder)!r} exists and is not a pack; choose another folder"
            raise ConfigError(Problem("pack.out", reason))
    generated_folder(folder, write, "cache_dir (or pack.out)", is_pack)
    if not remote:
        return folder
    assert files is not None
    files.remote.send(folder, address, RECORD, "pack.out")
    shutil.rmtree(folder)
    return address


def _check_name(record: dict[str, Any], name: str, folder: str) -> None:
    if record.get("name") != name:
        reason = f"{folder!r} holds other samples than these (another dataset, pack.size or "
        reason += "pack.format); delete it or choose another folder"
        raise ConfigError(Problem("pack.out", reason))


def _write(
    fetch: Fetch, recipe: Recipe, record: dict[str, Any], options: LoaderOptions, folder: Path
) -> None:
    """Write a pack into an empty folder."""
    for left in folder.parent.glob(f"{folder.name.rpartition('-')[0].rpartition('-')[0]}-*"):
        if left != folder:  # of a process that was killed; this one has the lock
            shutil.rmtree(left, ignore_errors=True)
    dataset, split = fetch.dataset, record["split"]
    rows, samples, size, fields = _try_out(fetch, recipe, folder)
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    if recipe.decoder == "native":
        versions["jpeg"] = native_images.module("jpeg").library
    record |= {
        "fingerprint": recipe.fingerprint(record["dataset"]["fingerprint"]),
        "recipe": vars(recipe),
        "versions": versions,
        **write_answers(folder, dataset, fetch.fields, rows, samples),
    }
    options = replace(options, pin_memory=False, in_order=True, persistent_workers=False)
    if options.backend == "main" or not options.num_workers:
        cores, backend = usable_cpus(), backend_for(dataset, recipe)
        options = LoaderOptions(backend, cores) if cores > 1 else LoaderOptions()
    began, plan = time.perf_counter(), Plan(Sequential(len(dataset)), size)
    writer, done = PackWriter(folder, fields), 0
    try:
        with (
            Loader(plan, fetch, options, World()) as loader,
            progress(f"packing {split}", len(dataset)) as show,
        ):
            for batch in loader.epoch(0):
                if batch["differs"]:
                    row, reason = batch["differs"]
                    raise _differs(int(batch.indices[row]), reason)
                own = {name: Field(**field) for name, field in batch["fields"].items()}
                columns = {name: Column(**column) for name, column in batch["columns"].items()}
                try:
                    writer.append(columns, own)
                except DataError as error:
                    raise _differs(int(batch.indices[0]), str(error)) from error
                done += len(batch.indices)
                show(done)
        writer.finish(record)
    finally:
        writer.close()
    rate = len(dataset) / (time.perf_counter() - began)
    _log.info("packed %s: %d samples, %.0f a second", split, len(dataset), rate)


def backend_for(dataset: object, recipe: Recipe) -> Backend:
    """Threads where decoders release the interpreter lock, since processes copy pixels."""
    reader = str(getattr(dataset, "reader", ""))
    unlocked = recipe.decoder == "native" or reader.startswith("torchvision")
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


def _differs(row: int, reason: str) -> DataError:
    return DataError(f"sample {row} cannot be packed with those before it: {reason}")


def _try_out(
    fetch: Fetch, recipe: Recipe, folder: Path
) -> tuple[IntArray, list[Any], int, dict[str, Field]]:
    """A few rows and samples, which show what cannot be packed; the samples in a batch; fields."""
    dataset = fetch.dataset
    rows = np.unique(np.linspace(0, len(dataset) - 1, _TRIED).astype(np.int64))
    try:
        with scope():
            samples = [fetch.fields.named(_still(dataset, int(row))) for row in rows]
    except DataError as error:
        raise DataError(f"{error}{_WAY_OUT}") from error
    values = list(samples[0].values()) if isinstance(samples[0], dict) else []
    encoded = any(isinstance(value, EncodedImage) for value in values)
    pictures = encoded or any(isinstance(value, tv_tensors.Image) for value in values)
    kind = type(dataset).__name__
    if recipe.size is not None and not pictures:
        reason = f"{recipe.size}, but samples of {kind} hold no torchvision Image; set it to null"
        raise ConfigError(Problem("pack.size", reason))
    if recipe.format == "encoded" and not encoded:
        reason = f"encoded, but {kind} gives no undecoded pictures (it takes no argument `lazy`); "
        raise ConfigError(Problem("pack.format", f"{reason}set pack.format=pixels"))
    steps = recipe.steps()
    done = recipe.collate()([steps(sample) if steps else sample for sample in samples])
    if done["differs"]:
        row, reason = done["differs"]
        raise _differs(int(rows[row]), reason)
    each = max(sum(len(column.numbers) for column in done["columns"].values()) // len(rows), 1)
    needed, free = each * len(dataset) / 1e9, shutil.disk_usage(folder.parent).free / 1e9
    _log.info("packing %d samples: about %.2f GB", len(dataset), needed)
    if needed > 1.2 * free:
        raise DataError(
            f"a pack in {str(folder.parent)!r} takes about {needed:.1f} GB, and {free:.1f} GB are "
            "free. Free some space, or set a smaller pack.size, pack.format=encoded, or another "
            "place (cache_dir, pack.out)."
        )
    return rows, samples, min(max(_BATCH_BYTES // each, 1), _LARGEST_BATCH), done["fields"]


def _still(dataset: Any, row: int) -> Any:
    """A sample; one that is drawn at random is refused."""
    seeding = Seeding()
    try:
        sample = seeding.run(lambda: dataset[row])
    except OSError as error:
        raise DataError(f"sample {row}: {type(error).__name__}: {error}") from error
    if seeding.drawn:
        reason = f"{type(dataset).__name__}.__getitem__ draws from {' and '.join(seeding.drawn)}; "
        reason += "packed, its samples are the same in every epoch. Draw in a transform instead"
        raise ConfigError(Problem("data.packed", reason))
    return sample


_NOT_NATIVE = (
    "native crops squares from image files, which needs pack.size, pack.square=true, "
    "pack.format=pixels, the native decoder (libjpeg-dev and a C compiler when Penstock is "
    "installed), and a dataset that takes `lazy` and has no points or boxes; set it to auto or "
    "reader"
)


def opened(split: Split) -> Any:
    """The pack of a split, given or to be made."""
    folder, config = split.config.data.packed, split.config
    out = str(config.pack.get("out"))
    if folder == "auto" and is_remote(out):
        reason = (
            f"{out!r} is an address, where task=pack writes; then set dataset=packed and "
            f"dataset.folder={out}. data.packed=auto keeps packs on this machine"
        )
        raise ConfigError(Problem("pack.out", reason))
    node: dict[str, Any] = {
        "_target_": "penstock.addons.packs.packed.Packed",
        "folder": str(pack_of(split) if folder == "auto" else folder),
        "cache_dir": f"{config.cache_dir}/text",
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
    decoder: Literal["auto", "native", "reader"] = "auto",
    out: str | None = None,
) -> Path | str:
    """As `pack_of`, of the section `pack`.

    Args:
        size, square, format: as in `Recipe`.
        decoder: of squares; "auto" is "native" where it applies.
        out: folder or address for packs; None: in `cache_dir`, by fingerprint.
    """
    if format == "encoded" and size is not None:
        reason = f"{size} would decode the files that pack.format=encoded keeps"
        raise ConfigError(
            Problem("pack.size", f"{reason}; set pack.size=null or pack.format=pixels")
        )
    recipe = Recipe(size, square, format)
    squares = None if decoder == "reader" else recipe.natively()
    dataset = split.read(lazy=format == "encoded" or squares is not None)
    if is_stream(dataset) or getattr(dataset, "mixing", None) is not None:
        key = "task" if split.config.task == "pack" else "data.packed"
        reason = "is for datasets with rows; of a mixture, pack each source, and name the packs"
        raise ConfigError(Problem(key, f"{reason} in dataset.sources"))
    if squares is not None and fits(dataset):
        recipe = squares
    elif decoder == "native":
        raise ConfigError(Problem("pack.decoder", _NOT_NATIVE))
    elif squares is not None and getattr(dataset, "lazy", False):
        dataset = split.read(lazy=False)
    # "auto" would look at the transform, which may need this very dataset's statistics.
    backend, suited = split.config.loader.backend, backend_for(dataset, recipe)
    if backend != "ray" and (suited == "thread" or backend == "auto"):
        backend = suited
    mode = split.config.data.fingerprint
    return pack(
        dataset,
        split.name,
        recipe,
        split.config.cache_dir,
        out,
        replace(split.loader_options(packing=True), backend=backend),
        None if mode == "sizes" else fingerprint_of(dataset, mode, split.config.cache_dir),
        split.data.fields,
        split.cache_key(dataset),
        options(split.config, "files"),
    )


def run(config: Config) -> None:
    """Pack `config.split`."""
    data = DataParts(config, World())
    splits = [str(config.split)]
    if config.split == "both":
        splits = [split.name for split in data.splits]
    for split in splits:
        folder = pack_of(getattr(data, split))
        pack = Pack(folder, options(config, "files"))
        size = sum(pack.record["files"].values())
        put(f"{split} {pack.count} samples {size} bytes {folder}")
