"""Protocols of the parts that a person brings along, for type checkers; nothing has to inherit.

A part has only what is here, and may have more: docs/own_dataset.md lists the optional members of
datasets, docs/own_parts.md those of objectives. Each is looked for by its name. A wrapper of a
dataset (a filter, a mixture, a pack) answers as the dataset does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol


class MapDataset(Protocol):
    """Rows by index, for any sampler.

    `draws = False`, on the class or an object, promises that reading takes no random numbers.
    Without it, the first batch shows what draws, and is read twice if that changes. It saves about
    10 us a batch, and lets pictures be decoded a batch at a time.
    """

    def __len__(self) -> int:
        """The number of rows."""

    def __getitem__(self, index: int, /) -> Any:
        """The sample of a row.

        Raises:
            DataError: it cannot be read; the message names the file, and the row is added.
        """


class StreamDataset(Protocol):
    """Records that can only be read forwards, the same in every process and every pass.

    Optional: `set_epoch(epoch)` is called before a pass. `decode(record) -> sample` is called for
    the records of one's own batches only, so `__iter__` can stay cheap. `seek(record)`, an iterator
    from that raw record on, makes resuming fast. `len()` serves progress and schedules only.
    """

    def __iter__(self) -> Iterator[object]:
        """A pass over all records, from the first one on."""


class Transform(Protocol):
    """A step of `transform.train` or `transform.val`: any callable.

    Draws from `random`, `numpy.random`, torch and from generators that the step holds itself are
    keyed by the sample. `decodes = True` asks datasets that can (`lazy`) for undecoded files;
    `extensions` are the endings of those that a step decodes, where they are no images.

    `keyed = True` promises to draw from no generator: such a step derives its draws from
    `penstock.order.keys.key_at_hand()`, its sample's key. Where all steps do and the dataset
    has `draws = False`, generators are not seeded: 7 us a sample less.
    """

    def __call__(self, sample: Any, /) -> Any:
        """The sample that the next step gets."""


class OwnLoss(Protocol):
    """An objective, of the stock ones or your own.

    Batches have no padding: each has the n samples of this rank's share of a global batch.
    """

    def loss(self, model: Any, batch: Any, /) -> Any:
        """The loss to train: float32[n], one for each sample; float32[], one for all; or a mapping
        of these by name, of which the sum is trained."""


class Collate(Protocol):
    """Samples to the fields of a batch: any callable that gives a dict, or a tuple with `fields`.

    Where the sampler packs rows into blocks, it is called with a second argument: `Request.parts`.
    """

    def __call__(self, samples: list[Any], /) -> Mapping[str, Any]:
        """The fields of the batch, by name."""
