"""Names for the fields of samples that are no dicts.

Transforms, objectives, digests and packs know fields by name, so a sample is named right after it
was read:

    dict, or another mapping      by its own keys
    (x, y), [x, y]                by position: `data.fields`, or the usual names
    named tuple, dataclass        by its own names
    a tensor, number, text ...    one field, the first name
    a Pillow picture in any       a torchvision Image, uint8 [C, H, W], as for our own datasets

Cost: about 1 us a sample.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.errors import ConfigError, DataError, Problem

Restore = Callable[[Mapping[str, Any]], Any]
USUAL = ("input", "target")
_MODES = ("L", "RGB", "I;16", "I", "F")  # of pictures that are kept; others become RGB


class Fields:
    """Names for the positions of samples.

    Args:
        names: of all positions; None takes the usual ones.
        usual: names of the first positions; further ones are called field_2, field_3 ...
    """

    def __init__(self, names: Sequence[str] | None = None, usual: Sequence[str] = USUAL) -> None:
        self.given = None if names is None else tuple(names)
        if self.given is not None and len(set(self.given)) != len(self.given):
            reason = f"got {', '.join(self.given)}; every position needs a name of its own"
            raise ConfigError(Problem("data.fields", reason))
        self.usual = tuple(usual)

    def of(self, count: int) -> tuple[str, ...]:
        """The names of `count` positions."""
        names = (self.given or self.usual)[:count]
        return names + tuple(f"field_{number}" for number in range(len(names), count))

    def named(self, sample: Any) -> dict[str, Any]:
        """A sample as a dict of its fields.

        Raises:
            DataError: it has another number of positions than there are names; or it is None.
        """
        if isinstance(sample, Mapping):
            return {name: _value(value) for name, value in sample.items()}
        if sample is None:
            raise DataError("the sample is None; a dataset gives a dict, a tuple or a tensor")
        names, values = _parts(sample)
        if names is None and self.given:
            if len(self.given) == 1 != len(values):
                values = (sample,)  # the name is that of the whole
            elif len(self.given) != len(values):
                raise DataError(
                    f"a sample has {len(values)} positions, and data.fields names "
                    f"{len(self.given)} ({', '.join(self.given)})"
                )
        names = names or self.of(len(values))
        return {name: _value(value) for name, value in zip(names, values, strict=True)}

    def batch(self, made: Any) -> Mapping[str, Any]:
        """A batch of a person's collate function as named fields."""
        if isinstance(made, Mapping):
            return made
        names, values = _parts(made)
        return dict(zip(names or self.of(len(values)), values, strict=True))


NAMELESS = Fields()


def _parts(sample: Any) -> tuple[Sequence[str] | None, Sequence[Any]]:
    """The names that a sample has of its own, None where it has positions, and its values."""
    if isinstance(sample, (tuple, list)):
        return getattr(sample, "_fields", None), sample
    if dataclasses.is_dataclass(sample):
        names = [field.name for field in dataclasses.fields(sample)]
        return names, [getattr(sample, name) for name in names]
    return None, (sample,)


def restorer(sample: Any) -> Restore | None:
    """A function that makes a sample of this one's kind of fields; None if it is a mapping.

    Fields that transforms have added come last. Where a named tuple or dataclass cannot hold them,
    the sample stays a dict.
    """
    if isinstance(sample, Mapping):
        return None
    (names, values), kind = _parts(sample), type(sample)
    if names is not None:
        return lambda fields: kind(**fields) if [*fields] == [*names] else dict(fields)
    made = list if isinstance(sample, list) else tuple
    unpacks = len(values) != 1 or values[0] is sample  # a lone field is the whole
    return lambda fields: (
        next(iter(fields.values())) if unpacks and len(fields) == 1 else made(fields.values())
    )


def _value(value: object) -> Any:
    """A field's value; of a Pillow picture its pixels."""
    pillow = sys.modules.get("PIL.Image")  # where nobody has imported it, nothing is a picture
    if pillow is None or not isinstance(value, pillow.Image):
        return value
    from torchvision import tv_tensors
    from torchvision.transforms.v2.functional import pil_to_tensor

    return tv_tensors.Image(pil_to_tensor(value if value.mode in _MODES else value.convert("RGB")))


class OwnCollate:
    """A person's collate function, called as torch calls a `collate_fn`.

    It is given samples as the dataset gave them; the batch that it makes is named like a sample.

    Args:
        function: a list of samples -> a batch: a dict, a tuple, a tensor; with `one`, a sample -> a
            batch.
        one: automatic batching is off (`batch.size=null`).
    """

    def __init__(
        self, function: Callable[[Any], object], fields: Fields, one: bool = False
    ) -> None:
        self.function, self.fields, self.one = function, fields, one
        if hasattr(function, "order"):
            self.order = function.order

    def __call__(self, samples: Sequence[Any]) -> Mapping[str, Any]:
        return self.fields.batch(self.function(samples[0] if self.one else samples))
