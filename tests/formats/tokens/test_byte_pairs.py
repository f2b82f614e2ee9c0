"""Byte pairs: nothing of a text is lost, and where vocabularies come from."""

import json
import sys
from pathlib import Path

import pytest
import torch

from penstock.addons.tokens.byte_pairs import BEGIN, BytePairs, learn, with_vocabulary
from penstock.errors import ConfigError, DataError

TEXTS = ["the cat sat on the mat", "the other cat ate the hat", "so the rat sat\n\tthere"] * 3
HARD = ["", " ", "the", "caf\u00e9 \u20ac \U0001f600\U0001f600", f"{BEGIN} is text here\n"]
HARD += ["\0\x1b\f", "e\u0301\u200d \ufeff"]


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    path.write_text(learn(TEXTS, 300))
    return BytePairs(str(path), size=300)


@pytest.mark.parametrize("text", HARD)
def test_every_text_has_tokens_of_all_of_its_bytes(step, text):
    made = step({"text": text, "label": 1})
    tokens, sizes = made["tokens"], made["token_bytes"]
    assert tokens.dtype == sizes.dtype == torch.int64
    assert [place for place, one in enumerate(tokens.tolist()) if one == step.begin] == [0]
    assert sizes.shape == tokens.shape
    assert (int(sizes[0]), int(sizes.min())) == (0, 0)
    assert int(sizes.sum()) == len(text.encode())
    assert step.decode(tokens.tolist()) == text
    assert step.length(text) == len(tokens)
    assert made["label"] == 1


def test_bytes_are_those_of_each_token(step):
    made = step({"text": "the \u00e9 the"})
    words = [step.decode([one]).encode() for one in made["tokens"].tolist()]
    sizes = made["token_bytes"].tolist()
    assert sum(sizes) == 10
    assert len(sizes) < 8  # pairs were put together
    assert all(size == len(word) for size, word in zip(sizes, words, strict=True) if word.isascii())


def test_the_same_texts_give_the_same_vocabulary():
    first = learn(TEXTS, 270)
    assert first == learn(iter(TEXTS), 270)
    assert len(json.loads(first)["model"]["vocab"]) == 270
    assert len(json.loads(learn(["ab"], 500))["model"]["vocab"]) == 258  # no more pairs


class Texts:
    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, row):
        return {"text": self.texts[row]}


def test_a_vocabulary_is_learned_once(tmp_path):
    node = {"vocabulary": "dataset", "size": 290}
    first = with_vocabulary(node, Texts(TEXTS), "data", tmp_path)
    assert Path(first["vocabulary"]).read_text() == learn(TEXTS, 290)
    assert with_vocabulary(node, Texts([]), "data", tmp_path) == first  # nothing is read
    for other in ({"size": 291}, {"begin": "<s>"}):
        assert with_vocabulary({**node, **other}, Texts(TEXTS), "data", tmp_path) != first
    assert with_vocabulary(node, Texts(TEXTS), "else", tmp_path) != first


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("{}", {}, "cannot be read as a tokenizer.json"),
        ("\udcff", {}, "cannot be read as a tokenizer.json"),
        (None, {}, "cannot be read"),
        ("learned", {"begin": "<s>"}, "name the token that begins a document"),
        ("learned", {"size": 265}, "has 270 ids"),
    ],
)
def test_a_vocabulary_that_cannot_be_used(tmp_path, content, arguments, message):
    path = tmp_path / "v.json"
    if content is not None:
        text = learn(TEXTS, 270) if content == "learned" else content
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises((ConfigError, DataError), match=message):
        BytePairs(str(path), **arguments)


def test_what_has_no_text(step, tmp_path):
    with pytest.raises(DataError, match="there is label"):
        step({"label": 1})
    with pytest.raises(DataError, match="cannot be encoded"):
        step({"text": "\ud800"})
    with pytest.raises(ConfigError, match="257 or more"):
        learn(TEXTS, 256)
    with pytest.raises(DataError, match="row 0 of the training split"):
        with_vocabulary({"vocabulary": "dataset", "field": "x"}, Texts("a"), "d", tmp_path)


def test_without_tokenizers(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"penstock-loader\[text\]"):
        learn(TEXTS, 300)
