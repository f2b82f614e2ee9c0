"""Names for the fields of samples that are no dicts.

Transforms, objectives, digests and packs know fields by name, so a sample is named right after it
was read:

    dict, or another mapping      by its own keys
    (x, y), [x, y]                by position: `data.fields`, or the usual names
    named tuple                   by its own names
    a tensor, number, text ...    one field, the first name
    a Pillow picture in any       a torchvision Image, uint8 [C, H, W], as for our own datasets

Cost: about 1 us a sample.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.errors import ConfigError, DataError, Problem

Restore = Callable[[Mapping[str, Any]], Any]
_MODES = ("L", "RGB", "I;16", "I", "F")  # of pictures that are kept; others become RGB


class Fields:
    """Names for the positions of samples.

    Args:
        names: of all positions; None takes the usual ones.
        usual: names of the first positions; further ones are called field_2, field_3 ...
    """

    def __init__(
        self, names: Sequence[str] | None = None, usual: Sequence[str] = ("input", "target")
    ) -> None:
        self.given, self.usual = tuple(names or ()), tuple(usual)
        if len(set(self.given)) != len(self.given):
            reason = f"got {', '.join(self.given)}; every position needs a name of its own"
            raise ConfigError(Problem("data.fields", reason))

    def of(self, count: int) -> tuple[str, ...]:
        """The names of `count` positions."""
        names = (self.given or self.usual)[:count]
        return names + tuple(f"field_{number}" for number in range(len(names), count))

    def named(self, sample: Any) -> dict[str, Any]:
        """A sample, or what a person's collate function gives, as a dict of its fields.

        Raises:
            DataError: it has another number of positions than there are names; or it is None.
        """
        if isinstance(sample, Mapping):
            return {name: _value(value) for name, value in sample.items()}
        if sample is None:
            raise DataError("the sample is None; a dataset gives a dict, a tuple or a tensor")
        values = sample if isinstance(sample, (tuple, list)) else (sample,)
        names = getattr(sample, "_fields", self.given) or self.of(len(values))
        if len(names) == 1 != len(values):
            values = (sample,)  # the name is that of the whole
        if len(names) != len(values):
            raise DataError(
                f"a sample or batch has {len(values)} positions, and data.fields or "
                f"data.batch_fields names {len(names)} ({', '.join(names)})"
            )
        return {name: _value(value) for name, value in zip(names, values, strict=True)}


NAMELESS = Fields()


def restorer(sample: Any) -> Restore | None:
    """A function that makes a sample of this one's kind of fields; None if it is a mapping.

    Fields that transforms have added come last. Where a named tuple cannot hold them, the sample
    stays a dict.
    """
    kind = type(sample)
    if hasattr(kind, "_fields"):
        return lambda fields: kind(**fields) if kind._fields == (*fields,) else dict(fields)
    if isinstance(sample, Mapping):
        return None
    made = list if kind is list else tuple
    whole = not isinstance(sample, (tuple, list)) or len(sample) != 1
    return lambda fields: (
        next(iter(fields.values())) if whole and len(fields) == 1 else made(fields.values())
    )


def _value(value: object) -> Any:
    """A field's value; of a Pillow picture its pixels."""
    pillow = sys.modules.get("PIL.Image")  # where nobody has imported it, nothing is a picture
    if pillow is None or not isinstance(value, pillow.Image):
        return value
    from torchvision.transforms.v2.functional import to_image

    return to_image(value if value.mode in _MODES else value.convert("RGB"))


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

    def __call__(self, samples: Sequence[Any]) -> Mapping[str, Any]:
        return self.fields.named(self.function(samples[0] if self.one else samples))
