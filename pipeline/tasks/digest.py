"""`task=digest`: a hash a batch, which is what "the same batches" means.

Prints `epoch step samples hash` for each step and `total hash` at the end, to stdout. A hash covers
every sample of the global batch after its transforms (field names, types, shapes, bytes), in
position order, so it does not depend on workers, on sharing out or on padding.

With `distributed=ddp` or `fsdp` each rank makes its share, and rank 0 prints the hash of all of
them together: the same lines as one process prints, if sharing out is right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice

from pipeline.build.data import DataParts
from pipeline.config.schema import Config
from pipeline.distributed import world
from pipeline.distributed.group import Group, join
from pipeline.loading.fetch import hash_of_rows, row_hashes
from pipeline.terminal import put


def run(config: Config) -> None:
    """Print the digest of `config.split` for `config.epoch`, up to `config.steps` batches."""
    wanted = config.distributed
    # Nothing is computed on the batches, so they need not leave the CPU.
    here = world.from_environment("cpu")
    with join(here, "gloo", wanted.timeout) as group:
        total = hashlib.blake2b(digest_size=16)
        for line in lines(config, group):
            if group.is_first:
                put(line, flush=True)
            total.update(line.encode() + b"\n")
        if group.is_first:
            put(f"total {total.hexdigest()}")


def lines(config: Config, group: Group | None = None) -> Iterator[str]:
    """`epoch step samples hash` of each batch, as the configured loader delivers it.

    Args:
        group: ranks that make a share of each batch; all of them get the same lines.
    """
    group = group or Group()
    split = DataParts(config, group.world).split(config.split)
    with split.loader(hashed=True) as loader:
        for batch in islice(loader.epoch(config.epoch), config.steps):
            epoch, step = batch.request.address
            shares = group.gather((batch.request.valid, row_hashes(batch)))
            count = sum(valid for valid, _ in shares)
            found = hash_of_rows(row for _, rows in shares for row in rows)
            yield f"{epoch} {step} {count} {found}"
