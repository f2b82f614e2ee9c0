"""Parts of a tar sample as the fields that a sample holds, by their endings.

    ending                       value
    jpg, jpeg, png, webp, gif    Image, uint8 [3, H, W]
    cls, id, index               int
    txt, text                    str
    json                         what it says
    npy                          tensor; floats become float32
    pyd, pkl, pickle, pt, pth    refused: pickles run any code when they are read
    others                       bytes

Of "seg.png" the last ending counts.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datasets.reading.image import decode_image
from datasets.reading.plain_tensor import plain_tensor
from pipeline.errors import ConfigError, DataError, Problem

IMAGES = ("jpg", "jpeg", "png", "webp", "gif")
NUMBERS = ("cls", "id", "index")
TEXTS = ("txt", "text")
PICKLES = ("pyd", "pkl", "pickle", "pt", "pth")

_NAMES = {**dict.fromkeys(IMAGES, "image"), "cls": "label", "txt": "text"}


@dataclass(frozen=True)
class TarField:
    """A field of the samples.

    Attributes:
        name: of the field.
        endings: of its part; any of them will do.
    """

    name: str
    endings: tuple[str, ...]


def choose_fields(
    fields: Mapping[str, str | None] | None, parts: Sequence[str], where: str
) -> list[TarField]:
    """The fields of the samples.

    Args:
        fields: field -> ending, or several as "jpg;png"; null for one named as the field. None
            makes a field of each of `parts`.
        parts: endings of the first sample.
        where: the first sample, for messages.

    Raises:
        ConfigError: two parts would be one field, or a field would be a pickle.
    """
    if fields is None:
        chosen = [TarField(_own_name(ending), (ending,)) for ending in parts]
    else:
        chosen = [
            TarField(name, tuple(part.strip().lower() for part in (endings or name).split(";")))
            for name, endings in fields.items()
        ]
    for place, field in enumerate(chosen):
        _check_field(field, chosen[:place], where)
    return chosen


def _own_name(ending: str) -> str:
    """`image` for jpg, `label` for cls, `seg` for seg.png."""
    first, dot, _ = ending.rpartition(".")
    return first.replace(".", "_") if dot else _NAMES.get(ending, ending)


def _check_field(field: TarField, before: Sequence[TarField], where: str) -> None:
    pickles = [ending for ending in field.endings if ending.rpartition(".")[2] in PICKLES]
    if pickles:
        raise ConfigError(
            Problem(
                "dataset.fields",
                f"{where} has a part {pickles[0]!r}, which is a pickle and may run any code when "
                "it is read. Make the archives with npy or json, or name the other parts: "
                "dataset.fields={image: jpg, label: cls}",
            )
        )
    for other in before:
        if other.name == field.name:
            raise ConfigError(
                Problem(
                    "dataset.fields",
                    f"{where} has {other.endings[0]!r} and {field.endings[0]!r}, which would both "
                    f"be {field.name!r}; name them: dataset.fields={{{field.name}: "
                    f"{other.endings[0]}, other: {field.endings[0]}}}",
                )
            )


def make_fields(
    parts: Mapping[str, bytes], fields: Sequence[TarField], all_parts: bool, where: str, reader: str
) -> dict[str, Any]:
    """The fields of one sample.

    Args:
        parts: ending -> content.
        all_parts: no part may be left over.
        where: the sample, for messages.
        reader: of images.

    Raises:
        DataError: a part is missing, left over or damaged.
    """
    sample = {}
    for field in fields:
        ending = next((one for one in field.endings if one in parts), None)
        if ending is None:
            raise DataError(
                f"{where} has no part {' or '.join(field.endings)!r}, as others have (it has "
                f"{', '.join(parts)}). Add it, or take the sample out; the files of a sample have "
                "to stand together in the archive."
            )
        sample[field.name] = _value(parts[ending], ending, f"{where}, part {ending!r}", reader)
    known = {ending for field in fields for ending in field.endings}
    unknown = [ending for ending in parts if ending not in known]
    if all_parts and unknown:
        raise DataError(
            f"{where} has a part {unknown[0]!r}, which the first sample has not. Add it there, "
            "take it out here, or say with dataset.fields which parts are wanted."
        )
    return sample


def _value(content: bytes, ending: str, where: str, reader: str) -> Any:
    kind = ending.rpartition(".")[2]
    if kind in IMAGES:
        return decode_image(content, where, reader)
    try:
        return _DECODERS.get(kind, bytes)(content)
    except (ValueError, EOFError) as error:
        raise DataError(
            f"{where} ({len(content)} bytes) is no {_WANTED[kind]}: {error}. Repair it or take the "
            "sample out."
        ) from error


def _int(content: bytes) -> int:
    return int(content.decode("ascii"))


def _array(content: bytes) -> Any:
    return plain_tensor(np.lib.format.read_array(io.BytesIO(content), allow_pickle=False))


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(NUMBERS, _int),
    **dict.fromkeys(TEXTS, lambda content: content.decode("utf-8")),
    "json": json.loads,
    "npy": _array,
}
_WANTED = {
    **dict.fromkeys(NUMBERS, "whole number"),
    **dict.fromkeys(TEXTS, "UTF-8 text"),
    "json": "JSON",
    "npy": "array of numbers that can be used",
}
