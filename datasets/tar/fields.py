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
import math
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.datasets.reading.image import decode_image
from pipeline.datasets.reading.plain_tensor import plain_tensor
from pipeline.errors import ConfigError, DataError, Problem
from pipeline.files.limits import Limits

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
    parts: Mapping[str, bytes],
    fields: Sequence[TarField],
    all_parts: bool,
    where: str,
    reader: str,
    limits: Limits,
) -> dict[str, Any]:
    """The fields of one sample.

    Args:
        parts: ending -> content.
        all_parts: no part may be left over.
        where: the sample, for messages.
        reader: of images.
        limits: `classes`, of labels.

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
        shown = f"{where}, part {ending!r}"
        value = sample[field.name] = _value(parts[ending], ending, shown, reader, limits)
        if ending.rpartition(".")[2] == "cls" and value >= limits.classes:
            raise DataError(f"{shown}: {limits.refusal('classes', f'label {value}')}.")
    known = {ending for field in fields for ending in field.endings}
    unknown = [ending for ending in parts if ending not in known]
    if all_parts and unknown:
        raise DataError(
            f"{where} has a part {unknown[0]!r}, which the first sample has not. Add it there, "
            "take it out here, or say with dataset.fields which parts are wanted."
        )
    return sample


def _value(content: bytes, ending: str, where: str, reader: str, limits: Limits) -> Any:
    kind = ending.rpartition(".")[2]
    if kind in IMAGES:
        return decode_image(content, where, reader, limits)
    try:
        return _DECODERS.get(kind, bytes)(content)
    except _DAMAGE as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise DataError(
            f"{where} ({len(content)} bytes) is no {_WANTED[kind]}: {reason}. Repair it or take "
            "the sample out."
        ) from error


# What `json`, `int` and numpy raise over content that is not what its ending says; MemoryError is
# the parser's, of nesting in the header of an array.
_DAMAGE = (
    ValueError, EOFError, RecursionError, OverflowError, SyntaxError, TypeError, MemoryError,
    tokenize.TokenError,
)  # fmt: skip
_INT64 = 1 << 63


def _int(content: bytes) -> int:
    return _fitting(content.decode("ascii"))


def _fitting(text: str) -> int:
    """A whole number that a tensor can hold."""
    value = int(text)
    if not -_INT64 <= value < _INT64:
        raise ValueError(f"{text[:30]}{'...' if len(text) > 30 else ''} does not fit into int64")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:30]} is not finite")
    return value


_JSON = json.JSONDecoder(parse_int=_fitting, parse_float=_finite, parse_constant=_finite)


def _json(content: bytes) -> Any:
    return _JSON.decode(content.decode(json.detect_encoding(content), "surrogatepass"))


def _array(content: bytes) -> Any:
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    # numpy allocates what the header says before it looks for it.
    size, there = math.prod(shape) * dtype.itemsize, len(content) - file.tell()
    if not dtype.hasobject and size > there:
        raise ValueError(f"{shape} of {dtype} take {size} bytes, but there are {there}")
    file.seek(0)
    return plain_tensor(np.lib.format.read_array(file, allow_pickle=False))


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(NUMBERS, _int),
    **dict.fromkeys(TEXTS, lambda content: content.decode("utf-8")),
    "json": _json,
    "npy": _array,
}
_WANTED = {
    **dict.fromkeys(NUMBERS, "whole number"),
    **dict.fromkeys(TEXTS, "UTF-8 text"),
    "json": "JSON",
    "npy": "array of numbers that can be used",
}
