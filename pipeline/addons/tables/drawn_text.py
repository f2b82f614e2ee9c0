"""Short stories that are drawn from a small grammar: text that every installation can make.

A story is about one person, animal and place, so a model that looks back learns more of it than
one that counts words. Draws are whole numbers of keyed hashes: every machine makes the same bytes.
"""

from __future__ import annotations

from pathlib import Path

from penstock.order.keys import hash64

NAME = "stories-v1"  # another one when the text changes
PAGE = "\f"  # between two documents of a file
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


def write(folder: Path) -> None:
    """Write the text, files of several stories: 1.0 MB in 0.2 s."""
    for file in range(_FILES):
        stories = (_story(file * _STORIES + number) for number in range(_STORIES))
        (folder / f"stories-{file:03}.txt").write_text(PAGE.join(stories), encoding="utf-8")


def _story(number: int) -> str:
    def draw(of: str, sentence: int = 0) -> str:
        words = _WORDS[of].split()
        return words[hash64("story", number, of, sentence) % len(words)]

    whole = {of: draw(of) for of in ("person", "animal", "place")}
    told = [f"{whole['person']} and the {whole['animal']} of the {whole['place']}\n\n"]
    for sentence in range(1, _SENTENCES + 1):
        form = hash64("story", number, "sentence", sentence) % len(_FORMS)
        made = _FORMS[form].format(
            **whole,
            **{of: draw(of, sentence) for of in ("when", "verb", "what")},
            other=draw("what", -sentence),
            number=2 + hash64("story", number, "number", sentence) % 98,
        )
        told.append(made + (" " if sentence % 5 else "\n"))
    return "".join(told)
