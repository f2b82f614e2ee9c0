"""Samples of validation and test that are in training, too: the same bytes of an image's file, or
of the sample without its target.

No error: data may repeat itself rightly. Cost: it reads up to 200,000 rows of each split once more,
untransformed, in this process; 100 bytes a row. Streams, which have no rows, are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from contextlib import suppress

from penstock.build.data import DataParts, Split
from penstock.loading.bad_samples import path_of
from penstock.loading.batch import hash_sample
from penstock.loading.encoded import EncodedImage
from penstock.tasks.summary import put_rows
from penstock.terminal import one_line, put, watched

MOST = 200_000  # rows of a split that are compared
_LISTED = 100


def report(data: DataParts) -> None:
    """Print what of the other splits is in training."""
    splits = [split for split in data.splits if not split.is_train]
    with suppress(Exception):  # there is none; neither training nor the rest of the check reads it
        splits += [data.test] if len(data.test.dataset) else []
    splits = [split for split in (data.train, *splits) if isinstance(split.dataset, Sized)]
    train, *others = [(split, _rows_by_hash(split)) for split in splits] or [(data.train, {})]
    for split, rows in others:
        both = [(*rows[one], *train[1][one]) for one in rows if one in train[1]]
        wrong = sum(target != of_train for _, target, _, of_train in both)
        put(
            f"{'overlap':<10} {len(both) or 'none'} of {split.name} "
            f"{'are' if both else 'is'} in train, too"
            + (f"; {wrong} of them with another target" if wrong else "")
            + f" ({len(rows)} with {len(train[1])} of train)"
        )
        lines = [
            (split.name, str(row), one_line(path_of(split.dataset, row)))
            + (str(of_train), one_line(path_of(data.train.dataset, of_train)))
            for row, _, of_train, _ in both[:_LISTED]
        ]
        put_rows([("split", "index", "path", "train", "path"), *lines] if both else [])
        if len(both) > _LISTED:
            put(f"and {len(both) - _LISTED} more")


def _rows_by_hash(split: Split) -> dict[bytes, tuple[int, bytes]]:
    """The first row and the hash of its target, by the hash of the rest of the sample."""
    first_rows: dict[bytes, tuple[int, bytes]] = {}
    rows = range(min(len(split.dataset), MOST))
    for row in watched(rows, len(rows), f"comparing {split.name}"):
        with suppress(Exception):  # the check has said so
            sample = split.dataset[row]
            fields = dict(sample) if isinstance(sample, Mapping) else {"sample": sample}
            target = fields.pop(str(split.config.objective.get("target")), None)
            images = [one.content for one in fields.values() if isinstance(one, EncodedImage)]
            own = hash_sample({"own": images[0] if images else fields})
            first_rows.setdefault(own, (row, hash_sample({"target": target})))
    return first_rows
