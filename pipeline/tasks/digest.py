"""`task=digest`: a hash a batch, which is what "the same batches" means.

Prints `epoch step samples hash` for each step and `total hash` at the end, to stdout. A hash covers
every sample of the global batch after its transforms (field names, types, shapes, bytes), in
position order, so it does not depend on workers, on sharing out or on padding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice

from pipeline.build import Parts
from pipeline.config import Config
from pipeline.fetch import batch_hash
from pipeline.terminal import put
from pipeline.world import World


def run(config: Config) -> None:
    """Print the digest of `config.split` for `config.epoch`, up to `config.steps` batches."""
    total = hashlib.blake2b(digest_size=16)
    for line in lines(config):
        put(line, flush=True)
        total.update(line.encode() + b"\n")
    put(f"total {total.hexdigest()}")


def lines(config: Config) -> Iterator[str]:
    """`epoch step samples hash` of each batch, as the configured loader delivers it."""
    # Nothing is computed on the batches, so they need not leave the CPU.
    with Parts(config, World()).loader(config.split, hashed=True) as loader:
        for batch in islice(loader.epoch(config.epoch), config.steps):
            epoch, step = batch.request.address
            yield f"{epoch} {step} {batch.request.valid} {batch_hash([batch])}"
