"""Files of text as documents, for language models: a folder, a file, or drawn stories.

Every file of a folder, or a single one; by lines for tables, else by pages: a form feed ends a
document, and a longer one than `longest` is cut at the end of a paragraph, a line or a word. They
are a table with one column, which is converted once like any other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from penstock.addons.storage.rows import TableRows
from penstock.addons.tables.read import PAGE, Csv, files_at
from penstock.addons.tables.table import MappedTable
from penstock.datasets.files import Files, generated_data
from penstock.datasets.reading.base import Shares, Split
from penstock.files.limits import DEFAULT, Count, Limits
from penstock.order.keys import hash64

SUFFIXES = (".txt", ".md", ".rst", ".py", ".tsv")


class PlainText(MappedTable):
    """One sample: `text` (str), a document.

    Files are divided between the splits by their names: those that begin with train, val and test,
    else by a keyed hash; the documents of a single file by their numbers. Documents of white space
    alone are left out, and files whose name begins with "_" or ".".

    Args:
        root: a folder, a file or a pattern of files; a path or an address. None: drawn stories,
            written once to the user's cache, 1 MB.
        split: "train", "val" or "test".
        suffixes: of the files in a folder that are read.
        lines: whether each line is a document; None: in .tsv, .csv and .jsonl.
        longest: characters of a document.
        encoding: of all files.
        shares: of the files, or documents of one file, that validate and test.
        cache_dir: where documents and numbers of tokens are kept.
        files: access to addresses.
        limits: bytes of a document.

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
        shares: Shares = Shares(0.1),
        cache_dir: str = "data/cache/text",
        files: Files | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        if root is None:
            with generated_data(None, "text", STORIES, write_stories) as drawn:
                root = drawn
        self._open(
            partial(files_at, root, None, tuple(suffixes), files),
            Csv(encoding=encoding, longest=longest, lines=lines),
            split,
            shares,
            cache_dir,
            limits,
        )

    def path(self, index: int) -> str:
        """The path or address of the file of a document."""
        return self.source.files.addresses[self._pack.place(int(self.rows.rows([index])[0]))[0]]

    def _divided(self, total: int) -> TableRows:
        files = self.source.files
        if files.whole or len(files) == 1:
            return super()._divided(total)
        # Whole files are divided, so that pages of one book are on one side.
        names = np.array([*map(os.fsencode, files.names)])
        own = files.shares(self._shares).rows(self._split, names)
        of_files = np.repeat(np.arange(len(files)), self._pack.record["rows"])
        return TableRows(np.flatnonzero(np.isin(of_files, own)))


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
        (folder / f"stories-{file:03}.txt").write_text(PAGE.join(stories), encoding="utf-8")


def _story(number: int) -> str:
    def draw(of: str, sentence: int = 0) -> str:
        return (words := _WORDS[of].split())[hash64("story", number, of, sentence) % len(words)]

    whole = {of: draw(of) for of in ("person", "animal", "place")}
    parts = [f"{whole['person']} and the {whole['animal']} of the {whole['place']}\n\n"]
    for sentence in range(1, _SENTENCES + 1):
        form = hash64("story", number, "sentence", sentence) % len(_FORMS)
        parts.append(
            (_FORMS[form] + (" " if sentence % 5 else "\n")).format(
                **whole,
                **{of: draw(of, sentence) for of in ("when", "verb", "what")},
                other=draw("what", -sentence),
                number=2 + hash64("story", number, "number", sentence) % 98,
            )
        )
    return "".join(parts)
