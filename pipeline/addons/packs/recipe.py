"""The recipe of a pack: how samples are made smaller, decoded and turned into columns; `task=pack`.

    python run.py task=pack dataset=image_folder dataset.root=FOLDER pack.size=256

Packs into `cache_dir`, where `data.packed=auto` finds it, or into `pack.out`, unless it exists;
to an address by way of a folder in `cache_dir`. Prints a line a split: samples, bytes, folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torchvision import tv_tensors
from torchvision.transforms import v2

from penstock.addons.packs.fields import Column, Encode, Field
from penstock.addons.packs.folder import VERSION, Pack
from penstock.build.data import DataParts, Split
from penstock.config.schema import Config
from penstock.config.targets import options
from penstock.distributed.world import World
from penstock.errors import ConfigError, Problem
from penstock.files.limits import Count
from penstock.files.paths import is_remote
from penstock.loading.encoded import EncodedImage
from penstock.order.plan import is_stream
from penstock.runs.identity import fingerprint_of
from penstock.terminal import put
from penstock.transforms import native_images
from penstock.transforms.image_decoding import DecodeResizeCenterCrop


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
    from penstock.addons.packs.packing import backend_for, pack

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
