"""A language model of packed documents: what it may see, how it is measured, and with what."""

import math

import numpy as np
import pytest
import torch

from penstock.addons.tokens.flatten import Flatten
from penstock.addons.tokens.language_model import LanguageModel, LanguageModeling, continued
from penstock.errors import ConfigError
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.training.adapter import Objective
from penstock.training.metrics import BitsPerByte
from penstock.training.objective import Constant


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = LanguageModel(20, width=16, layers=2, heads=2)
    for weight in model.parameters():  # else it predicts next to the same of anything
        if weight.ndim > 1:
            weight.data *= 10
    return model


DOCUMENTS = [torch.randint(0, 20, (length,)) for length in (5, 9, 1, 7)]


@pytest.mark.parametrize("pad_to", [None, 12])
def test_documents_in_blocks_are_seen_as_alone(model, pad_to):
    parts = None
    if pad_to is not None:
        rows = [(0, 5, 5, 0), (0, 1, 1, 0), (0, 9, 9, 1), (0, 7, 7, 2)]
        parts = torch.tensor(rows).numpy()
    order = [0, 1, 2, 3] if parts is None else [0, 2, 1, 3]
    samples = [{"tokens": DOCUMENTS[one]} for one in order]
    batch = Flatten(pad_to=pad_to)(samples, parts)
    logits = model(*(batch[name] for name in ("tokens", "position_ids", "document_ids")))
    flat, ids = logits.flatten(0, -2), batch["document_ids"].flatten()
    for place, one in enumerate(order):
        alone = DOCUMENTS[one]
        wanted = model(alone, torch.arange(len(alone)), torch.zeros(len(alone), dtype=torch.long))
        torch.testing.assert_close(flat[ids == place], wanted)
    assert torch.isfinite(logits).all()


def test_what_comes_later_is_not_seen(model):
    tokens = DOCUMENTS[1].clone()
    places, ids = torch.arange(9), torch.zeros(9, dtype=torch.long)
    before = model(tokens, places, ids)
    tokens[6] = (tokens[6] + 1) % 20
    after = model(tokens, places, ids)
    torch.testing.assert_close(before[:6], after[:6])
    assert not torch.allclose(before[6:], after[6:])


@torch.no_grad()
def test_a_likely_token_continues(model):
    begin = DOCUMENTS[1][:4].tolist()
    written = continued(model.eval(), begin, 3)
    assert written == continued(model, begin, 3)
    assert written[:2] == continued(model, begin, 2)
    assert continued(model, begin, 0) == []
    for place in range(3):
        seen = torch.tensor(begin + written[:place])
        logits = model(seen, torch.arange(len(seen)), torch.zeros_like(seen))[-1]
        likelier = (logits / 0.8).softmax(-1)
        assert float(likelier[logits > logits[written[place]]].sum()) < 0.9


def test_a_width_that_heads_cannot_share():
    with pytest.raises(ConfigError, match=r"model\.width: 20 is no multiple of 8"):
        LanguageModel(10, width=20, heads=4)


def packed(*documents, pad_to=None):
    """A batch of documents of ids, each token of as many bytes as its id."""
    samples = [{"tokens": torch.tensor(one), "token_bytes": torch.tensor(one)} for one in documents]
    fields = Flatten(fields=["token_bytes"], labels=True, pad_to=pad_to)(samples)
    rows = np.arange(len(documents))
    return Batch(fields, Request(0, 0, rows, rows, len(rows)), rows)


def language_modeling(size):
    inputs = ["tokens", "position_ids", "document_ids"]
    return Objective(LanguageModeling({"bits_per_byte": BitsPerByte()}, inputs, size))


@pytest.mark.parametrize("pad_to", [None, 4])
def test_all_tokens_but_the_first_are_measured(pad_to):
    objective, batch = language_modeling(8), packed([0, 3, 2], [0, 1], [0], pad_to=pad_to)
    constant = objective.own.constant([batch, batch])
    shares = [(count + 1) / 14 for count in (0, 2, 2, 2, 0, 0, 0, 0)]
    assert constant.exp().tolist() == pytest.approx(shares)
    losses, outputs = objective.measure(Constant(constant), batch)
    assert losses.tolist() == pytest.approx([-math.log(shares[one]) for one in (3, 2, 1)])
    objective.update(outputs, batch)
    bits = -math.log2(shares[1])
    assert objective.compute()["bits_per_byte"] == pytest.approx(3 * bits / 6)


def test_logits_of_another_vocabulary_are_refused():
    batch = packed([0, 1, 2])
    with pytest.raises(ConfigError, match=r"it has to give 8 logits of each"):
        language_modeling(8).measure(LanguageModel(9, width=8, layers=1, heads=2), batch)
