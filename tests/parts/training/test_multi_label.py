"""Several labels a sample."""

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.classification import MultilabelAveragePrecision, MultilabelF1Score

from penstock.errors import ConfigError, DataError
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.training.adapter import Objective
from penstock.training.objective import MultiLabel

NAMES = ["cat", "dog", "owl"]


def batch(labels, start=0, logits=None):
    rows = np.arange(start, start + len(labels))
    fields = {"labels": torch.as_tensor(labels, dtype=torch.float32)}
    fields["x"] = torch.zeros(len(labels), 3) if logits is None else logits
    return Batch(
        fields, Request(0, 0, rows, rows, len(rows), total=len(rows)), np.arange(len(rows))
    )


def objective(**metrics):
    loss = nn.BCEWithLogitsLoss(reduction="none")
    return Objective(MultiLabel(loss, metrics, ["x"], "labels", 3, NAMES))


def f1_of(logits, labels):
    """F1 of each label by its definition, at a probability of one half."""
    guesses = logits > 0
    true = (guesses & labels).sum(0)
    return 2 * true / (guesses.sum(0) + labels.sum(0))


def test_metrics_are_those_of_all_predictions():
    random = np.random.default_rng(0)
    logits = torch.from_numpy(random.random((50, 3)).astype(np.float32))
    logits -= torch.tensor([0.0, 0.3, 0.6])  # the first are all logits that look like probabilities
    labels = torch.from_numpy(random.random((50, 3)) < 0.4)
    metrics = {
        "f1": MultilabelF1Score(3, average="macro"),
        "f1_of": MultilabelF1Score(3, average="none"),
        "ap": MultilabelAveragePrecision(3),
    }
    measured = objective(**metrics)
    for rows in (slice(0, 20), slice(20, 50)):
        data = batch(labels[rows], rows.start, logits[rows])
        losses, outputs = measured.measure(nn.Identity(), data)
        assert losses.shape == (len(data["x"]),)
        measured.update(outputs, data)
    values = measured.compute()
    expected = f1_of(logits, labels)
    for name, value in zip(NAMES, expected.tolist(), strict=True):
        assert values[f"f1_of/{name}"] == pytest.approx(value, abs=1e-6)
    assert values["f1"] == pytest.approx(float(expected.mean()), abs=1e-6)
    alone = MultilabelAveragePrecision(3)
    alone.update(logits.sigmoid(), labels.long())
    assert values["ap"] == pytest.approx(float(alone.compute()), abs=1e-6)


def test_the_loss_of_a_sample_is_the_mean_over_its_labels():
    logits = torch.tensor([[2.0, -1.0, 0.5]])
    losses, _ = objective().measure(nn.Identity(), batch([[1, 0, 1]], logits=logits))
    probabilities = torch.tensor([2.0, 1.0, 0.5]).sigmoid()  # of what is so
    torch.testing.assert_close(losses, -probabilities.log().mean()[None])


def test_the_baseline_knows_how_frequent_labels_are():
    data = batch([[1, 0, 0], [1, 0, 1], [0, 0, 1], [1, 0, 1]])
    model = objective().baseline([data])
    shares = model(torch.zeros(2, 3)).sigmoid()
    torch.testing.assert_close(shares, torch.tensor([0.75, 1e-4, 0.75]).expand(2, 3))


def test_predictions_in_words():
    logits = torch.tensor([[2.0, -1.0, 0.5], [-1.0, -1.0, -1.0]])
    shown = objective().rendered(batch([[1, 1, 0], [0, 0, 1]]), logits)
    assert [(row.truth, row.predicted) for row in shown] == [
        ("cat, dog", "cat, owl"),
        ("owl", "none"),
    ]


def test_what_does_not_fit_is_refused():
    model = nn.Identity()
    with pytest.raises(ConfigError, match=r"several labels are 0 or 1 for each of 3 classes"):
        objective().measure(model, batch([[1, 0]], logits=torch.zeros(1, 3)))
    with pytest.raises(ConfigError, match=r"3 classes of 'labels' need as many logits"):
        objective().measure(model, batch([[1, 0, 1]], logits=torch.zeros(1, 2)))
    with pytest.raises(DataError, match=r"must lie between 0 and 1"):
        objective().baseline([batch([[2, 0, 0], [-1, 0, 0]])])  # whose mean is within
    for wrong in (2, -1):
        with pytest.raises(DataError, match=r"must lie between 0 and 1"):
            objective().measure(model, batch([[0, wrong, 1]], logits=torch.zeros(1, 3)))
