"""Tokens of texts, and the network that reads them."""

import pytest
import torch

from penstock.errors import ConfigError, DataError
from penstock.loading.collate import Pad
from penstock.training.models import TextNet
from penstock.transforms.text import Tokenize, word_id


def tokens(text, **arguments):
    return Tokenize(**arguments)({"text": text})["tokens"]


def test_bytes():
    found = tokens("Az\u00e9", kind="bytes")
    assert found.dtype == torch.int64
    assert found.tolist() == [99, 124, 197, 171]  # "azé" in UTF-8, each byte plus 2
    assert tokens("Az", kind="bytes", lower=False).tolist() == [67, 124]
    assert tokens("abc", kind="bytes", max_length=2).tolist() == [99, 100]
    assert int(tokens("".join(map(chr, range(256))), kind="bytes").max()) < 258


def test_words():
    found = tokens("Free ENTRY, free!", size=1000)
    assert found.dtype == torch.int64
    words = [word_id(word, 1000) for word in ("free", "entry", ",", "free", "!")]
    assert found.tolist() == words
    assert tokens("Free", lower=False, size=1000).tolist() != words[:1]
    assert tokens("one two three", max_length=2).tolist() == tokens("one two").tolist()
    assert tokens("don't\u00a0\u00fcber_3").shape == (4,)


def test_ids_are_pinned():
    """They stand in checkpoints: another hash would make those worthless."""
    ids = [word_id(word, 8192) for word in ("free", "the", "\u00fcber", "!")]
    assert ids == [7422, 7709, 3331, 4953]


def test_ids_are_spread_and_in_range():
    ids = [word_id(f"word{number}", 1000) for number in range(5000)]
    assert min(ids) == 2
    assert max(ids) == 999
    assert len(set(ids)) > 950
    assert {word_id(f"word{number}", 3) for number in range(9)} == {2}


@pytest.mark.parametrize("kind", ["bytes", "words"])
@pytest.mark.parametrize("text", ["", " \n"])
def test_a_text_of_nothing_has_a_step(kind, text):
    found = tokens(text, kind=kind)
    assert len(found) == (2 if kind == "bytes" and text else 1)
    assert tokens("", kind=kind).tolist() == [1]


def test_the_sample_keeps_its_fields():
    sample = {"text": "a", "label": 1}
    assert set(Tokenize()(sample)) == {"text", "label", "tokens"}
    assert set(sample) == {"text", "label"}
    assert "tokens" in Tokenize(field="title")({"title": "x"})


def test_bytes_have_258_ids():
    with pytest.raises(ConfigError, match="size: 256; bytes have 258 ids"):
        Tokenize(kind="bytes", size=256)


def test_a_sample_without_a_text():
    with pytest.raises(DataError, match=r"field 'text'; there is image \(int\)"):
        Tokenize()({"image": 1})


def test_padding_changes_no_output():
    torch.manual_seed(0)
    model = TextNet(100, 2, width=8, hidden=8).eval()
    tokenize = Tokenize(size=100)
    samples = [tokenize({"text": text}) for text in ("a b c d e", "f", "g h i", "")]
    batch = Pad(["tokens"])(samples)
    together = model(batch["tokens"], batch["tokens_lengths"])
    alone = [model(s["tokens"][None], torch.tensor([len(s["tokens"])])) for s in samples]
    assert together.shape == (4, 2)
    assert torch.allclose(together, torch.cat(alone), atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kind": "bytes"},
        {"max_length": 3},
        {"lower": False},
        {"kind": "bytes", "max_length": 5},
    ],
)
@pytest.mark.parametrize("text", ["", "One two, three!", "İé " * 9, "a" * 70_000 + " b"])
def test_tokens_are_counted_without_making_them(text, options):
    step = Tokenize(**options)
    assert step.length(text) == len(step({"text": text})["tokens"])
