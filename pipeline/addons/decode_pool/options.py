"""The options `loader.share` and `loader.share_size`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.config.sections import NOTHING, Option

NAME = Annotated[
    Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None, NOTHING
]
SIZE = Annotated[Annotated[float, Field(gt=0)] | None, NOTHING]

share = Option(NAME, None)
share_size = Option(SIZE, None)
