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
        own = own_names(sample)
        if own is not None:
            return {name: _value(getattr(sample, name)) for name in own}
        whole = self.given is not None and len(self.given) == 1
        if isinstance(sample, (tuple, list)) and not (whole and len(sample) != 1):
            if self.given is not None and len(self.given) != len(sample):
                raise DataError(
                    f"a sample has {len(sample)} positions, and data.fields names "
                    f"{len(self.given)} ({', '.join(self.given)})"
                )
            names = self.of(len(sample))
            return {name: _value(value) for name, value in zip(names, sample, strict=True)}
        if sample is None:
            raise DataError("the sample is None; a dataset gives a dict, a tuple or a tensor")
        return {self.of(1)[0]: _value(sample)}

    def batch(self, made: Any) -> Mapping[str, Any]:
        """A batch of a person's collate function as named fields."""
        if isinstance(made, Mapping):
            return made
        own = own_names(made)
        if own is not None:
            return {name: getattr(made, name) for name in own}
        values = made if isinstance(made, (tuple, list)) else (made,)
        return dict(zip(self.of(len(values)), values, strict=True))


NAMELESS = Fields()


def own_names(sample: object) -> tuple[str, ...] | None:
    """The names of the parts of a named tuple or a dataclass; None for anything else."""
    if isinstance(sample, tuple):
        return getattr(sample, "_fields", None)
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        return tuple(field.name for field in dataclasses.fields(sample))
    return None


def restorer(sample: object) -> Restore | None:
    """A function that makes a sample of this one's kind of fields; None if it is a mapping.

    Fields that transforms have added come last. Where a named tuple or dataclass cannot hold them,
    the sample stays a dict.
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
