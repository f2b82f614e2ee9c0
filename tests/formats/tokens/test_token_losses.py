"""A loss a token: which tokens have one, and that they weigh alike in steps, epochs, validation."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from penstock.addons.tokens.language_model import next_tokens, token_losses
from penstock.errors import ConfigError
from penstock.training.adapter import Objective
from penstock.training.loop import validate
from tests.support.resuming import OPTIMIZERS, Case

CASES = [Case(packed={"split": "tail"}), Case(packed={}, pad_to=16)]


def batches_of(case):
    with case.loader() as loader:
        return list(loader.epoch(0))


@pytest.mark.parametrize("case", CASES)
def test_a_token_is_to_be_distinguished_from_those_before_it_in_its_document(case):
    for batch in batches_of(case):
        tokens, following = batch["tokens"].flatten(), next_tokens(batch).flatten()
        ids = batch["document_ids"].flatten()
        for place in range(len(tokens) - 1):
            goes_on = ids[place] >= 0 and ids[place] == ids[place + 1]
            assert following[place] == (tokens[place + 1] if goes_on else -100)
        assert following[-1] == -100
        logits = torch.randn(*batch["tokens"].shape, 18)
        wanted = nn.functional.cross_entropy(logits.reshape(-1, 18), following)
        assert torch.allclose(token_losses(logits, next_tokens(batch)).mean(), wanted)


def test_a_share_that_is_padding_has_no_loss_but_a_graph():
    batch = batches_of(CASES[0])[0]
    request = dataclasses.replace(batch.request, valid=0)
    empty = batch.replace(request=request, valid=torch.zeros(len(batch.positions), dtype=bool))
    logits = torch.randn(len(batch["tokens"]), 18, requires_grad=True)
    losses = token_losses(logits, next_tokens(empty))
    assert losses.shape == (0,)
    losses.backward(torch.empty(0))
    assert not logits.grad.any()


def test_labels_are_asked_for():
    with pytest.raises(ConfigError, match=r"set collate\.labels=true"):
        next_tokens({"tokens": torch.zeros(3)})


@pytest.mark.parametrize("case", CASES)
def test_every_token_weighs_the_same_in_an_epoch_and_in_validation(case, tmp_path, monkeypatch):
    """Without learning, an epoch's loss is that of all of its tokens at once."""
    monkeypatch.setitem(OPTIMIZERS, "still", lambda weights: torch.optim.SGD(weights, 0.0))
    case = dataclasses.replace(case, options={"max_epochs": 1}, optimizer="still")
    _, written, result, _ = case.fit(tmp_path)
    model, losses = case.model(), []
    for batch in batches_of(case):
        logits = model(batch["tokens"], batch["position_ids"])
        losses.append(token_losses(logits, next_tokens(batch)))
    mean = torch.cat(losses).mean().item()
    assert result.history[0]["train/loss"] == pytest.approx(mean, rel=1e-6)
    of_batches = [one.mean().item() for one in losses]
    assert [step.loss for step in written.steps] == pytest.approx(of_batches, rel=1e-6)
    assert sum(of_batches) / len(of_batches) != pytest.approx(mean, rel=1e-4)  # it did matter
    assert sum(step.samples for step in written.steps) < sum(len(one) for one in losses)
    with case.loader(val=True) as val:
        whole = [token_losses(model(b["tokens"], b["position_ids"]), next_tokens(b)) for b in val]
        found = validate(model, Objective(case.objective()), val)
    assert found["loss"] == pytest.approx(torch.cat(whole).mean().item(), rel=1e-6)
    assert not math.isnan(found["mse"])


def test_gradients_are_those_of_the_mean_over_all_tokens_of_a_step(tmp_path, monkeypatch):
    """Accumulated batches of other numbers of tokens, and the epoch's smaller last one."""
    monkeypatch.setitem(OPTIMIZERS, "plain", lambda weights: torch.optim.SGD(weights, 0.5))
    case = Case(packed={}, optimizer="plain", options={"max_epochs": 1, "accumulate": 3})
    weights, _, _, _ = case.fit(tmp_path)
    model = case.model()
    batches = batches_of(case)
    for first in range(0, len(batches), 3):
        losses = [
            token_losses(model(b["tokens"], b["position_ids"]), next_tokens(b))
            for b in batches[first : first + 3]
        ]
        model.zero_grad()
        torch.cat(losses).mean().backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.5 * weight.grad
    wanted = torch.cat([weight.flatten() for weight in model.state_dict().values()])
    assert torch.allclose(weights.float(), wanted, atol=1e-6)
