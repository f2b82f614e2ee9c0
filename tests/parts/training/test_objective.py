import inspect
import math

import numpy as np
import pytest
import torch
import torchmetrics.regression as known
from torch import nn
from torchmetrics import Metric
from torchmetrics.classification import ConfusionMatrix, MulticlassAccuracy, MulticlassRecall
from torchmetrics.regression import MeanSquaredError

from penstock.errors import ConfigError, DataError
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.training.adapter import Objective, explained
from penstock.training.metrics import NormalizedMeanError
from penstock.training.objective import Classification, Constant, LandmarkRegression, Regression


def batch(fields, valid=None):
    """A batch whose rows from `valid` on are padding."""
    count = len(next(iter(fields.values())))
    rows = np.arange(count)
    request = Request(0, 0, rows, rows, count if valid is None else valid)
    return Batch(fields, request, rows)


def made(kind, *arguments, **options):
    return Objective(kind(*arguments, **options))


def landmarks(**options):
    loss = nn.L1Loss(reduction="none")
    metrics = {"nme": NormalizedMeanError()}
    return made(LandmarkRegression, loss, metrics, ["image"], "landmarks", **options)


def classification(inputs=("x",)):
    metrics = {
        "accuracy": MulticlassAccuracy(3, average="micro"),
        "recall": MulticlassRecall(3, average="none"),
    }
    loss = nn.CrossEntropyLoss(reduction="none")
    return made(Classification, loss, metrics, list(inputs), "label", 3, ["ant", "bee", "fly"])


def faces(count=4, height=20, width=40):
    torch.manual_seed(0)
    points = torch.rand(count, 5, 2) * torch.tensor([width, height])
    return batch({"image": torch.rand(count, 3, height, width), "landmarks": points})


def test_landmarks_go_from_edge_to_edge():
    objective, data = landmarks(), faces(1)
    data["landmarks"] = torch.tensor([[[0.0, 0.0], [40.0, 20.0], [20.0, 5.0]]])
    right = torch.tensor([-1.0, -1.0, 1.0, 1.0, 0.0, -0.5])
    losses, outputs = objective.measure(Constant(right), data)
    assert losses.tolist() == [0.0]
    torch.testing.assert_close(objective.own.predictions(outputs, data), data["landmarks"])


def test_the_constant_is_the_mean_face_in_every_image_size():
    objective = landmarks()
    small = faces(4)
    large = batch({"image": torch.rand(2, 3, 80, 160), "landmarks": faces(2)["landmarks"] * 4})
    constant = objective.own.constant([small, large])
    points = torch.cat([small["landmarks"], faces(2)["landmarks"]])
    expected = (points.mean(0) / torch.tensor([40.0, 20.0]) * 2 - 1).flatten()
    torch.testing.assert_close(constant, expected)
    assert constant.dtype == torch.float32


def test_padding_counts_nowhere():
    for objective, data in ((landmarks(), faces(4)), (classification(), classes())):
        model = Constant(torch.rand(10 if objective.own.target == "landmarks" else 3))
        padded = batch(
            {k: torch.cat([v, v[:1].flip(-1)]) for k, v in data.items()},
            valid=len(next(iter(data.values()))),
        )
        plain_losses, outputs = objective.measure(model, data)
        objective.update(outputs, data)
        plain = objective.compute()
        objective.reset()
        losses, outputs = objective.measure(model, padded)
        objective.update(outputs, padded)
        assert torch.equal(losses, plain_losses)
        assert len(outputs) == len(losses)
        assert objective.compute() == plain
        assert torch.equal(objective.baseline([padded]).output, objective.own.constant([data]))


def classes():
    torch.manual_seed(0)
    return batch({"x": torch.randn(6, 2), "label": torch.tensor([0, 0, 0, 1, 1, 2])})


def test_classification_names_the_classes():
    objective, data = classification(), classes()
    _, outputs = objective.measure(Constant(torch.tensor([0.0, 1.0, 0.5])), data)
    objective.update(outputs, data)
    expected = {"accuracy": 2 / 6, "recall/ant": 0.0, "recall/bee": 1.0, "recall/fly": 0.0}
    assert objective.compute() == pytest.approx(expected)


def test_the_constant_of_classes_is_the_best_one():
    objective, data = classification(), classes()
    constant = objective.own.constant([data])
    torch.testing.assert_close(constant.softmax(-1), torch.tensor([3 / 6, 2 / 6, 1 / 6]))
    best = objective.measure(Constant(constant), data)[0].mean()
    for _ in range(20):
        other = objective.measure(Constant(constant + 0.1 * torch.randn(3)), data)[0].mean()
        assert best <= other


def test_a_class_that_never_occurs_has_a_finite_loss():
    objective = classification()
    constant = objective.own.constant(
        [batch({"x": torch.rand(2, 1), "label": torch.tensor([0, 1])})]
    )
    unseen = batch({"x": torch.rand(1, 1), "label": torch.tensor([2])})
    assert math.isfinite(objective.measure(Constant(constant), unseen)[0].item())


def test_regression_refuses_what_would_broadcast():
    objective = made(
        Regression, nn.MSELoss(reduction="none"), {"mse": MeanSquaredError()}, ["x"], "y"
    )
    data = batch({"x": torch.rand(4, 1), "y": torch.arange(4.0)})
    losses, outputs = objective.measure(Constant(torch.tensor([2.0])), data)
    assert losses.tolist() == [4.0, 1.0, 0.0, 1.0]
    objective.update(outputs, data)
    assert objective.compute() == {"mse": 1.5}
    assert objective.own.constant([data]).item() == 1.5
    with pytest.raises(ConfigError, match="gives 2 numbers a sample, but 'y' has 1"):
        objective.measure(Constant(torch.zeros(2)), data)


class Halved(nn.Module):
    """Gives an output for every other sample."""

    def forward(self, x):
        return x[::2]


def test_a_model_gives_an_output_for_each_sample():
    regression = made(Regression, nn.MSELoss(reduction="none"), {}, ["x"], "y")
    numbers = batch({"x": torch.rand(4, 1), "y": torch.arange(4.0)})
    for objective, data in ((regression, numbers), (classification(), classes())):
        count = len(data[objective.own.target])
        told = rf"{-(-count // 2)}\b.* samples.* {count}\b|for {count} samples"
        with pytest.raises(ConfigError, match=told):
            objective.measure(
                nn.Sequential(Halved(), nn.LazyLinear(getattr(objective.own, "num_classes", 1))),
                data,
            )


def test_one_sample_is_too_few_for_batch_norm():
    objective = made(Regression, nn.MSELoss(reduction="none"), {}, ["x"], "y")
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    data = batch({"x": torch.rand(1, 1), "y": torch.rand(1)})
    expected = r"batch\.tail: .* one sample .* batch norm"
    with pytest.raises(ConfigError, match=expected), explained("model", model, []):
        objective.measure(model, data)


def test_losses_are_float32_under_autocast():
    objective, data = classification(), classes()
    with torch.autocast("cpu", torch.bfloat16):
        losses, outputs = objective.measure(nn.Linear(2, 3), data)
    assert (losses.dtype, outputs.dtype) == (torch.float32, torch.float32)


def test_a_loss_of_one_number_sees_no_padding():
    model = nn.Linear(2, 3)
    data = classes()
    padded = batch({name: torch.cat([rows, rows[:2]]) for name, rows in data.items()}, valid=6)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))
    objective = made(Classification, weighted, {}, ["x"], "label", 3)
    plain, _ = objective.measure(model, data)
    losses, outputs = objective.measure(model, padded)
    assert len(outputs) == 6
    assert torch.equal(losses, plain)
    assert losses.tolist() == [losses[0].item()] * 6
    expected = nn.functional.cross_entropy(model(data["x"]), data["label"], weighted.weight)
    assert losses[0].item() == pytest.approx(expected.item())


def test_what_is_no_loss_or_metric_is_named():
    with pytest.raises(ConfigError, match=r"objective.loss.reduction: sum .* set mean, or none"):
        Regression(nn.MSELoss(reduction="sum"), {}, ["x"], "y")
    with pytest.raises(ConfigError, match=r"objective.metrics.mae: makes a L1Loss, which is no"):
        made(Regression, nn.MSELoss(), {"mae": nn.L1Loss()}, ["x"], "y")
    labels = {"label": torch.zeros(4).long(), "label_soft": torch.rand(4, 3)}
    soft = batch({"x": torch.rand(4, 2), **labels})
    objective = made(Classification, nn.BCEWithLogitsLoss(reduction="none"), {}, ["x"], "label", 3)
    with pytest.raises(ConfigError, match=r"gives float32\[4, 3\] for 4 samples"):
        objective.measure(nn.Linear(2, 3), soft)


def test_wrong_outputs_and_fields_are_named():
    with pytest.raises(ConfigError, match="gives 4 numbers a sample, but 'landmarks' has 10"):
        landmarks().measure(Constant(torch.zeros(4)), faces())
    with pytest.raises(ConfigError, match=r"gives \[6, 4\] for 6 samples; 3 classes"):
        classification().measure(Constant(torch.zeros(4)), classes())
    with pytest.raises(ConfigError, match=r"needs the field 'image'.*a batch has x .*, label"):
        landmarks().measure(Constant(torch.zeros(4)), classes())
    ragged = batch({"image": [torch.rand(3, 4, 4)], "landmarks": torch.rand(1, 2, 2)})
    with pytest.raises(ConfigError, match=r"'image'.* image \(list\).* collate stacks"):
        landmarks().measure(Constant(torch.zeros(4)), ragged)


SHAPES = [(), (1,), (3,), (2, 3), (1, 2, 3), (5, 9)]
# Of torchmetrics.regression, those that take numbers; others take distributions, or need options.
OF_NUMBERS = ["ConcordanceCorrCoef", "ExplainedVariance", "KendallRankCorrCoef", "LogCoshError"]
OF_NUMBERS += ["MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError"]
OF_NUMBERS += ["MeanSquaredLogError", "NormalizedRootMeanSquaredError", "PearsonCorrCoef"]
OF_NUMBERS += ["R2Score", "RelativeSquaredError", "SpearmanCorrCoef"]
OF_NUMBERS += ["SymmetricMeanAbsolutePercentageError", "TweedieDevianceScore"]
OF_NUMBERS += ["WeightedMeanAbsolutePercentageError"]


class Seen(Metric):
    """A person's own: it keeps the shapes that it gets."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def update(self, predicted, target):
        self.shapes.append((predicted.shape, target.shape))

    def compute(self):
        return torch.tensor(0.0)


@pytest.mark.filterwarnings("ignore:The variance of predictions", "ignore:Metric `SpearmanCorr")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_metrics_of_regression_work_for_every_shape(shape):
    """With a model's outputs, with a constant's rows (not contiguous), with whole numbers."""
    count = math.prod(shape)
    torch.manual_seed(0)
    x, target = torch.rand(8, count), torch.rand(8, *shape)
    for name in OF_NUMBERS:
        kind = getattr(known, name)
        takes = "num_outputs" in inspect.signature(kind).parameters
        metric = kind(num_outputs=count) if takes else kind()
        seen = Seen()
        objective = made(
            Regression, nn.MSELoss(reduction="none"), {"m": metric, "seen": seen}, ["x"], "target"
        )
        data = batch({"x": x, "target": target})
        constant = Constant(objective.own.constant([data]))
        for model in (nn.Identity(), constant):
            objective.reset()
            objective.update(objective.measure(model, data)[1], data)
            found = objective.compute()
            assert isinstance(found["m"], float), name
            if model is not constant:
                assert math.isfinite(found["m"]), name
        assert seen.shapes[-1] == (target.shape, target.shape)
        whole = batch({"x": x, "target": (8 * target).long()})
        objective.update(objective.measure(nn.Identity(), whole)[1], whole)


def test_a_value_an_output_has_a_mean_and_a_name_each():
    target = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    metrics = {"mae": known.MeanAbsoluteError(num_outputs=3)}
    objective = made(Regression, nn.L1Loss(reduction="none"), metrics, ["x"], "target")
    data = batch({"x": torch.zeros(2, 3), "target": target})
    objective.update(objective.measure(nn.Identity(), data)[1], data)
    assert objective.compute() == {"mae": 2.0, "mae/0": 2.0, "mae/1": 2.0, "mae/2": 2.0}
    metrics = {"mae": known.MeanAbsoluteError(num_outputs=50)}
    objective = made(Regression, nn.L1Loss(reduction="none"), metrics, ["x"], "target")
    data = batch({"x": torch.zeros(2, 50), "target": torch.ones(2, 50)})
    objective.update(objective.measure(nn.Identity(), data)[1], data)
    assert objective.compute() == {"mae": 1.0}  # and not 50 names


def test_a_metric_that_does_not_fit_is_named():
    data = batch({"x": torch.zeros(4, 3), "target": torch.rand(4, 3)})
    objective = made(
        Regression, nn.L1Loss(reduction="none"), {"r": known.PearsonCorrCoef()}, ["x"], "target"
    )
    wanted = (
        r"objective\.metrics\.r: PearsonCorrCoef does not take float32\[4, 3\] and "
        r"float32\[4, 3\]: .*`num_outputs` .* 1 and 3"
    )
    with pytest.raises(ConfigError, match=wanted):
        objective.update(data["x"], data)
    metrics = {"c": ConfusionMatrix("multiclass", num_classes=3)}
    objective = made(Classification, nn.CrossEntropyLoss(), metrics, ["x"], "label", 3)
    data = batch({"x": torch.zeros(4, 3), "label": torch.arange(4) % 3})
    objective.update(data["x"], data)
    with pytest.raises(ConfigError, match=r"metrics\.c: \w+ gives int64\[3, 3\]; a metric has to"):
        objective.compute()


@pytest.mark.parametrize(
    "label",
    [
        torch.tensor([0, 1, 2]),
        torch.tensor([[0], [1], [2]]),
        torch.tensor([0, 1, 2]).int(),
        torch.tensor([[0], [1], [2]]).byte(),
        torch.tensor([0, 1, 2]).short(),
    ],
    ids=lambda label: f"{label.dtype}{list(label.shape)}",
)
def test_classes_are_whole_numbers_of_any_type(label):
    objective, data = classification(), batch({"x": torch.eye(3), "label": label})
    for model in (nn.Identity(), Constant(objective.own.constant([data]))):
        objective.reset()
        losses, outputs = objective.measure(model, data)
        assert losses.shape == (3,)
        objective.update(outputs, data)
    assert objective.compute()["accuracy"] == pytest.approx(1 / 3)


def test_labels_that_the_loss_ignores_count_nowhere():
    metrics = {"accuracy": MulticlassAccuracy(3, average="micro", ignore_index=-100)}
    objective = made(Classification, nn.CrossEntropyLoss(), metrics, ["x"], "label", 3)
    label = torch.tensor([0, -100, 2, 0])
    data = batch({"x": torch.eye(3)[[0, 1, 2, 2]], "label": label})
    losses, outputs = objective.measure(nn.Identity(), data)
    assert losses[0].item() == pytest.approx(
        nn.functional.cross_entropy(outputs[label >= 0], label[label >= 0]).item()
    )
    objective.update(outputs, data)
    assert objective.compute() == {"accuracy": pytest.approx(2 / 3)}
    constant = objective.own.constant([data]).softmax(-1)
    torch.testing.assert_close(constant, torch.tensor([2 / 3, 0.0, 1 / 3]), atol=1e-5, rtol=0)
    assert [row.truth for row in objective.rendered(data)] == ["0", "-100", "2", "0"]


def test_what_is_no_class_is_named():
    objective = classification()
    for wrong, shape in (
        (torch.rand(4), r"float32\[4\]"),
        (torch.zeros(4, 2).long(), r"int64\[4, 2\]"),
    ):
        with pytest.raises(ConfigError, match=rf"'label' is {shape}; classes are one whole number"):
            objective.own.constant([batch({"x": torch.zeros(4, 3), "label": wrong})])
    far = batch({"x": torch.zeros(4, 3), "label": torch.tensor([0, 1, 3, 2])})
    with pytest.raises(DataError, match="'label' of row 2 is 3; 3 classes are 0 to 2"):
        objective.own.constant([far])
    points = batch({"image": torch.zeros(2, 3, 8, 8), "landmarks": torch.zeros(2, 10)})
    with pytest.raises(
        ConfigError, match=r"'landmarks' is float32\[2, 10\]; landmarks are \[B, L, 2\]"
    ):
        landmarks().own.constant([points])
