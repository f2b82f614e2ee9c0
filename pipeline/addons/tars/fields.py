"""Parts of a tar sample as fields, by their endings.

    ending                       value
    jpg, jpeg, png, webp, gif    Image, uint8 [3, H, W]; an EncodedImage if `lazy`
    cls, id, index               int
    txt, text                    str
    json                         its content
    npy                          tensor; floats become float32
    pyd, pkl, pickle, pt, pth    refused: pickles run any code when they are read
    others                       bytes

Of "seg.png" the last ending counts.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.addons.tars.archive import Dots
from penstock.datasets.arrays import not_finite, plain_numbers
from penstock.datasets.reading.base import Sample
from penstock.datasets.reading.image import decode_image, undecoded
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Limits

IMAGES = ("jpg", "jpeg", "png", "webp", "gif")
NUMBERS = ("cls", "id", "index")
TEXTS = ("txt", "text")
PICKLES = ("pyd", "pkl", "pickle", "pt", "pth")

_NAMES = {**dict.fromkeys(IMAGES, "image"), "cls": "label", "txt": "text"}


_DOTS = (
    "If names of samples have dots in them, set dataset.dots=last: a name ends at its last dot. If "
    "these are parts of one sample, set dataset.dots=first."
)
_log = logging.getLogger(__name__)


class TarField(NamedTuple):
    """A field of the samples."""

    name: str
    endings: tuple[str, ...]  # of its part; any of them will do


def choose_fields(
    fields: Mapping[str, str | None] | None,
    parts: Sequence[str],
    where: str,
    dots: Dots | None,
    warns: bool,
) -> list[TarField]:
    """The fields of the samples.

    Args:
        fields: field -> ending, or several as "jpg;png"; null for one named as the field. None
            makes a field of each of `parts`: `image` of jpg, `label` of cls, `seg` of seg.png.
        parts: endings of the first sample.
        where: the first sample, for messages.
        dots: at which names end; None if nobody has said so: "first".
        warns: tell where names could end elsewhere.

    Raises:
        ConfigError: two parts would be one field, a field would be a pickle, or names of samples
            seem to have dots in them.
    """
    inner = [part for part in parts if "." in part]
    if inner and fields is None and dots is None:
        has = f"{where} has {', '.join(inner[:10])} after the first dot of a name."
        if any(part[0].isdigit() for part in inner):  # as of 0.5 or 12.30
            raise ConfigError(Problem("dataset.dots", f"{has} {_DOTS}"))
        if warns:
            _log.warning("%s They are parts of one sample. %s", has, _DOTS)
    if fields is None:
        asked = [TarField(_own_name(ending), (ending,)) for ending in parts]
    else:
        asked = [
            TarField(name, tuple(part.strip().lower() for part in (endings or name).split(";")))
            for name, endings in fields.items()
        ]
    chosen: dict[str, TarField] = {}
    for field in asked:
        pickles = [ending for ending in field.endings if ending.rpartition(".")[2] in PICKLES]
        if pickles:
            reason = (
                f"{where} has a part {pickles[0]!r}, which is a pickle and may run any code when "
                "it is read. Make the archives with npy or json, or name the other parts: "
                "dataset.fields={image: jpg, label: cls}"
            )
            raise ConfigError(Problem("dataset.fields", reason))
        other = chosen.setdefault(field.name, field)
        if other is not field:
            first, second = other.endings[0], field.endings[0]
            reason = (
                f"{where} has {first!r} and {second!r}, which would both be {field.name!r}; name "
                f"them: dataset.fields={{{field.name}: {first}, other: {second}}}. {_DOTS}"
            )
            raise ConfigError(Problem("dataset.fields", reason))
    return asked


def _own_name(ending: str) -> str:
    first, dot, _ = ending.rpartition(".")
    return first.replace(".", "_") if dot else _NAMES.get(ending, ending)


def make_fields(
    parts: Mapping[str, bytes],
    fields: Sequence[TarField],
    first: str,
    where: str,
    reader: str,
    limits: Limits,
    lazy: bool = False,
) -> Sample:
    """The fields of one sample.

    Args:
        parts: ending -> content.
        first: the first sample, whose parts all others have; "" where parts may be left over.
        where: the sample, for messages.
        reader: of images.
        limits: of images.
        lazy: leave images undecoded.

    Raises:
        DataError: a part is missing, left over or damaged.
    """
    sample: Sample = {}
    for field in fields:
        ending = next((end for end in field.endings if end in parts), None)
        if ending is None:
            raise DataError(
                f"{where} has no part {' or '.join(field.endings)!r}, which "
                f"{first or 'another sample'} has (it has {', '.join(parts)}). Add it, or take the "
                "sample out; the files of a sample have to stand together in the archive. If names "
                "of samples have dots in them, set dataset.dots=last."
            )
        shown = f"{where}, part {ending!r}"
        sample[field.name] = _value(parts[ending], ending, shown, reader, limits, lazy)
    known = {ending for field in fields for ending in field.endings}
    unknown = [ending for ending in parts if ending not in known]
    if first and unknown:
        raise DataError(
            f"{where} has a part {unknown[0]!r}, which {first} has not. Add it there, "
            "take it out here, or say with dataset.fields which parts are wanted. If names of "
            "samples have dots in them, set dataset.dots=last."
        )
    return sample


def _value(content: bytes, ending: str, where: str, reader: str, limits: Limits, lazy: bool) -> Any:
    kind = ending.rpartition(".")[2]
    if kind in IMAGES:
        return (undecoded if lazy else decode_image)(content, where, reader, limits)
    decode, expected = _DECODERS.get(kind, (bytes, "content"))
    try:
        return decode(content)
    except _DAMAGE as error:
        raise DataError(
            f"{where} ({len(content)} bytes) is not {expected}: {error}. Repair it or take the "
            "sample out."
        ) from error


# Errors of `json`, `int` and numpy over content that does not fit its ending.
_DAMAGE = (ValueError, EOFError, RecursionError, SyntaxError, TypeError, MemoryError)


def _whole(content: bytes) -> int:
    value = int(content.decode("ascii"))
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} does not fit into int64")
    return value


def _array(content: bytes) -> torch.Tensor:
    values = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    if (position := not_finite(values)) is not None:
        at = position[0] if len(position) == 1 else position
        raise ValueError(f"value {at} is {values[tuple(position)]}, which is not finite")
    return torch.from_numpy(plain_numbers(values))


# Ending -> how its content is decoded, and what it should be, for messages.
_DECODERS: dict[str, tuple[Callable[[bytes], object], str]] = {
    **dict.fromkeys(NUMBERS, (_whole, "a whole number")),
    **dict.fromkeys(TEXTS, (lambda content: content.decode("utf-8"), "UTF-8 text")),
    "json": (json.loads, "JSON"),
    "npy": (_array, "a usable array of numbers"),
}


def check_label(label: object, classes: Sequence[str], where: str) -> None:
    """Raise DataError for a whole number that is none of `classes`, if these are known."""
    if classes and isinstance(label, int) and not 0 <= label < len(classes):
        raise DataError(
            f"{where}: label {label} is none of the {len(classes)} classes. Correct it, or name "
            "all classes in dataset.classes."
        )
