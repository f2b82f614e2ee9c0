"""RUN/report/facts.json: what only the running process knew of its data, for the report.

It holds the splits, their classes and lengths, samples of the first batches and predictions, with
small pictures of them in base64. The fit writes it (pipeline/addons/reports/report_facts.py), and
anybody may have changed it, so it is read with checks. No torch is imported.
"""

from __future__ import annotations

import base64
import json
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from penstock.errors import PenstockError
from penstock.files import plain_json
from penstock.files.plain_json import JsonError, mapping, shown

FOLDER, NAME, VERSION = "report", "facts.json", 1

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
MOST_VALUES = 200  # of a column; the others are counted together
LONGEST = 1000  # characters of a text
MOST_PICTURES = 800 << 10  # bytes, together
_MOST = 500  # members of a list
_LARGEST = 2 << 20  # bytes of the file
_LARGEST_LENGTH = 1e15  # of a sample
_MEDIA = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}  # by their beginning

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class ColumnFacts:
    """How often each value of a column occurs.

    Attributes:
        values: the most frequent ones, as texts.
        rows: of each value in the split.
        drawn: how often the sampler draws each in epoch 0; empty if it was not counted.
        others: rows of values that are not listed.
    """

    name: str
    values: tuple[str, ...]
    rows: tuple[int, ...]
    drawn: tuple[int, ...] = ()
    others: int = 0


@dataclass(frozen=True)
class LengthFacts:
    """A histogram: counts[i] rows have a length from edges[i] up to edges[i + 1]."""

    unit: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    least: float
    median: float
    most: float


@dataclass(frozen=True)
class SplitFacts:
    """A split: the class of its dataset, its rows (None: a stream), and its fingerprint."""

    name: str
    dataset: str
    rows: int | None
    fingerprint: str
    columns: tuple[ColumnFacts, ...] = ()
    lengths: LengthFacts | None = None


@dataclass(frozen=True)
class DataFacts:
    """The data of a run.

    Attributes:
        mode: of the fingerprints: names, sizes or content.
        drawn: places of epoch 0 whose rows were counted, of `places` in all; None for streams.
    """

    mode: str
    splits: tuple[SplitFacts, ...]
    drawn: int | None = None
    places: int | None = None


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
        loss, group: of predictions; the group is best, median or worst.
    """

    index: int
    path: str = ""
    truth: str = ""
    predicted: str = ""
    words: str = ""
    picture: bytes | None = None
    position: int | None = None
    loss: float | None = None
    group: str = ""

    @property
    def uri(self) -> str | None:
        """The picture as `data:image/...`."""
        if self.picture is None:
            return None
        return f"data:{_media(self.picture)};base64,{base64.b64encode(self.picture).decode()}"


@dataclass(frozen=True)
class ShownBatch:
    """A training batch as the model got it; `samples` are its first ones, of `rows`.

    `kind` is pictures, signals, recordings (signals below the waveforms that they were made of),
    texts or numbers.
    """

    epoch: int
    step: int
    rows: int
    kind: str
    samples: tuple[ShownSample, ...]


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

    epoch: int
    samples: int
    quantiles: tuple[float, ...]
    by_batch: bool = False
    ranks: int = 1


@dataclass(frozen=True)
class Facts:
    """The content of a facts.json."""

    version: int
    data: DataFacts | None = None
    batches: tuple[ShownBatch, ...] = ()
    predictions: tuple[ShownSample, ...] = ()
    losses: LossFacts | None = None
    notes: tuple[str, ...] = ()  # what is missing, and why


def written(facts: Facts) -> bytes:
    """The file's content."""
    text = json.dumps(asdict(facts), default=lambda one: base64.b64encode(one).decode(), indent=1)
    return text.encode()


def read_facts(run: Path) -> Facts | None:
    """The facts of the run in `run`; None if it wrote none.

    Raises:
        PenstockError: facts.json is damaged, or of another version.
    """
    path = run / FOLDER / NAME
    try:
        found = mapping(plain_json.read(path, _LARGEST))
        if found.get("version") != VERSION:
            raise JsonError(f"version is {shown(found.get('version'))}, and must be {VERSION}")
        facts: Facts = _checked(Facts, found, "")
        for split in facts.data.splits if facts.data else ():
            _check_lists(split)
        if facts.losses and len(facts.losses.quantiles) not in (0, len(QUANTILES)):
            raise JsonError(f"losses.quantiles must be {len(QUANTILES)} numbers")
        return facts
    except FileNotFoundError:
        return None
    except (OSError, JsonError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PenstockError(f"{path} cannot be used: {reason}") from error


def _media(picture: bytes) -> str:
    found = next((kind for begin, kind in _MEDIA.items() if picture.startswith(begin)), None)
    if found is None:
        raise ValueError("no PNG and no JPEG")
    return found


def _check_lists(split: SplitFacts) -> None:
    """Raise JsonError where lists do not fit together, or cannot be drawn."""
    for one in split.columns:
        if len(one.rows) != len(one.values) or len(one.drawn) not in (0, len(one.values)):
            raise JsonError(f"data.splits: column {one.name[:60]!r} has lists of unequal length")
    lengths = split.lengths
    if lengths is not None:
        rising = all(left < right for left, right in pairwise(lengths.edges))
        if not lengths.counts or len(lengths.edges) != len(lengths.counts) + 1 or not rising:
            raise JsonError("data.splits: lengths need one rising edge more than counts")
        if max(map(abs, lengths.edges)) > _LARGEST_LENGTH:
            raise JsonError(f"data.splits: lengths are above {_LARGEST_LENGTH:g}")


def _checked(kind: Any, value: Any, where: str) -> Any:
    """`value`, parsed from JSON, as `kind`: a dataclass, tuple[X, ...], X | None, or a plain type.

    Raises:
        JsonError: it is something else, or too large.
    """
    if get_origin(kind) in (Union, types.UnionType):
        if value is None:
            return None
        kind = next(one for one in get_args(kind) if one is not types.NoneType)
    if get_origin(kind) is tuple:
        if not isinstance(value, list) or len(value) > _MOST:
            raise JsonError(f"{where} is {shown(value)}, and must be a list of at most {_MOST}")
        inner = get_args(kind)[0]
        return tuple(_checked(inner, one, f"{where}[{place}]") for place, one in enumerate(value))
    if is_dataclass(kind):
        return _dataclass(kind, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)  # at most 100 digits, which a float can hold
    if kind is bytes and isinstance(value, str):
        try:
            value = base64.b64decode(value, validate=True)
            _media(value)
        except ValueError as error:
            raise JsonError(f"{where} is no PNG and no JPEG in base64") from error
    if type(value) is not kind:
        raise JsonError(f"{where} is {shown(value)}, and must be of type {kind.__name__}")
    if isinstance(value, str) and len(value) > LONGEST:
        raise JsonError(f"{where} has {len(value)} characters, more than {LONGEST}")
    if isinstance(value, int) and not 0 <= value < 2**63:
        raise JsonError(f"{where} is {shown(value)}, and must be a count")
    return value


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise JsonError(f"{where} is {shown(value)}, and must be a mapping")
    hints = get_type_hints(kind)
    inner = {
        name: _checked(hints[name], value[name], f"{where}.{name}".lstrip("."))
        for name in value
        if name in hints  # a later version may say more
    }
    try:
        return kind(**inner)
    except TypeError as error:
        raise JsonError(f"{where or 'it'}: {error}") from error
