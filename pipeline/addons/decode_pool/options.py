"""The options `loader.share` and `loader.share_size`, and which splits use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from penstock.config.sections import NOTHING, Option

if TYPE_CHECKING:
    from penstock.addons.decode_pool.pool import DecodePool
    from penstock.build.data import Split

NAME = Annotated[
    Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None, NOTHING
]
SIZE = Annotated[Annotated[float, Field(gt=0)] | None, NOTHING]

share = Option(NAME, None)
share_size = Option(SIZE, None)
# Other tasks measure the loader, or look for errors in the data.
TASKS = ("fit", "validate", "digest", "lr_find")


def exchange(split: Split, **use: Any) -> DecodePool | None:
    """The pool of a split's batches; None without one. See `build.pool_of` for `use`."""
    if split.config.loader.option("share") is None or split.config.task not in TASKS:
        return None
    from penstock.addons.decode_pool.build import pool_of

    return pool_of(split, **use)
