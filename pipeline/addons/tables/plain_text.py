"""Files of text as documents, for language models: a folder, a file, or drawn stories.

Every file of a folder, or a single one; by lines for tables, else by pages: a form feed ends a
document, and a longer one than `longest` is cut at the end of a paragraph, a line or a word. All
text of a split is held in memory; for more of it than that, make tokens once and read them with
`dataset=token_files`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from penstock.addons.storage.arrays import CacheFolder
from penstock.addons.tables import drawn_text
from penstock.datasets.files import DataFile, Files, Root, generated_data, open_root
from penstock.datasets.reading.base import (
    FileDataset,
    Part,
    Sample,
    Split,
    fingerprint,
    split_rows,
)
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.data import read_file
from penstock.files.limits import DEFAULT, Count, Fraction, Limits, Seed
from penstock.files.paths import is_remote, local_path
from penstock.terminal import watched

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".txt", ".md", ".rst", ".py", ".tsv")
_BY_LINES = (".tsv", ".csv", ".jsonl")
_MARKS = ("\n\n", "\n", " ")  # where a long document is cut, the best first


class PlainText(FileDataset, Dataset[Sample]):
    """One sample: `text` (str), a document.

    Files are divided between the splits by a keyed hash of their names; the documents of a single
    file by their numbers. Documents of white space alone are left out.

    Args:
        root: a folder or a file; a path or an address. None: drawn stories, written once to
            the user's cache, 1 MB.
        split: "train", "val" or "test".
        suffixes: of the files in a folder that are read.
        lines: whether each line is a document; None: in .tsv, .csv and .jsonl.
        longest: characters of a document.
        encoding: of all files.
        val_fraction, split_seed: share of the files that validate, and the seed of the split.
        cache_dir: where numbers of tokens are kept.
        files: access to addresses.
        limits: bytes of a file.
        test_fraction: share of the files, or documents of one file, that are kept for a test.

    Raises:
        DataError: there is no such file or text, or it is in another encoding.
        ConfigError: an argument is out of range.
    """

    columns: ClassVar[tuple[str, ...]] = ("length", "file")

    def __init__(
        self,
        root: str | None = None,
        split: Split = "train",
        suffixes: Sequence[str] = SUFFIXES,
        lines: bool | None = None,
        longest: Count = 8192,
        encoding: str = "utf-8",
        val_fraction: Fraction = 0.1,
        split_seed: Seed = 0,
        cache_dir: str = "data/cache/text",
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        if longest < 2:
            raise ConfigError(Problem("dataset.longest", f"{longest}; allowed: 2 or more"))
        try:
            # Now, and not at the first file that has a character of it.
            b"text".decode(encoding, "replace")
        except LookupError as error:
            raise ConfigError(Problem("dataset.encoding", str(error))) from None
        how: list[Any] = [
            " ".join(suffixes),
            repr(lines),
            longest,
            encoding,
            split,
            val_fraction,
            split_seed,
        ]
        self._how: list[Part] = [*how, *([test_fraction] if test_fraction else [])]
        self._encoding, self._limits, self._cache_dir = encoding, limits, cache_dir
        if root is None:
            with generated_data(None, "text", drawn_text.NAME, drawn_text.write) as at:
                self.folder: Root = Root(at)
                names = [name for name in self.folder.files() if name.endswith(".txt")]
        else:
            self.folder, names = _files_of(root, tuple(suffixes), files)
        several = len(names) > 1
        shares = split, val_fraction, split_seed, None, test_fraction
        # Whole files are divided, so that pages of one book are on one side.
        if several:
            hashed = np.array([os.fsencode(name) for name in names])
            names = [names[row] for row in split_rows(hashed, *shares).tolist()]
        self.names, found = names, list[tuple[str, int]]()
        for number, name in enumerate(watched(names, len(names), "reading text")):
            by_line = Path(name).suffix.lower() in _BY_LINES if lines is None else lines
            found += [(text, number) for text in self._read(name, by_line, longest)]
        if not several:
            found = [found[row] for row in split_rows(len(found), *shares).tolist()]
        self.texts, self._file_of = [text for text, _ in found], [file for _, file in found]
        if not found and (split != "test" or test_fraction):
            raise DataError(
                f"{str(self.folder)!r}: its {len(names)} file(s) for {split} hold no text"
                + ("." if several else ", or one document only, which cannot be divided.")
            )

    def _read(self, name: str, by_line: bool, longest: int) -> list[str]:
        def decoded(path: str, shown: str) -> list[str]:
            try:
                text = read_file(path, self._limits).decode(self._encoding)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{shown!r}, byte {error.start}: it is not {self._encoding} ({error.reason}). "
                    "Convert or remove the file, or set dataset.encoding, e.g. to latin-1"
                ) from None
            except (OSError, DataError) as error:
                reason = getattr(error, "strerror", None) or error
                raise DataError(f"{shown!r} cannot be read: {reason}") from error
            return list(documents(text, by_line, longest))

        return self.folder.read(name, decoded)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Sample:
        return {"text": self.texts[index]}

    def path(self, index: int) -> str:
        """The path or address of the file of a document."""
        return self.folder.path(self.names[self._file_of[index]])

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per document: length (bytes in UTF-8), file (its name)."""
        import pandas as pd

        files = pd.Categorical.from_codes(self._file_of, categories=pd.Index(self.names))
        return pd.DataFrame({"length": [len(text.encode()) for text in self.texts], "file": files})

    def text_lengths(self, length: Callable[[str], int], name: str) -> npt.NDArray[np.int32]:
        """The length of each text as `length` counts it, int32[N], kept under `name`."""
        cache = CacheFolder(self._cache_dir, f"plain-{self.fingerprint}")
        kept_as = f"lengths-{fingerprint([name])[:16]}"
        return cache.text_lengths(kept_as, self.texts, len(self), length)

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How files are read and divided, their names, and the text itself."""
        parts: list[Part] = ["plain_text", *self._how, *self.names]
        return [*parts, self._contents] if sized else parts

    @cached_property
    def _contents(self) -> str:
        return fingerprint(self.texts)

    def data_files(self) -> Iterator[DataFile]:
        return map(self.folder.data_file, self.names)


def documents(text: str, by_line: bool, longest: int) -> Iterator[str]:
    """The documents of a text in their order, none of white space alone."""
    for page in text.splitlines() if by_line else text.split(drawn_text.PAGE):
        start = 0
        while len(page) - start > longest:
            # A cut at the last mark in the second half: documents stay long, and sentences whole.
            end = start + longest
            for mark in _MARKS:
                at = page.rfind(mark, start + longest // 2, end)
                if at >= 0:
                    end = at + len(mark)
                    break
            if (document := page[start:end]).strip():
                yield document
            start = end
        if (rest := page[start:]).strip():
            yield rest


def _files_of(root: str, suffixes: tuple[str, ...], files: Files | None) -> tuple[Root, list[str]]:
    """The folder of a file or of several, and their names."""
    named = is_remote(root) and root.lower().endswith((*suffixes, *_BY_LINES))
    if named or (not is_remote(root) and Path(local_path(root)).expanduser().is_file()):
        path = (files or Files()).local(root)
        return Root(path.parent), [path.name]
    folder = open_root(root, "the files of text", files)
    names = folder.files()
    kept = [name for name in names if name.lower().endswith(suffixes)]
    if not kept:
        raise DataError(
            f"dataset.root: none of the {len(names)} file(s) below {str(folder)!r} ends in "
            f"{', '.join(suffixes)}. Set dataset.suffixes to those of the text"
        )
    return folder, kept
