"""How much one file, record or listing may claim before it is refused; the section `limits`.

A file can ask for any amount of memory or time in a few bytes: a header that claims 65,500 x
65,500 pixels, a compressed stream of zeros, a label of 10^11. Readers compare what they are asked
for with these numbers before they allocate it. Whatever exceeds them is refused as a sample that
cannot be read (DataError, exit 3), with the file, the number and the key to raise.

The build hands the section to every dataset that takes `limits`; `Limits()` holds the defaults, for
use as a library. Limits decide only what is refused, never what is in a sample.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]


class Limits(BaseModel):
    """The most that data may claim; each is inclusive.

    Attributes:
        record_bytes: of one record in memory: a file of a sample, a line or a field of text, a cell
            of a table, a member of an archive.
        pixels: width x height of one picture, or of all frames of an animation that are decoded;
            a pixel of more than 8 bytes counts as several.
        audio_seconds: length of one recording, by its own header and by what is decoded.
        expansion: bytes out of a compressed stream for each byte in, not counting the first
            64 MiB.
        classes: that a column of labels may make; of whole numbers, the largest + 1.
        columns: of one table.
        files: that one listing of a folder or an address may have, and rows of a table or of labels
            that are held in memory.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    record_bytes: Count = 256 * 1024**2
    pixels: Count = 64 * 1024**2
    audio_seconds: Annotated[float, Field(gt=0)] = 4 * 3600.0
    expansion: Annotated[float, Field(gt=0)] = 200.0
    classes: Count = 1_000_000
    columns: Count = 100_000
    files: Count = 100_000_000

    def refusal(self, name: str, found: object) -> str:
        """The end of a message: `<found>, more than limits.pixels=... allows; ...`.

        Args:
            name: of the attribute that was exceeded.
            found: what the data claims, with its unit.
        """
        return (
            f"{found}, more than limits.{name}={getattr(self, name)} allows; if the data is sound, "
            f"raise limits.{name}"
        )


DEFAULT = Limits()
