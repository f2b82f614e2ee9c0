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

import numpy as np
import torch

from penstock.addons.tars.index import Dots
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

Fields = dict[str, Sequence[str]]  # field -> endings of its part; any of them will do


def choose_fields(
    fields: Mapping[str, str | None] | None,
    parts: Sequence[str],
    where: str,
    dots: Dots | None,
) -> Fields:
    """The fields of the samples.

    Args:
        fields: field -> ending, or several as "jpg;png"; null for one named as the field. None
            makes a field of each of `parts`: `image` of jpg, `label` of cls, `seg` of seg.png.
        parts: endings of the first sample.
        where: the first sample, for messages.
        dots: at which names end; None if nobody has said so: "first".

    Raises:
        ConfigError: two parts would be one field, a field would be a pickle, or names of samples
            seem to have dots in them.
    """
    chosen: Sequence[tuple[str, Sequence[str]]]
    if fields is None:
        chosen = [(_own_name(ending), [ending]) for ending in parts]
    else:
        chosen = [
            (name, [part.strip().lower() for part in (endings or name).split(";")])
            for name, endings in fields.items()
        ]
    endings = [ending for _, own in chosen for ending in own]
    names = [name for name, _ in chosen]
    inner = [part for part in parts if "." in part] if fields is None and dots is None else []
    problems = {
        f"after the first dot of a name. {_DOTS}": (
            "dots",
            [part for part in inner if part[0].isdigit()],  # as of 0.5 or 12.30
        ),
        "which is a pickle and may run any code when it is read. Make the archives with npy or "
        "json, or name the other parts: dataset.fields={image: jpg, label: cls}": (
            "fields",
            [ending for ending in endings if ending.rpartition(".")[2] in PICKLES],
        ),
        "which would be the same field; name them: dataset.fields={one: ENDING, other: ENDING}. "
        + _DOTS: (
            "fields",
            [own[0] for name, own in chosen if names.count(name) > 1],
        ),
    }
    for reason, (key, wrong) in problems.items():
        if wrong:
            shown = " and ".join(map(repr, wrong[:10]))
            raise ConfigError(Problem(f"dataset.{key}", f"{where} has {shown}, {reason}"))
    if inner:
        _log.warning(
            "%s has %s after the first dot of a name. %s", where, ", ".join(inner[:10]), _DOTS
        )
    return dict(chosen)


def _own_name(ending: str) -> str:
    first, dot, _ = ending.rpartition(".")
    return first.replace(".", "_") if dot else _NAMES.get(ending, ending)


def make_fields(
    parts: Mapping[str, bytes],
    fields: Fields,
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
    # A part that the first sample lacks is a mistake in one of them, and nobody loses it silently.
    strange = {*parts}.difference(*fields.values()) if first else {}
    for name, endings in fields.items():
        ending = next((end for end in endings if end in parts), None)
        if ending is None or strange:
            lacks = f"no part {' or '.join(endings)!r}" if not ending else f"{sorted(strange)[0]!r}"
            raise DataError(
                f"{where} has {lacks}, unlike {first or 'other samples'} (it has "
                f"{', '.join(parts)}). Take the sample out, or say with dataset.fields which parts "
                "are wanted; the files of a sample have to stand together in the archive. If names "
                "of samples have dots in them, set dataset.dots=last."
            )
        content, shown, kind = parts[ending], f"{where}, part {ending!r}", ending.rpartition(".")[2]
        if kind in IMAGES:
            sample[name] = (undecoded if lazy else decode_image)(content, shown, reader, limits)
            continue
        # What has no decoder stays as it is: bytes.
        decode, expected = _DECODERS.get(kind, (bytes, "content"))
        try:
            sample[name] = decode(content)
        except (ValueError, EOFError, RecursionError, SyntaxError, TypeError, MemoryError) as error:
            raise DataError(
                f"{shown} ({len(content)} bytes) is not {expected}: {error}. Repair it or take the "
                "sample out."
            ) from error
    return sample


def _array(content: bytes) -> torch.Tensor:
    # Not np.load, which takes a pickle or a zip archive for an array.
    values = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    if (position := not_finite(values)) is not None:
        at = position[0] if len(position) == 1 else position
        raise ValueError(f"value {at} is {values[tuple(position)]}, which is not finite")
    return torch.from_numpy(plain_numbers(values))


# Ending -> how its content is decoded, and what it should be, for messages.
_DECODERS: dict[str, tuple[Callable[[bytes], object], str]] = {
    **dict.fromkeys(NUMBERS, (int, "a whole number")),
    **dict.fromkeys(TEXTS, (lambda content: content.decode("utf-8"), "UTF-8 text")),
    "json": (json.loads, "JSON"),
    "npy": (_array, "a usable array of numbers"),
}
