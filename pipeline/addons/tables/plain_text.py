"""Files of text as documents, for language models: a folder, a file, or drawn stories.

Every file of a folder, or a single one; by lines for tables, else by pages: a form feed ends a
document, and a longer one than `longest` is cut at the end of a paragraph, a line or a word. All
text of a split is held in memory; for more of it than that, make tokens once and read them with
`dataset=token_files`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from penstock.addons.storage.arrays import CacheFolder
from penstock.datasets.files import (
    DataFile,
    Files,
    Root,
    generated_data,
    local_file,
    open_root,
    with_endings,
)
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
from penstock.files.paths import is_remote
from penstock.order.keys import hash64
from penstock.terminal import watched

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".txt", ".md", ".rst", ".py", ".tsv")
_BY_LINES = (".tsv", ".csv", ".jsonl")
_PAGE = "\f"  # between two documents of a file
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
        how = (" ".join(suffixes), repr(lines), longest, encoding, split, val_fraction, split_seed)
        self._how: list[Part] = [*how, *([test_fraction] if test_fraction else [])]
        self._encoding, self._limits, self._cache_dir = encoding, limits, cache_dir
        if root is None:
            with generated_data(None, "text", STORIES, write_stories) as drawn:
                root = drawn
        is_named = is_remote(root) and root.lower().endswith((*suffixes, *_BY_LINES))
        if is_named or local_file(root).is_file():
            path = (files or Files()).local(root)
            self.folder, names = Root(path.parent), [path.name]
        else:
            self.folder = open_root(root, "the files of text", files)
            names = with_endings(
                self.folder.files(), tuple(suffixes), root if split == "train" else None
            )
        several = len(names) > 1
        shares = split, val_fraction, split_seed, None, test_fraction
        # Whole files are divided, so that pages of one book are on one side.
        if several:
            hashed = np.array([os.fsencode(name) for name in names])
            names = [names[row] for row in split_rows(hashed, *shares).tolist()]
        self.names, found = names, list[tuple[str, int]]()
        for number, name in enumerate(watched(names, len(names), "reading text")):
            by_line = Path(name).suffix.lower() in _BY_LINES if lines is None else lines
            text = self.folder.read(name, self._decoded)
            found += [(document, number) for document in documents(text, by_line, longest)]
        if not several:
            found = [found[row] for row in split_rows(len(found), *shares).tolist()]
        self.texts, self._file_of = [text for text, _ in found], [file for _, file in found]
        if not found and (split != "test" or test_fraction):
            raise DataError(
                f"{str(self.folder)!r}: its {len(names)} file(s) for {split} hold no text"
                + ("." if several else ", or one document only, which cannot be divided.")
                + f" dataset.suffixes says what is read of a folder: {', '.join(suffixes)}."
            )

    def _decoded(self, path: str, shown: str) -> str:
        try:
            return read_file(path, self._limits).decode(self._encoding)
        except LookupError as error:
            raise ConfigError(Problem("dataset.encoding", str(error))) from None
        except UnicodeDecodeError as error:
            raise DataError(
                f"{shown!r}, byte {error.start}: it is not {self._encoding} ({error.reason}). "
                "Convert or remove the file, or set dataset.encoding, e.g. to latin-1"
            ) from None
        except (OSError, DataError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{shown!r} cannot be read: {reason}") from error

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
        return [*parts, fingerprint(self.texts)] if sized else parts

    def data_files(self) -> Iterator[DataFile]:
        return map(self.folder.data_file, self.names)


def documents(text: str, by_line: bool, longest: int) -> Iterator[str]:
    """The documents of a text in their order, none of white space alone."""
    # All of a short rest, which no backtracking (`+`) searches; else up to the last mark in the
    # second half, so documents stay long and sentences whole; else just so many characters.
    at_marks = (f".{{{longest // 2},{longest - len(mark)}}}{mark}" for mark in _MARKS)
    cut = re.compile("|".join([rf".{{1,{longest}}}+\Z", *at_marks, f".{{{longest}}}"]), re.DOTALL)
    for page in text.splitlines() if by_line else text.split(_PAGE):
        yield from filter(str.strip, cut.findall(page))


# Stories that are drawn from a small grammar: text that every installation can make. One is about
# one person, animal and place, so a model that looks back learns more of it than one that counts
# words. Draws are whole numbers of keyed hashes: every machine makes the same bytes.

STORIES = "stories-v1"  # another one when the text changes
_FILES, _STORIES, _SENTENCES = 160, 12, 10

_WORDS = {
    "person": "Ada Ben Clara David Elif Farid Greta Hugo Ines Jonas Kemal Lena Mira Noah Olga Paul",
    "animal": "cat dog fox hen horse mouse owl rabbit raven seal snail toad",
    "place": "barn bridge forest garden harbour hill market meadow mill orchard river school",
    "when": "Today Yesterday Once Often Sometimes Soon",
    "verb": "follows finds calls hears helps loves misses paints remembers visits watches",
    "what": "angry brave cold curious happy hungry lazy old patient quiet quick small tired young",
}
_FORMS = (
    "{when}, {person} {verb} the {what} {animal}.",
    "The {animal} {verb} {person} near the {place}.",
    "{person} is {what}, and the {animal} is {other}.",
    "{when}, the {place} was empty, but {person} {verb} the {animal}.",
    "Nobody in the {place} knows why the {animal} is so {what}.",
    "{person} counts to {number} and walks to the {place}.",
)


def write_stories(folder: Path) -> None:
    """Write the text, files of several stories: 1.0 MB in 0.2 s."""
    for file in range(_FILES):
        stories = (_story(file * _STORIES + number) for number in range(_STORIES))
        (folder / f"stories-{file:03}.txt").write_text(_PAGE.join(stories), encoding="utf-8")


def _story(number: int) -> str:
    def draw(of: str, sentence: int = 0) -> str:
        words = _WORDS[of].split()
        return words[hash64("story", number, of, sentence) % len(words)]

    whole = {of: draw(of) for of in ("person", "animal", "place")}
    parts = [f"{whole['person']} and the {whole['animal']} of the {whole['place']}\n\n"]
    for sentence in range(1, _SENTENCES + 1):
        form = hash64("story", number, "sentence", sentence) % len(_FORMS)
        made = _FORMS[form].format(
            **whole,
            **{of: draw(of, sentence) for of in ("when", "verb", "what")},
            other=draw("what", -sentence),
            number=2 + hash64("story", number, "number", sentence) % 98,
        )
        parts.append(made + (" " if sentence % 5 else "\n"))
    return "".join(parts)
