"""From the bytes of one record to its fields, strictly.

    standard    RFC 4180: a field may be in quotes; inside, a quote is doubled and the delimiter and
                line ends are text
    none        every character is text, also a quote; a field cannot contain the delimiter

Cost: about 1 us a record without quotes, 3 us with.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath

from penstock.addons.tables.text.record_index import QUOTES, Quoting
from penstock.datasets.reading.base import Sample
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Limits


class BadRecord(Exception):
    """An invalid record; the caller adds the file and the line."""


@dataclass(frozen=True)
class Columns:
    """The fields of a record.

    Attributes:
        names: of all columns, in order.
        text, label: positions of those two; label None if there is none.
        in_file: whether the file's first record has the names.
    """

    names: tuple[str, ...]
    text: int
    label: int | None
    in_file: bool

    @property
    def label_name(self) -> str:
        assert self.label is not None
        return self.names[self.label]


@dataclass(frozen=True)
class DelimitedFormat:
    """The syntax of records; ConfigError if an argument is invalid.

    Args:
        delimiter: one ASCII character.
        quoting: "standard" or "none".
        encoding: UTF-8, or one with a byte a character that agrees with ASCII.
        limits: `columns`.
    """

    delimiter: str = "\t"
    quoting: Quoting = "standard"
    encoding: str = "utf-8"
    # Not part of the repr, from which fingerprints are computed.
    limits: Limits = field(default_factory=Limits, repr=False, compare=False)

    def __post_init__(self) -> None:
        problems = []
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n':
            reason = f'{self.delimiter!r}; allowed: one ASCII character other than " and line ends'
            problems.append(Problem("dataset.delimiter", reason))
        if self.quoting not in ("standard", "none"):
            reason = f"{self.quoting!r}; allowed: standard, none"
            problems.append(Problem("dataset.quoting", reason))
        if not _is_supported(self.encoding):
            reason = (
                f"{self.encoding!r}; allowed: utf-8, and encodings of a byte a character, such as "
                "latin-1. Convert the file: iconv -t utf-8"
            )
            problems.append(Problem("dataset.encoding", reason))
        if problems:
            raise ConfigError(problems)

    @classmethod
    def of(
        cls, name: str, delimiter: str | None, quoting: Quoting, encoding: str, limits: Limits
    ) -> DelimitedFormat:
        """The format; a delimiter of None is a comma for `.csv` (also `.csv.gz`) and else a tab."""
        if delimiter is None:
            delimiter = "," if ".csv" in PurePath(name.lower()).suffixes else "\t"
        return cls(delimiter, quoting, encoding, limits)

    def fields(self, record: bytes) -> list[str]:
        """The fields of a record.

        BadRecord: wrong encoding or quotes, or more fields than `limits.columns`.
        """
        try:
            text = record.decode(self.encoding)
        except UnicodeDecodeError as error:
            raise BadRecord(
                f"byte {error.start + 1} of the record (0x{record[error.start]:02x}) is not "
                f"{self.encoding}. Save the file as that, or set dataset.encoding."
            ) from None
        if self.quoting == "none" or '"' not in text:
            fields = text.split(self.delimiter, self.limits.columns)
            self._check_count(fields)
            return fields
        fields = []
        at = 0
        while True:
            match = self._field.match(text, at)
            if match is None:
                raise BadRecord(
                    f"in its field {len(fields) + 1} a quote neither opens nor closes the field "
                    f"(RFC 4180). {QUOTES}"
                )
            quoted, plain, end = match.groups()
            fields.append(plain if quoted is None else quoted.replace('""', '"'))
            self._check_count(fields)
            if not end:
                return fields
            at = match.end()

    def _check_count(self, fields: Sequence[str]) -> None:
        if len(fields) > self.limits.columns:
            claim = f"the record has {len(fields)} fields or more"
            raise BadRecord(f"{self.limits.refusal('columns', claim)}.")

    @cached_property
    def _field(self) -> re.Pattern[str]:
        border = re.escape(self.delimiter)
        return re.compile(rf'(?:"((?:[^"]|"")*+)"|([^"{border}]*+))({border}|\Z)')

    def columns(
        self,
        first: bytes,
        name: str,
        header: bool | None,
        names: Sequence[str] | None,
        text: str,
        label: str | None,
    ) -> Columns:
        """The columns, from the first record of a file and the configuration.

        Args:
            first: the first record.
            name: of the file, for messages.
            header, names, text, label: as configured.

        Raises:
            DataError: the file has other columns, or names one twice.
            ConfigError: there is neither a header nor `names`.
        """
        try:
            fields = [name.strip() for name in self.fields(first)]
        except BadRecord as bad:
            raise DataError(f"{name!r}, line 1: {bad}") from None
        in_file = header if header is not None else names is None or fields == list(names)
        if names is None and not in_file:
            reason = "the file has no header (dataset.header=false): set the names of its columns"
            raise ConfigError(Problem("dataset.columns", reason))
        chosen = fields if names is None else list(names)
        if len(fields) != len(chosen) or (in_file and fields != chosen):
            raise DataError(
                f"{name!r}, line 1: the columns are {_listed(fields)}, but dataset.columns says "
                f"{_listed(chosen)}. Correct one of them; dataset.delimiter is {self.delimiter!r}."
            )
        if len(set(chosen)) < len(chosen):
            double = Counter(chosen).most_common(1)[0][0]
            raise DataError(f"{name!r}, line 1: column {double!r} appears twice.")
        for key, column in (("text", text), ("label", label)):
            if column is not None and column not in chosen:
                raise DataError(
                    f"{name!r}, line 1: column {column!r} (dataset.{key}) is missing; there are "
                    f"{_listed(chosen)}. Name one of these; if that is not a header, set "
                    f"dataset.columns. dataset.delimiter is {self.delimiter!r}."
                )
        label_at = None if label is None else chosen.index(label)
        return Columns(tuple(chosen), chosen.index(text), label_at, in_file)

    def sample(self, record: bytes, columns: Columns, codes: Mapping[str, int]) -> Sample:
        """`text` (str) and, with a label column, `label` (int); raises BadRecord."""
        fields = self.fields(record)
        if len(fields) != len(columns.names):
            raise BadRecord(miscounted(len(fields), columns, blank=not record))
        if columns.label is None:
            return {"text": fields[columns.text]}
        label = fields[columns.label]
        if label not in codes:
            raise BadRecord(unknown_label(label, columns, codes))
        return {"text": fields[columns.text], "label": codes[label]}


def miscounted(count: int, columns: Columns, blank: bool = False) -> str:
    """The error of a record with too few or too many fields."""
    has = "it is blank" if blank else f"it has {count} field{'s' * (count != 1)}"
    return (
        f"{has}, but there are {len(columns.names)} columns ({_listed(columns.names)}). Repair "
        "or remove it."
    )


def unknown_label(label: str, columns: Columns, classes: Mapping[str, int]) -> str:
    """The error of a label that is not a class."""
    return (
        f"column {columns.label_name!r} has {label[:40]!r}, which is not one of the "
        f"classes {_listed(list(classes))}. Repair it, or add it to dataset.classes."
    )


def class_codes(classes: Sequence[str]) -> dict[str, int]:
    """Class name -> number; ConfigError if a class appears twice, or there is none."""
    codes = {name: code for code, name in enumerate(classes)}
    if len(codes) < len(classes) or not codes or not all(isinstance(name, str) for name in codes):
        reason = f"{list(classes)!r}; allowed: a list of different texts (quote numbers in YAML)"
        raise ConfigError(Problem("dataset.classes", reason))
    return codes


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _is_supported(encoding: str) -> bool:
    try:
        if codecs.lookup(encoding).name in ("utf-8", "ascii"):
            return True
        every = bytes(range(256)).decode(encoding, "replace")
        return len(every) == 256 and every[:128].isascii() and every[10] == "\n"
    except (LookupError, UnicodeError, TypeError):
        return False
