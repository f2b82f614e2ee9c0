"""Fields of samples as columns of plain numbers, and back, to the bit; one copy each way.

Images are stored channels last: decoders give them so, torchvision resizes that layout fastest, and
each row of a crop is then one run of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from penstock.errors import DataError
from penstock.loading.encoded import EncodedImage, allocate

Numbers = npt.NDArray[Any]

_NUMBERS = {int: "<i8", float: "<f8", bool: "|b1"}
_TYPES = {
    name: getattr(tv_tensors, name)
    for name in ("Image", "Video", "Mask", "KeyPoints", "BoundingBoxes")
    if hasattr(tv_tensors, name)
}
_PLAIN_KINDS = "biufc"  # numpy maps booleans, whole numbers, floats, complex numbers
_CONTENT = {"str": str, "bytes": bytes, "file": EncodedImage}


@dataclass(frozen=True)
class Field:
    """One field of every sample.

    Attributes:
        name: its key in a sample.
        kind: "tensor", "array" (numpy's), "scalar" (numpy's), "int", "float", "bool", "str",
            "bytes" or "file" (an EncodedImage).
        dtype: of its numbers, as numpy writes it; "|u1" for text and files.
        ndim: dimensions of one value.
        type: torchvision's type: "Image", "KeyPoints" ...; "" for none.
        attributes: of that type, such as {"format": "XYXY"}.
    """

    name: str
    kind: str
    dtype: str
    ndim: int
    type: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_canvas(self) -> bool:
        """Whether each value has the height and width of its picture."""
        return self.type in ("KeyPoints", "BoundingBoxes")

    @property
    def channels_last(self) -> bool:
        """Whether numbers [C, H, W] are stored as [H, W, C]."""
        return self.type == "Image" and self.ndim == 3

    def tensor(self, stored: Numbers) -> torch.Tensor:
        """Stored numbers [..., *shape] as the tensor that a sample or a batch of them holds."""
        made = torch.from_numpy(stored)
        return made.movedim(-1, -3) if self.channels_last else made

    def value(self, stored: Numbers, canvas: Sequence[int] | None = None) -> Any:
        """The value of one sample, of the type it had; it shares the numbers."""
        if self.kind == "tensor":
            tensor = self.tensor(stored)
            if not self.type:
                return tensor
            attributes: dict[str, Any] = dict(self.attributes)
            if canvas is not None:
                attributes["canvas_size"] = (int(canvas[0]), int(canvas[1]))
            return _TYPES[self.type](tensor, **attributes)
        if self.kind == "array":
            return stored
        if self.kind == "scalar":
            return stored[()]
        if self.kind in _CONTENT:
            content = stored.tobytes()
            return content.decode("utf-8", "surrogateescape") if self.kind == "str" else content
        return stored.item()


def describe(sample: object) -> dict[str, Field]:
    """The fields of a sample; raises DataError if it is not a dict, or a field cannot be stored."""
    if not isinstance(sample, Mapping):
        raise DataError(
            f"a sample is a {type(sample).__name__}; only dicts of fields can be packed"
        )
    return {str(name): _field(str(name), value) for name, value in sample.items()}


def _field(name: str, value: object) -> Field:
    kind = type(value)
    if kind in _NUMBERS:
        return Field(name, kind.__name__, _NUMBERS[kind], 0)
    for word, python_type in _CONTENT.items():
        if isinstance(value, python_type):
            return Field(name, word, "|u1", 1, "Image" if word == "file" else "")
    if isinstance(value, torch.Tensor) and value.dtype != torch.bfloat16:
        attributes = {
            key: getattr(attribute, "value", attribute)
            for key, attribute in vars(value).items()
            if key != "canvas_size" and type(value) is not torch.Tensor
        }
        dtype = _numpy(value[:0] if value.ndim else value).dtype
        type_ = "" if type(value) in (torch.Tensor, torch.nn.Parameter) else type(value).__name__
        if type_ in ("", *_TYPES):
            return Field(name, "tensor", dtype.str, value.ndim, type_, attributes)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in _PLAIN_KINDS:
        word = "array" if isinstance(value, np.ndarray) else "scalar"
        return Field(name, word, value.dtype.str, value.ndim)
    what = f"a {kind.__name__}" + (f" of {value.dtype}" if hasattr(value, "dtype") else "")
    raise DataError(
        f"field {name!r} is {what}, which cannot be packed; make it a tensor, an array, a number "
        "or text"
    )


def _numpy(value: torch.Tensor) -> Numbers:
    return value.detach().as_subclass(torch.Tensor).cpu().numpy()


@dataclass
class Column:
    """The numbers of one field of several samples, concatenated.

    Attributes:
        numbers: uint8[bytes of all].
        shapes: as they are stored, int32[B, ndim].
        canvases: height and width of each value's picture, int32[B, 2]; None if it has none.
    """

    numbers: torch.Tensor
    shapes: npt.NDArray[np.int32]
    canvases: npt.NDArray[np.int32] | None = None


class Encode:
    """Samples to columns: a collate function.

    The result has a `Column` for each field under "columns", and the fields under "fields".
    "differs" is the place of the first sample with other fields than the first one and how they
    differ, or None.
    """

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        fields = describe(samples[0])
        for number, sample in enumerate(samples):
            reason = difference(fields, describe(sample))
            if reason:
                return {"columns": {}, "fields": fields, "differs": (number, reason)}
        columns = {
            name: _column(field, [s[name] for s in samples]) for name, field in fields.items()
        }
        return {"columns": columns, "fields": fields, "differs": None}


def difference(fields: Mapping[str, Field], others: Mapping[str, Field]) -> str:
    """How the fields of two samples differ; "" if they don't."""
    if fields == others:
        return ""
    if fields.keys() != others.keys():
        return f"the fields are {sorted(others)} and were {sorted(fields)} before"
    name = next(name for name in fields if fields[name] != others[name])
    return f"field {name!r} is {_words(others[name])} and was {_words(fields[name])} before"


def _words(field: Field) -> str:
    name = field.type or field.kind
    known = "".join(f", {key} {value}" for key, value in field.attributes.items())
    return f"{name} of {np.dtype(field.dtype)}, {field.ndim} dimension(s){known}"


def _column(field: Field, values: Sequence[Any]) -> Column:
    arrays = [_stored(field, value) for value in values]
    shapes = np.array([array.shape for array in arrays], np.int32).reshape(len(arrays), field.ndim)
    canvases = None
    if field.has_canvas:
        canvases = np.array([value.canvas_size for value in values], np.int32)
    size = sum(array.nbytes for array in arrays)
    numbers = allocate((size,), np.dtype(np.uint8))
    target = numbers.numpy()
    start = 0
    for array in arrays:
        stop = start + array.nbytes
        target[start:stop].view(array.dtype).reshape(array.shape)[...] = array
        start = stop
    return Column(numbers, shapes, canvases)


def _stored(field: Field, value: Any) -> Numbers:
    """The numbers of a value in the stored layout; a view if possible."""
    if field.kind == "str":
        value = value.encode("utf-8", "surrogateescape")
    if field.kind == "file":
        value = value.content
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, torch.Tensor):
        array = _numpy(value)
        return np.moveaxis(array, -3, -1) if field.channels_last else array
    try:
        return np.asarray(value, field.dtype)
    except OverflowError as error:
        raise DataError(f"field {field.name!r}: {value} needs more than 64 bits") from error
