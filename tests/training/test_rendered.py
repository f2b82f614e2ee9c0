"""Samples and predictions as people see them: in words, as rows of a table, by names."""

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanAbsoluteError, MeanMetric

from penstock.errors import ConfigError, PenstockError
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.training import objective_base
from penstock.training.metrics import NormalizedMeanError
from penstock.training.objective import (
    MOST_NAMED,
    Classification,
    LandmarkRegression,
    Regression,
)
from penstock.training.objective_base import batch_norm_explained, in_shape, unpadded
from penstock.training.observer import Observer, OnlyShows
from penstock.training.own_objective import adapted
from penstock.training.rendered import Rendered, classes_in_words, in_words


def batch(fields, valid=None):
    count = len(next(iter(fields.values())))
    rows = np.arange(count)
    return Batch(fields, Request(0, 0, rows, rows, count if valid is None else valid), rows)


def regression(metrics=None, loss=None):
    return Regression(loss or nn.L1Loss(reduction="none"), metrics or {}, ["x"], "y")


def classification(count=3, classes=("ant", "bee", "fly")):
    return Classification(nn.CrossEntropyLoss(reduction="none"), {}, ["x"], "label", count, classes)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([0.0, 1.0, 0.0, 0.0], "b"),
        ([0.5, 0.5, 0.0, 0.0], "b 50%, a 50%"),
        ([0.1, 0.2, 0.3, 0.4], "d 40%, c 30%, b 20%"),
        ([0.0, 0.3, 0.0, 0.7], "d 70%, b 30%"),
        ([0.0, 0.0, 0.0, 0.25], "d"),
    ],
)
def test_up_to_three_classes_are_named_the_largest_first(shares, said):
    assert classes_in_words(torch.tensor(shares), "abcd") == said


def test_numbers_have_four_digits():
    assert in_words(torch.tensor([[1.0, 2.34567], [-3e-7, 12345.0]])) == (
        "1, 2.346, -3e-07, 1.234e+04"
    )


def test_few_numbers_are_written_out_and_of_many_the_error():
    four, data = regression(), batch({"x": torch.zeros(2, 4), "y": torch.arange(8.0).view(2, 4)})
    assert four.rendered(data) == [Rendered("0, 1, 2, 3"), Rendered("4, 5, 6, 7")]
    assert four.rendered(data, torch.ones(2, 4)) == [
        Rendered("0, 1, 2, 3", "1, 1, 1, 1"),
        Rendered("4, 5, 6, 7", "1, 1, 1, 1"),
    ]
    more = batch({"x": torch.zeros(2, 5), "y": torch.tensor([[0.0], [2.0]]).expand(2, 5)})
    assert four.rendered(more) == [Rendered(), Rendered()]
    outputs = torch.ones(2, 5) * torch.tensor([[1.0], [5.0]])
    assert four.rendered(more, outputs) == [Rendered(), Rendered()]  # no metric to go by
    metric = MeanAbsoluteError()
    metric.update(torch.ones(1), torch.zeros(1))
    measured = regression({"mae": metric})
    assert measured.rendered(more, outputs) == [
        Rendered(predicted="mae 1.000"),
        Rendered(predicted="mae 3.000"),
    ]
    assert metric.update_count == 0  # nothing of a picture is left in a metric

    class Never(MeanMetric):
        def update(self, predicted, target):
            raise ValueError("of two samples alone")

    assert regression({"r": Never()}).rendered(more, outputs) == [Rendered(), Rendered()]


def test_rows_of_a_table_have_a_number_or_several():
    data = batch({"x": torch.zeros(3, 1), "y": torch.zeros(3)}, valid=2)
    outputs = torch.tensor([[1.5], [2.5], [9.0]])
    objective = regression()
    assert objective.rows(outputs, data) == [{"predicted": 1.5}, {"predicted": 2.5}]
    assert objective.rows(outputs.squeeze(1), data) == [{"predicted": 1.5}, {"predicted": 2.5}]
    assert objective.rows(outputs.expand(3, 2), data)[0] == {"predicted": [1.5, 1.5]}
    assert objective.rows(outputs[..., None], data)[0] == {"predicted": [[1.5]]}


def test_points_are_drawn_and_listed_in_pixels():
    objective = LandmarkRegression(
        nn.L1Loss(reduction="none"), {"nme": NormalizedMeanError("box")}, ["image"], "points"
    )
    points = torch.tensor([[[0.0, 0.0], [30.0, 40.0]]])
    data = batch({"image": torch.zeros(1, 3, 80, 60), "points": points})
    (plain,) = objective.rendered(data)
    assert torch.equal(plain.points, points[0])
    assert plain.predicted_points is None
    outputs = torch.tensor([[-1.0, -0.875, 0.0, 0.125]])  # each 5 pixels lower
    (seen,) = objective.rendered(data, outputs)
    assert (seen.truth, seen.predicted) == ("", "nme 0.100")
    assert torch.equal(seen.points, points[0])
    assert seen.predicted_points.tolist() == [[0.0, 5.0], [30.0, 45.0]]
    assert objective.rows(outputs, data) == [{"points": [[0.0, 5.0], [30.0, 45.0]]}]
    flat = batch({"image": torch.zeros(1, 3, 80, 60), "points": points[0]})
    for wrong in (flat, batch({"image": torch.zeros(1, 3, 8, 8), "points": torch.zeros(1, 2, 3)})):
        with pytest.raises(ConfigError, match=r"landmarks are \[B, L, 2\]"):
            objective.constant([wrong])


def test_classes_are_shown_by_name_and_by_their_shares_where_they_are_mixed():
    data = {"x": torch.zeros(2, 3), "label": torch.tensor([0, 2])}
    objective = classification()
    outputs = torch.tensor([[0.0, 0.0, 2.0], [0.0, 4.0, 0.0]])
    assert objective.rendered(batch(data)) == [Rendered("ant"), Rendered("fly")]
    guesses = [Rendered("ant", "fly 79%", wrong=True), Rendered("fly", "bee 96%", wrong=True)]
    assert objective.rendered(batch(data), outputs) == guesses
    mixed = {**data, "label_soft": torch.tensor([[0.75, 0.0, 0.25], [0.0, 0.0, 1.0]])}
    assert objective.rendered(batch(mixed)) == [Rendered("ant 75%, fly 25%"), Rendered("fly")]
    assert objective.rendered(batch(mixed), outputs) == guesses
    (row, _) = objective.rows(outputs, batch(data))
    assert row.keys() == {"predicted", "score/ant", "score/bee", "score/fly"}
    assert row["predicted"] == "fly"
    assert row["score/fly"] == pytest.approx(0.787, abs=1e-3)
    assert classification(classes=None).rendered(batch(data)) == [Rendered("0"), Rendered("2")]


@pytest.mark.parametrize(
    ("count", "names", "expected"),
    [
        (3, ("ant", "bee", "fly"), ["ant", "bee", "fly"]),
        (2, ("ant", "bee", "fly"), [0, 1]),
        (3, None, [0, 1, 2]),
    ],
)
def test_a_value_a_class_has_the_name_of_its_class(count, names, expected):
    labelled = classification(classes=names)._named("r", torch.zeros(count))
    assert [*labelled] == [f"r/{name}" for name in expected]
    assert [*classification()._named("r", torch.zeros(()))] == ["r"]


@pytest.mark.parametrize("more", [0, 1])
def test_outputs_are_named_up_to_a_number(more):
    objective = regression({"mae": MeanAbsoluteError(num_outputs=2)})
    named = objective._named("mae", torch.ones(MOST_NAMED + more))
    assert len(named) == (1 if more else MOST_NAMED + 1)
    assert named["mae"] == 1.0


def test_a_plain_regression_hands_its_rows_to_the_loss_as_they_are():
    seen = []

    def loss(outputs, target):
        seen.append((outputs, target))
        return (outputs - target).abs()

    objective = regression(loss=loss)
    data = batch({"x": torch.arange(4.0), "y": torch.arange(4)})
    losses, _ = objective(nn.Identity(), data)
    assert losses.tolist() == [0.0] * 4
    ((outputs, target),) = seen
    assert outputs.shape == target.shape == (4,)
    assert (outputs.data_ptr(), target.dtype) == (data["x"].data_ptr(), torch.float32)
    two = batch({"x": torch.arange(4.0).view(2, 2), "y": torch.zeros(2, 2)})
    assert objective(nn.Identity(), two)[0].tolist() == [0.5, 2.5]
    with pytest.raises(ConfigError, match="gives outputs for 0 samples, but 'y' has 4"):
        objective(lambda x: x.sum(), data)

    class Tripled(Regression):
        """Has statistics of its own, which the loss sees."""

        def _statistics(self, batch):
            return 3 * super()._statistics(batch)

    tripled = Tripled(nn.L1Loss(reduction="none"), {}, ["x"], "y")
    assert tripled(nn.Identity(), data)[0].tolist() == [0.0, 2.0, 4.0, 6.0]


def test_the_loss_moves_with_the_objective_and_the_way_fits_the_metric():
    loss = nn.CrossEntropyLoss(weight=torch.ones(3))
    Classification(loss, {}, ["x"], "label", 3).to("meta")
    assert loss.weight.device.type == "meta"
    way = regression({"m": MeanAbsoluteError(num_outputs=3)})._way
    rows = torch.zeros(2, 3), torch.zeros(2, 3)
    assert way("m", rows) == ""
    assert way("m", (rows[0][:, :2],) * 2) == "; set objective.metrics.m.num_outputs=2"
    assert regression({"m": MeanMetric()})._way("m", rows) == ""


def test_whole_numbers_of_a_row_are_classes_of_their_own():
    """A class is at hand only where its batch has a row: 0 to C - 1, and nothing else."""
    objective = classification()
    for wrong in (-1, 3):
        data = batch({"x": torch.zeros(2, 3), "label": torch.tensor([2, wrong])})
        said = rf"'label' of row 1 is {wrong}; 3 classes are 0 to 2"
        with pytest.raises(PenstockError, match=said):
            objective.constant([data])


class Plain:
    """An objective of a person's own that has its loss alone, and what is given."""

    def __init__(self, **members):
        self.__dict__.update(members)

    def loss(self, model, batch):
        return model(batch["x"]).mean()


def test_an_own_objective_answers_by_its_outputs_and_rows():
    data = batch({"x": torch.arange(4.0).view(4, 1), "y": torch.zeros(4)}, valid=3)
    plain = adapted(Plain())
    for call in (
        lambda: plain.answer(nn.Identity(), data),
        lambda: plain.rows({"boxes": []}, data),
    ):
        with pytest.raises(ConfigError, match="how a prediction becomes a row of a table: give"):
            call()
    assert plain.rendered(data) == [Rendered()] * 4
    assert plain.baseline_name == ""
    assert plain.comparisons(None, None) == {}
    losses, outputs = plain.measure(nn.Identity(), data)
    assert (losses.tolist(), outputs) == ([1.0] * 3, None)
    full = Plain(
        outputs=lambda model, batch: model(batch["x"]) * 2,
        rendered=lambda batch, outputs: iter([Rendered("a"), Rendered("b")]),
        baseline=lambda batches: nn.Identity(),
        comparisons=lambda train, val: {"naive": {"mae": 1.0}},
    )
    own = adapted(full)
    answer = own.answer(nn.Identity(), data)
    assert answer.tolist() == [[0.0], [2.0], [4.0]]  # without padding
    assert own.rows(answer, data)[1:] == [{"predicted": [2.0]}, {"predicted": [4.0]}]
    full.rows = lambda outputs, batch: [{"n": len(batch["x"])}]
    assert own.rows(answer, data) == [{"n": 3}]
    assert own.rendered(data) == [Rendered("a"), Rendered("b")]
    assert own.baseline_name == "baseline"
    assert isinstance(own.baseline([]), nn.Identity)
    assert own.comparisons(None, None) == {"naive": {"mae": 1.0}}
    assert adapted(Plain(baseline=full.baseline, baseline_name="mean")).baseline_name == "mean"


def test_an_own_objective_hears_of_updates_resets_and_moves():
    heard = []
    own = adapted(
        Plain(
            update=lambda outputs, batch: heard.append((outputs, len(batch["x"]))),
            reset=lambda: heard.append("reset"),
            to=heard.append,
        )
    )
    fields = {"x": torch.zeros(4, 1)}
    own.update("outputs", batch(fields, valid=3))
    own.update("outputs", batch(fields, valid=0))  # a share of padding
    own.reset()
    own.to("cpu")
    assert heard == [("outputs", 3), "reset", "cpu"]
    adapted(Plain(target="y", metrics={"m": MeanAbsoluteError()})).update(
        None, batch(fields, valid=0)
    )


def test_rows_of_padding_leave_tensors_and_lists_alone_that_have_no_row_a_sample():
    data = batch(
        {
            "x": torch.arange(4),
            "names": [*"abcd"],
            "classes": ["ant", "bee"],
            "pair": torch.arange(2),
            "number": torch.tensor(3),
            "text": "four",
        },
        valid=3,
    )
    kept = unpadded(data)
    assert kept["x"].tolist() == [0, 1, 2]
    assert kept["names"] == [*"abc"]
    assert (kept["classes"], kept["pair"].tolist(), kept["text"]) == (
        ["ant", "bee"],
        [0, 1],
        "four",
    )
    assert kept["number"] == 3
    assert kept.valid is None
    whole = batch({"x": torch.arange(4)}, valid=0)
    assert unpadded(whole) is whole


def test_errors_of_a_model_and_of_own_metrics_stay_as_they_are():
    data = batch({"x": torch.zeros(1, 1)})
    with pytest.raises(ValueError, match="something else"), batch_norm_explained(data):
        raise ValueError("something else")

    class Own(MeanMetric):
        def update(self, *arguments):
            raise ValueError("line one\nline two")

    with pytest.raises(ValueError, match="line one\nline two"):
        regression({"m": Own()}).add("m", torch.zeros(1), torch.zeros(1))


def test_an_error_of_a_known_metric_is_cut_to_its_first_line(monkeypatch):
    monkeypatch.setattr(objective_base, "is_known", lambda metric: True)
    errors = iter(["one\ntwo", "x" * 300])

    class Failing(MeanMetric):
        def update(self, *arguments):
            raise ValueError(next(errors))

    objective = regression({"m": Failing()})
    for reason in ("one", "x" * 200):
        said = f"predictions float32[1] and targets float32[1]: {reason}"
        with pytest.raises(ConfigError) as caught:
            objective.add("m", torch.zeros(1), torch.zeros(1))
        assert str(caught.value).endswith(said)
    assert (in_shape(3), in_shape([])) == ("a int", "a list")


def test_metrics_give_numbers_lists_and_mappings_of_these():
    gives = {
        "whole": 3,
        "number": 2.5,
        "each": torch.tensor([1.0, 2.0]),
        "parts": {"a": torch.tensor([[5.0]]), "b": 4, "c": torch.tensor([[1.0, 2.0], [3.0, 4.0]])},
    }

    class Gives(MeanMetric):
        higher_is_better = False

        def __init__(self, result):
            super().__init__()
            self.result = result

        def compute(self):
            return self.result

    objective = Classification(
        nn.CrossEntropyLoss(),
        {name: Gives(result) for name, result in gives.items()},
        ["x"],
        "label",
        2,
        ["ant", "bee"],
    )
    for metric in objective.metrics.values():
        metric.update(1.0)
    assert objective.compute() == {
        "whole": 3.0,
        "number": 2.5,
        "each/ant": 1.0,
        "each/bee": 2.0,
        "parts/a": 5.0,
        "parts/b": 4.0,
        **{f"parts/c/{n}": n + 1.0 for n in range(4)},
    }


def test_losses_by_sample_and_the_field_that_reports_show():
    objective, data = regression(), batch({"x": torch.zeros(4, 1), "y": torch.zeros(4)}, valid=3)
    places, losses = objective.by_sample(torch.arange(3.0), data)
    assert (places.tolist(), losses.tolist()) == ([0, 1, 2], [0.0, 1.0, 2.0])
    places, losses = objective.by_sample(torch.arange(7.0), data)  # a loss a token
    assert len(places) == len(losses) == 0
    assert objective.shown_field(data) == "x"
    data = batch({"a": torch.zeros(1), "b": torch.zeros(1)})
    assert Regression(nn.L1Loss(), {}, ["b", "a"], "y").shown_field(data) == "b"
    assert Regression(nn.L1Loss(), {}, [], "y").shown_field(data) == "a"


def test_an_observer_that_only_shows_is_left_out_after_its_first_error():
    class Fails(Observer):
        enough = None
        calls = 0

        def on_done(self):
            self.calls += 1
            raise RuntimeError("no screen")

    fails = Fails()
    shown = OnlyShows("the picture", fails)
    shown.on_epoch_start(0, 1, 0)
    assert fails.calls == 0
    shown.on_done()
    shown.on_done()
    shown.on_log({})
    assert fails.calls == 1
    assert shown.enough is None
