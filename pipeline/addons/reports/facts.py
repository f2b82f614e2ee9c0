"""RUN/report/facts.json: what only the running process knew of its data, for the report.

It holds the splits, their classes and lengths, samples of the first batches and predictions, with
small pictures of them in base64. The fit writes it (pipeline/addons/reports/report_facts.py), and
anybody may have changed it, so it is read with checks. No torch is imported.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.files import plain_json
from penstock.files.plain_json import JsonError, checked, shown

FOLDER, NAME, VERSION = "report", "facts.json", 1

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
MADE = "made by the model"  # the group of pictures that are nobody's row
MOST_VALUES = 200  # of a column; the others are counted together
LONGEST = 1000  # characters of a text
MOST_PICTURES = 800 << 10  # bytes, together
_MOST = 500  # members of a list
_LARGEST = 2 << 20  # bytes of the file
_LARGEST_LENGTH = 1e15  # of a sample
_MEDIA = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}  # by their beginning


def _decoded(value: object) -> object:
    """The picture of a text in base64; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        picture = base64.b64decode(value, validate=True)
        _media(picture)
        return picture
    except (ValueError, StopIteration) as error:
        raise ValueError("a picture is no PNG and no JPEG in base64") from error


def _media(picture: bytes) -> str:
    return next(kind for beginning, kind in _MEDIA.items() if picture.startswith(beginning))


def _known(version: int) -> int:
    if version != VERSION:
        raise ValueError(f"version is {shown(version)}, and must be {VERSION}")
    return version


T = TypeVar("T")
Text = Annotated[str, Field(strict=True, max_length=LONGEST)]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Number = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Picture = Annotated[bytes, BeforeValidator(_decoded)]
Listed = Annotated[tuple[T, ...], Field(max_length=_MOST)]


@dataclass(frozen=True)
class ColumnFacts:
    """How often each value of a column occurs.

    Attributes:
        values: the most frequent ones, as texts.
        rows: of each value in the split.
        drawn: how often the sampler draws each in epoch 0; empty if it was not counted.
        others: rows of values that are not listed.
    """

    name: Text
    values: Listed[Text]
    rows: Listed[Count]
    drawn: Listed[Count] = ()
    others: Count = 0

    @model_validator(mode="after")
    def _of_one_length(self) -> ColumnFacts:
        if len(self.rows) != len(self.values) or len(self.drawn) not in (0, len(self.values)):
            raise ValueError(f"data.splits: column {self.name[:60]!r} has lists of unequal length")
        return self


@dataclass(frozen=True)
class LengthFacts:
    """A histogram: counts[i] rows have a length from edges[i] up to edges[i + 1]."""

    unit: Text
    edges: Listed[Number]
    counts: Listed[Count]
    least: Number
    median: Number
    most: Number

    @model_validator(mode="after")
    def _can_be_drawn(self) -> LengthFacts:
        rising = all(left < right for left, right in pairwise(self.edges))
        if not self.counts or len(self.edges) != len(self.counts) + 1 or not rising:
            raise ValueError("data.splits: lengths need one rising edge more than counts")
        if max(map(abs, self.edges)) > _LARGEST_LENGTH:
            raise ValueError(f"data.splits: lengths are above {_LARGEST_LENGTH:g}")
        return self


@dataclass(frozen=True)
class SplitFacts:
    """A split: the class of its dataset, its rows (None: a stream), and its fingerprint."""

    name: Text
    dataset: Text
    rows: Count | None
    fingerprint: Text
    columns: Listed[ColumnFacts] = ()
    lengths: LengthFacts | None = None


@dataclass(frozen=True)
class DataFacts:
    """The data of a run.

    Attributes:
        mode: of the fingerprints: names, sizes or content.
        drawn: places of epoch 0 whose rows were counted, of `places` in all; None for streams.
    """

    mode: Text
    splits: Listed[SplitFacts]
    drawn: Count | None = None
    places: Count | None = None


@dataclass(frozen=True)
class ShownSample:
    """A sample to look at.

    Attributes:
        index: row of the dataset.
        path: its file, if it has one.
        truth, predicted: in words, where words say them.
        words: its content, if that is a text or a few numbers; the length of a signal.
        picture: a PNG or a JPEG.
        position: its place in the epoch, in batches.
        loss, group: of predictions; the group is best, median or worst, or `MADE`.
    """

    index: Count
    path: Text = ""
    truth: Text = ""
    predicted: Text = ""
    words: Text = ""
    picture: Picture | None = None
    position: Count | None = None
    loss: Number | None = None
    group: Text = ""

    @property
    def uri(self) -> str | None:
        """The picture as `data:image/...`."""
        if self.picture is None:
            return None
        return f"data:{_media(self.picture)};base64,{base64.b64encode(self.picture).decode()}"


@dataclass(frozen=True)
class ShownBatch:
    """A training batch as the model got it; `samples` are its first ones, of `rows`.

    `kind` is pictures, views (several of each, side by side), boxes, masks, clips, signals,
    recordings (signals below the waveforms that they were made of), series (with what followed),
    texts or numbers.
    """

    epoch: Count
    step: Count
    rows: Count
    kind: Text
    samples: Listed[ShownSample]


@dataclass(frozen=True)
class LossFacts:
    """The losses by which predictions were chosen.

    Attributes:
        epoch: whose validation it was.
        samples: how many losses there were.
        quantiles: of the losses, at `QUANTILES`; empty if none was finite.
        by_batch: the loss is one number a batch, so its samples have the same.
        ranks: how many shared the validation; the losses are those of the first one.
    """

    epoch: Count
    samples: Count
    quantiles: Listed[Number]
    by_batch: Flag = False
    ranks: Count = 1

    @model_validator(mode="after")
    def _has_all_quantiles(self) -> LossFacts:
        if len(self.quantiles) not in (0, len(QUANTILES)):
            raise ValueError(f"losses.quantiles must be {len(QUANTILES)} numbers")
        return self


@dataclass(frozen=True)
class Facts:
    """The content of a facts.json."""

    version: Annotated[Count, AfterValidator(_known)]
    data: DataFacts | None = None
    batches: Listed[ShownBatch] = ()
    predictions: Listed[ShownSample] = ()
    losses: LossFacts | None = None
    notes: Listed[Text] = ()  # what is missing, and why


def written(facts: Facts) -> bytes:
    """The file's content."""
    text = json.dumps(
        asdict(facts), default=lambda picture: base64.b64encode(picture).decode(), indent=1
    )
    return text.encode()


def read_facts(run: Path) -> Facts | None:
    """The facts of the run in `run`; None if it wrote none.

    Raises:
        PenstockError: facts.json is damaged, or of another version.
    """
    path = run / FOLDER / NAME
    try:
        return checked(Facts, plain_json.read(path, _LARGEST))
    except FileNotFoundError:
        return None
    except (OSError, JsonError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PenstockError(f"{path} cannot be used: {reason}") from error
