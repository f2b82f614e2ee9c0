"""Samples that are no dicts, with names: the one place where a sample becomes named fields.

Most datasets give `(x, y)`, and torch takes whatever they give. Transforms, objectives, digests and
packs know fields by name, so a sample is named once, right after it was read:

    dict, or another mapping      as it is
    (x, y), [x, y]                by position: `dataset.fields`, or the usual names
    named tuple, dataclass        by its own names
    a tensor, number, text ...    one field, the first name
    a Pillow picture, in any of   a torchvision Image, uint8 [C, H, W], as of our own datasets
    these

A collate function of a person's own (`OwnCollate`) is handed samples as the dataset gave them, and
what it returns is named the same way. Cost: nothing for dicts, about 1 us for other samples.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.errors import DataError

Restore = Callable[[Mapping[str, Any]], Any]
USUAL = ("input", "target")
_DEEP = ("L", "RGB", "I;16", "I", "F")  # modes of pictures that are kept; others become RGB


class Fields:
    """Names for the positions of samples.

    Args:
        names: of all positions, as a person gave them; None takes the usual ones.
        usual: names of the first positions; further ones are called field_2, field_3 ...
    """

    def __init__(self, names: Sequence[str] | None = None, usual: Sequence[str] = USUAL) -> None:
        self.given = None if names is None else tuple(names)
        self.usual = tuple(usual)

    def of(self, count: int) -> tuple[str, ...]:
        """The names of `count` positions."""
        names = (self.given or self.usual)[:count]
        return names + tuple(f"field_{place}" for place in range(len(names), count))

    def named(self, sample: Any) -> dict[str, Any]:
        """A sample as a dict of its fields.

        Raises:
            DataError: it has another number of positions than there are names; or it is None.
        """
        if isinstance(sample, Mapping):
            return dict(sample)
        own = own_names(sample)
        if own is not None:
            return {name: _value(getattr(sample, name)) for name in own}
        whole = self.given is not None and len(self.given) == 1
        if isinstance(sample, (tuple, list)) and not (whole and len(sample) != 1):
            if self.given is not None and len(self.given) != len(sample):
                raise DataError(f"a sample has {len(sample)} positions, and dataset.fields names "
                                f"{len(self.given)} ({', '.join(self.given)})")  # fmt: skip
            names = self.of(len(sample))
            return {name: _value(value) for name, value in zip(names, sample, strict=True)}
        if sample is None:
            raise DataError("the sample is None; a dataset gives a dict, a tuple or a tensor")
        return {self.of(1)[0]: _value(sample)}

    def batch(self, made: Any) -> Mapping[str, Any]:
        """What a person's collate function has made of samples, as named fields."""
        if isinstance(made, Mapping):
            return made
        own = own_names(made)
        if own is not None:
            return {name: getattr(made, name) for name in own}
        values = made if isinstance(made, (tuple, list)) else (made,)
        return dict(zip(self.of(len(values)), values, strict=True))


NAMELESS = Fields()


def own_names(sample: Any) -> tuple[str, ...] | None:
    """The names that a named tuple or a dataclass has for its parts; None for anything else."""
    if isinstance(sample, tuple):
        return getattr(sample, "_fields", None)
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        return tuple(one.name for one in dataclasses.fields(sample))
    return None


def restorer(sample: Any) -> Restore | None:
    """How fields become a sample of this one's kind again; None if it is a mapping.

    Fields that transforms have added come after the others. Where a named tuple or dataclass cannot
    hold them, they stay a dict.
    """
    if isinstance(sample, Mapping):
        return None
    own = own_names(sample)
    if own is not None:
        kind: Any = type(sample)
        return lambda fields: kind(**fields) if tuple(fields) == own else dict(fields)
    if isinstance(sample, (tuple, list)):
        kind = tuple if isinstance(sample, tuple) else list
        return lambda fields: kind(fields.values())
    return lambda fields: next(iter(fields.values())) if len(fields) == 1 else (*fields.values(),)


def _value(value: Any) -> Any:
    """A field's value; of a Pillow picture its pixels."""
    pillow = sys.modules.get("PIL.Image")  # where nobody has imported it, nothing is a picture
    if pillow is None or not isinstance(value, pillow.Image):
        return value
    from torchvision import tv_tensors
    from torchvision.transforms.v2.functional import pil_to_tensor

    return tv_tensors.Image(pil_to_tensor(value if value.mode in _DEEP else value.convert("RGB")))


class OwnCollate:
    """A person's collate function, called as torch calls a `collate_fn`.

    Args:
        function: a list of samples -> a batch: a dict, a tuple, a tensor; `one` sample -> a batch.
        fields: names for the positions of a batch that is no dict.
        one: automatic batching is off (`batch.size=null`), so it is called with the sample itself.
    """

    def __init__(self, function: Callable[[Any], Any], fields: Fields, one: bool = False) -> None:
        self.function, self.fields, self.one = function, fields, one
        if hasattr(function, "order"):
            self.order = function.order

    def __call__(self, samples: Sequence[Any]) -> Mapping[str, Any]:
        return self.fields.batch(self.function(samples[0] if self.one else samples))
