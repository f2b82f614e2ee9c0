"""Protocols of the parts that a person brings along.

They are for type checkers; nothing has to inherit from them. A part may have only some of the
optional members: each is looked for by its name, and the class says what happens without it. A
wrapper of a dataset (a filter, a mixture, a pack) answers as the dataset does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


Sample = Any  # a dict of fields, or what `data.fields` gives names to


class MapDataset(Protocol):
    """Rows by index, for any sampler. Only these two members are required.

    `__getitems__(indices) -> list of samples`, if there is one, reads many rows at once; it must
    not draw at random, as its samples have one key each.

    `draws = False`, on the class or an object, promises that reading takes no random numbers.
    Without it, the first batch shows what draws, and is read twice if that changes. It saves about
    10 us a batch, and lets pictures be decoded a batch at a time.

    `locality(indices)`, int64[n], numbers the file or shard of each row, without reading anything:
    `loader.backend=ray` sends rows of one file to the same actor, and no batch depends on it.

    `text_lengths(length, name)`, int32[N], is `length(text)` of each row's text, for the column
    `length` where a step makes tokens of texts that are not in the table.
    """

    def __len__(self) -> int:
        """The number of rows."""

    def __getitem__(self, index: int, /) -> Sample:
        """The sample of a row.

        Raises:
            DataError: it cannot be read; the message names the file, and the row is added.
        """


class FilesAhead(Protocol):
    """A map-style dataset whose files are fetched before they are needed; both members or none.

    Without them a worker fetches a file when it reads a sample in it.
    """

    @property
    def remote_files(self) -> object:
        """The `penstock.datasets.files.Remote` that fetches them; None where none is remote."""

    def files_of(self, indices: Sequence[int], /) -> Sequence[Sequence[str]]:
        """The addresses of the files that each row is read from, without reading anything."""


class Column(Protocol):
    """A whole number a row, read by row. numpy's arrays and memory maps are columns.

    `penstock.order.columns` has two that copy nothing: `ChosenRows` of another column, for filters
    and splits, and several `EndToEnd`. Code that needs all values calls `numpy.asarray`.
    """

    @property
    def dtype(self) -> np.dtype[Any]:
        """A type of whole numbers."""

    def __len__(self) -> int:
        """The number of rows."""

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[Any]:
        """The values of rows, int64[n]; a microsecond a row at most."""


class Measured(Protocol):
    """A map-style dataset that knows the length of each row without a table; optional.

    It stands for the column `length`, for samplers that read no other one: they pack, bucket or
    order 10^9 rows by a memory map. A wrapper of a dataset maps it; one that cannot must not pass
    it on.
    """

    @property
    def lengths(self) -> Column:
        """Tokens, steps or bytes of each row, as many as there are rows; no sample is read."""


class StreamDataset(Protocol):
    """Records that can only be read forwards, the same in every process and every pass.

    Optional: `set_epoch(epoch)` is called before a pass. `decode(record) -> sample` is called for
    the records of one's own batches only, so `__iter__` can stay cheap. `seek(record)`, an iterator
    from that raw record on, makes resuming fast. `len()` serves progress and schedules only.
    """

    def __iter__(self) -> Iterator[object]:
        """A pass over all records, from the first one on."""


class Described(Protocol):
    """Facts about a dataset's rows, for samplers, models and manifests; all are optional.

    Without `metadata`, samplers that read a column refuse the dataset (`targets` or `labels`, as
    torchvision's have them, become the column `label`). Without `facts`, models and metrics get the
    numbers from the configuration: `data.facts: {num_classes: 10}`.
    """

    classes: Sequence[str]
    columns: Sequence[str]

    @property
    def metadata(self) -> Any:
        """A pandas DataFrame with a row a sample, made without reading samples."""

    @property
    def facts(self) -> Mapping[str, int]:
        """Numbers that models and metrics ask for by name, such as `num_classes`."""

    def path(self, index: int) -> str:
        """The file of a row, for messages, the quarantine file and content hashes."""


class Fingerprinted(Protocol):
    """The identity of a dataset's content; every member is optional.

    Without them the class, its length and its table stand for the content.
    """

    @property
    def fingerprint(self) -> str:
        """A text that changes with what is read: names and sizes of files, arguments."""

    def names_fingerprint(self) -> str:
        """The same of names, labels and arguments alone, for `data.fingerprint=names`."""

    def data_files(self) -> Sequence[tuple[str, str]]:
        """All files as (name below the root, path), for `data.fingerprint=content`."""


class Checkable(Protocol):
    """A dataset that can find errors in a row which can be read."""

    def check(self, index: int) -> str | None:
        """The error of a row, or None."""


class Transform(Protocol):
    """A step of `transform.train` or `transform.val`: any callable.

    Draws from `random`, `numpy.random`, torch and from generators that the step holds itself are
    keyed by the sample. `decodes = True` asks datasets that can (`lazy`) for undecoded pictures.

    `keyed = True` promises to draw from no generator: such a step derives its draws from
    `penstock.order.randomness.key_at_hand()`, its sample's key. Where all steps do and the dataset
    has `draws = False`, generators are not seeded: 7 us a sample less.
    """

    def __call__(self, sample: Any, /) -> Any:
        """The sample that the next step gets."""


class OwnLoss(Protocol):
    """An objective of your own, of which only `loss` is needed; docs/objectives.md has the rest.

    Batches have no padding: each has the n samples of this rank's share of a global batch.
    """

    def loss(self, model: Any, batch: Any, /) -> Any:
        """The loss to train: float32[n], one for each sample; float32[], one for all; or a mapping
        of these by name, of which the sum is trained."""


class Collate(Protocol):
    """Samples to the fields of a batch: any callable that gives a dict, or a tuple with `fields`.

    An optional `order(samples) -> places` gives the order of the rows in the batch. Where the
    sampler packs rows into blocks, it is called with a second argument: `Request.parts`.
    """

    def __call__(self, samples: list[Any], /) -> Mapping[str, Any]:
        """The fields of the batch, by name."""
