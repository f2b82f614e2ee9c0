"""How the pages read, in figures: `python -m tests.prose.prose [PAGE ...]` prints a table.

A page's paragraphs and list items are split into sentences; tables, headings and code are left out,
and code within a line counts as one word. The figures are heuristics, good for comparing a page
with itself: a sentence is passive if a form of "be" or "get" comes before a past participle, and
pyphen's points of hyphenation stand for syllables, of which it misses some. (textstat has the same
formula, but downloads a corpus when it is called.)
"""

import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from pyphen import Pyphen

ROOT = Path(__file__).parent.parent.parent
PAGES = (
    "README.md",
    "CHANGELOG.md",
    *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
)
GLOSSARY = "docs/glossary.md"
GENERATED = ("docs/keys.md",)

# What reads badly, and what to write instead.
BANNED = {
    r"\btold\b": "name the actor: 'is set to', 'knows', 'says'",
    r"\bas of\b": "since, from",
    r"\bin (?:the |its |their )?place of\b": "instead of, replaces",
    r"\bwho(?:m)?ever\b": "anyone who",
    r"^What\b(?! matters)[^?]*$": "begin with the subject, and put the verb behind it",
    r"\b(?:where|there|here)(?:by|of|in|upon|after|with|from)\b": "two sentences",
    r"\b(?:thus|hence|henceforth|lest|albeit|whilst|upon|amid|likewise)\b": "a common word",
    r"\bof (?:yours|ours|theirs|his|hers)\b": "your, our, their",
    r"\bas such\b": "say as what",
    r"\bevery one of\b": "each, all",
    r"\b(?:goes|go|going|gone) on\b(?! to\b)": "continues, resumes",
    r"\bin order to\b": "to",
    r"\bprior to\b": "before",
    r"\butili[sz]e": "use",
    r"\bnot yet there\b|\bis there already\b|\bwhat lies\b": "exists, has been",
}

IRREGULAR = (
    "begun|bent|bought|bound|broken|brought|built|burnt|caught|chosen|cut|dealt|done|drawn|driven|"
    "eaten|fed|felt|fixed|found|forgotten|given|gone|ground|grown|heard|held|hidden|hit|hung|kept|"
    "known|laid|left|lent|let|lost|made|meant|met|mixed|overridden|paid|put|read|ridden|run|said|"
    "seen|sent|set|shown|shut|split|spent|spread|stood|stolen|swept|taken|taught|thrown|told|torn|"
    "understood|woken|won|worn|written"
)
PASSIVE = re.compile(
    r"\b(?:is|are|was|were|be|been|being|gets?|got)\s+(?:not\s+|never\s+|\w+ly\s+|also\s+|then\s+)*"
    rf"(?:\w{{2,}}ed|{IRREGULAR})\b",
    re.IGNORECASE,
)
NO_PARTICIPLE = re.compile(r"\b(?:is|are|was|were|be) (?:need|seed|speed|embed|hundred|red|bed)\b")
END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")
CODE = "Code"
_markdown = MarkdownIt("commonmark").enable("table")


class Figures(NamedTuple):
    """Of one page: lengths in words, shares from 0 to 1, Flesch's reading ease (more is easier)."""

    words: int
    mean: float
    ninth: int
    passive: float
    flesch: float


def passages(markdown):
    """The texts of a page, each with where it stands: "p", "heading" or "table"."""
    where = ["p"]
    for token in _markdown.parse(markdown):
        if token.type in ("heading_open", "table_open"):
            where.append(token.type.removesuffix("_open"))
        elif token.type in ("heading_close", "table_close"):
            where.pop()
        elif token.type == "inline":
            yield where[-1], "".join(_shown(part) for part in token.children)


def _shown(part):
    if part.type in ("softbreak", "hardbreak"):
        return " "
    return CODE if part.type == "code_inline" else part.content if part.type == "text" else ""


def sentences(markdown):
    """The sentences of paragraphs and list items."""
    for where, text in passages(markdown):
        if where == "p":
            yield from (part for part in END.split(text.strip()) if words(part))


def words(text):
    """Words of a text; numbers are words."""
    return re.findall(r"\w+(?:[-'’.]\w+)*", text)


@cache
def _syllables(word):
    return len(_hyphens().positions(word)) + 1


@cache
def _hyphens():
    return Pyphen(lang="en_US")


def is_passive(sentence):
    """Whether a form of "be" stands before a past participle."""
    return bool(PASSIVE.search(NO_PARTICIPLE.sub("", sentence)))


def figures(markdown):
    """The figures of a page."""
    split = list(sentences(markdown))
    lengths = sorted(len(words(sentence)) for sentence in split)
    spoken = [word for sentence in split for word in words(sentence) if word != CODE]
    if not spoken:
        return Figures(0, 0.0, 0, 0.0, 0.0)
    mean = sum(lengths) / len(lengths)
    syllables = sum(map(_syllables, spoken)) / len(spoken)
    return Figures(
        sum(lengths),
        mean,
        lengths[int(0.9 * (len(lengths) - 1))],
        sum(map(is_passive, split)) / len(split),
        206.835 - 1.015 * mean - 84.6 * syllables,
    )


def flaws(markdown):
    """Banned words and wrong terms of a page: (what stands there, what to write instead)."""
    for where, text in passages(markdown):
        for pattern, instead in BANNED.items():
            for part in END.split(text) if where == "p" or pattern[0] != "^" else ():
                if hit := re.search(pattern, part, re.IGNORECASE):
                    yield _around(part, hit), instead
        for pattern, term in synonyms().items():
            for hit in re.finditer(pattern, text, re.IGNORECASE):
                yield _around(text, hit), f"'{term}' (docs/glossary.md)"


@cache
def synonyms():
    """Wrong words by pattern, each with our term: the last column of docs/glossary.md."""
    rows = re.findall(r"^\| (.+?) \| .+ \| (.+) \|$", (ROOT / GLOSSARY).read_text(), re.MULTILINE)
    return {
        _pattern(word): term
        for term, wrong in rows
        for word in wrong.split(", ")
        if wrong.strip(" -") and wrong != "not"
    }


def _pattern(word):
    """A word and its plural, with a hyphen or a space between its parts."""
    plural = rf"{word[:-1]}(?:y|ies)" if word.endswith("y") else rf"{word}(?:s|es)?"
    return rf"(?<![\w-]){re.sub('[- ]', '[- ]', plural)}\b"


def _around(text, hit):
    return f"...{text[max(0, hit.start() - 40) : min(hit.end(), hit.start() + 40) + 30]}..."


def main(pages):
    """Print the table, and then the flaws."""
    print(
        f"{'page':28} {'words':>6} {'mean':>5} {'90%':>4} {'passive':>7} {'flesch':>6} {'flaws':>5}"
    )
    listed = []
    for page in pages:
        text = (ROOT / page).read_text()
        bad = list(flaws(text))
        of = figures(text)
        print(
            f"{page:28} {of.words:6} {of.mean:5.1f} {of.ninth:4} {of.passive:7.0%} "
            f"{of.flesch:6.0f} {len(bad):5}"
        )
        listed += [f"{page}: {part} -> {instead}" for part, instead in bad]
    print(*listed, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:] or [page for page in PAGES if page not in GENERATED])
