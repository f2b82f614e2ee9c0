"""`loader.share`: the batches of a split are taken from runs that have made them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from penstock.build.wrapper import SplitWrapper
from penstock.distributed.world import World

if TYPE_CHECKING:
    from penstock.protocols import Exchange

# Other tasks measure the loader, or look for errors in the data.
TASKS = ("fit", "validate", "digest", "lr_find")


class SharedBatches(SplitWrapper):
    """Gives the loader a pool of batches."""

    def exchange(self, hashed: bool, use: str, world: World) -> Exchange | None:
        config = self.split.config
        if config.loader.option("share") is None or config.task not in TASKS:
            return None
        from penstock.addons.decode_pool.build import pool_of

        return pool_of(self.split, hashed, use, world)

    @cached_property
    def contents(self) -> str:
        """The identity of the split's data among runs; costs a `stat` a file."""
        from penstock.addons.decode_pool.build import contents_of

        return contents_of(self.split.dataset, self.split.identity.data())
