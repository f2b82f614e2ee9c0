"""The pages read easily, as far as figures say so: see `tests/prose/prose.py`.

A page that fails has long sentences, many without an actor, or a word that docs/glossary.md or
`BANNED` replaces: `python -m tests.prose.prose PAGE` shows which.
"""

import pytest

from tests.prose import code, prose

MOST = {"mean": 18, "ninth": 28, "passive": 0.25}
PLAIN = [page for page in prose.PAGES if page not in prose.GENERATED]


@pytest.mark.parametrize("page", PLAIN)
def test_a_page_reads_easily(page):
    text = (prose.ROOT / page).read_text()
    figures = prose.figures(text)._asdict()
    assert {name: figures[name] for name in MOST if figures[name] > MOST[name]} == {}
    if page != prose.GLOSSARY:
        assert list(prose.flaws(text)) == []


OTHERS = ("pipeline/addons/reports/",)  # not edited yet


def test_docstrings_messages_and_comments_have_no_banned_words():
    texts = list(code.texts())
    bad = [
        f"{where}: {part} -> {instead}"
        for where, _, text in texts
        if not where.startswith(OTHERS)
        for part, instead in code.flaws(text)
    ]
    assert bad == []
    assert {kind for _, kind, _ in texts} == {"docstring", "message", "comment"}


def test_a_flaw_of_a_docstring_a_message_and_a_comment_is_seen():
    written = """'What it holds.'\n\ndef f(told):\n    'It counts.\\n\\n    Args:\\n        told: x'
    raise E(f'{told}: it is told a number')\n"""
    made = [*code._of_python("f.py", written), *code._of_yaml("a.yaml", "a: 1  # as of 2\n")]
    bad = [(where, kind) for where, kind, text in made if list(code.flaws(text))]
    assert bad == [("f.py:1", "docstring"), ("f.py:5", "message"), ("a.yaml:1", "comment")]


def test_the_figures_tell_plain_from_compressed():
    plain = prose.figures("The loader restarts the worker. It keeps the batch.")
    compressed = prose.figures(
        "The worker, of whose batches those that had been begun are kept by the loader to which "
        "they were handed, is started again by whatever part of it is responsible for workers."
    )
    assert plain.mean == 4.5
    assert plain.passive == 0 < compressed.passive == 1
    assert plain.ninth < compressed.ninth == 32
    assert plain.flesch > compressed.flesch


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("Of a change it is told.", "actor"),
        ("It costs 3 ms in place of 4.", "instead of"),
        ("What counts is said below.", "subject"),
        ("| row |\n|---|\n| a key of ours |", "our"),
        ("## Pictures of a run", "'image'"),
        ("Two data points in two directories.", "'sample'"),
    ],
)
def test_a_flaw_is_seen(text, instead):
    assert any(instead in advice for _, advice in prose.flaws(text))


def test_code_is_not_read():
    text = "```sh\npython run.py in place of told\n```\n\nSet `trainer.pictures`, as of `told`.\n"
    assert [part for part, _ in prose.flaws(text)] == ["...Set Code, as of Code...."]
    assert prose.figures(text).words == 5


def test_the_glossary_has_each_term_once():
    terms = [
        text
        for where, text in prose.passages((prose.ROOT / prose.GLOSSARY).read_text())
        if where == "table"
    ][0::3]
    assert len(terms) > 50
    assert len(set(terms)) == len(terms) - 5  # one head for each table
