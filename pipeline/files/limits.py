"""How much one file or record may claim before it is refused; the section `limits`.

A few bytes can ask for any amount of memory: a header that claims 65,500 x 65,500 pixels, a label
of 10^11. Readers compare with these limits before they allocate; more is a DataError.

Here are also the ranges of numbers that a configuration gives, as annotations of sections and
arguments. The largest whole numbers are those of an int64, in which rows and positions are counted.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from pydantic import PositiveFloat as PositiveFloat

LARGEST = (1 << 63) - 1

Count = Annotated[int, Field(ge=1, le=LARGEST)]
Index = Annotated[int, Field(ge=0, le=LARGEST)]
Seed = Annotated[
    int, Field(ge=0, le=(1 << 64) - 1)
]  # keys are 64 bits: a larger seed would be another
Fraction = Annotated[float, Field(ge=0, le=1)]


class Limits(BaseModel):
    """The most that data may claim; each is inclusive.

    Attributes:
        record_bytes: of one record in memory: a file of a sample, a line or a field of text, a cell
            of a table, a member of an archive.
        pixels: width x height of one picture, or of all frames of an animation that are decoded;
            a pixel of more than 8 bytes counts as several.
        levels: of a pixel of more than 8 bits, scaled to 256: 4096 for 12 bits in files of 16.
        audio_seconds: length of one recording, by its header and as decoded.
        expansion: bytes out of a compressed stream for each byte in, after the first 64 MiB.
        classes: of a column of labels; of whole numbers, the largest + 1.
        columns: of one table.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    record_bytes: PositiveInt = 256 * 1024**2
    pixels: PositiveInt = 64 * 1024**2
    levels: int = Field(default=65536, ge=256)
    audio_seconds: PositiveFloat = 4 * 3600.0
    expansion: PositiveFloat = 200.0
    classes: PositiveInt = 1_000_000
    columns: PositiveInt = 100_000

    def refusal(self, name: str, claim: object) -> str:
        """The end of a message about the limit `name`, from `claim`, a number with its unit."""
        return (
            f"{claim}, more than limits.{name}={getattr(self, name)} allows; if the data is sound, "
            f"raise limits.{name}"
        )


DEFAULT = Limits()
