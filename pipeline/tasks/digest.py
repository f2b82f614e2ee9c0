"""`task=digest`: `epoch step samples hash` of each batch, and `total hash`, to stdout.

A hash covers every sample of the global batch after its transforms (field names, types, shapes,
bytes), in position order, so it does not depend on workers, sharding or padding. A batch that
training leaves out has the line `epoch step skipped`, and is not made.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from itertools import islice

from penstock.build.data import DataParts
from penstock.config.schema import Config
from penstock.distributed.group import Group, join
from penstock.distributed.world import from_environment
from penstock.loading.batch import Batch, hash_of_rows, row_hashes
from penstock.order.address import Address
from penstock.terminal import put, watched


def run(config: Config) -> None:
    """Print the digest of `config.split` for `config.epoch`, up to `config.steps` batches."""
    # Nothing is computed on the batches.
    with join(from_environment("cpu"), "gloo", config.distributed.timeout) as group:
        total = hashlib.blake2b(digest_size=16)
        for line in lines(config, group):
            if group.is_first:
                put(line)
            total.update(line.encode() + b"\n")
        if group.is_first:
            put(f"total {total.hexdigest()}")


def lines(config: Config, group: Group | None = None) -> Iterator[str]:
    """`epoch step samples hash` of each batch, the same on all ranks of `group`."""
    group, epoch = group or Group(), config.epoch
    split = getattr(DataParts(config, group.world), config.split)
    steps, skipped, done = split.plan.limit(epoch), split.plan.skipped, 0
    total = min((one for one in (steps, config.steps) if one is not None), default=None)
    made = None if total is None else total - skipped.count(epoch, 0, total)
    with split.loader(hashed=True) as loader:
        batches: Iterator[Batch] = islice(loader.epoch(epoch), made)
        if not (sys.stdout and sys.stdout.isatty()):  # there the lines show how far it is
            batches = watched(batches, made, f"hashing batches of {config.split}")
        for batch in batches:
            step = batch.request.address[1]
            yield from (f"{epoch} {one} skipped" for one in range(done, step))
            done = step + 1
            shares = group.gather((batch.request.valid, row_hashes(batch)))
            count = sum(valid for valid, _ in shares)
            digest = hash_of_rows(row for _, rows in shares for row in rows)
            yield f"{epoch} {step} {count} {digest}"
    rest = range(done, total or 0) if steps is not None else ()  # a stream may have ended
    yield from (f"{epoch} {one} skipped" for one in rest if Address(epoch, one) in skipped)
