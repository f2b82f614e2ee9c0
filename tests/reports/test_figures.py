"""Numbers as people write them, charts with room for them, and what is no chart at all."""

import json
import re

import pytest

from penstock.addons.reports import curves, page, settings, sweep_charts
from penstock.addons.reports.charts import Curve, is_curve, line_chart, make_room, new_axes, sizes
from penstock.addons.reports.figures import axis_labels, drawing, label_numbers, numeral
from penstock.addons.reports.sweep_data import SweepJob, SweepRecord
from penstock.addons.sweeps.job_result import JobResult
from penstock.runs import measurements
from penstock.runs.record import RunRecord


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (0.5, "0.5"),
        (1300.0, "1,300"),
        (0.00103, "0.00103"),
        (-1.5, "−1.5"),
        (2e-8, "2 × 10⁻⁸"),
        (1e-8, "10⁻⁸"),
        (-3.5e25, "−3.5 × 10²⁵"),
        (0.99999, "1"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_numbers_as_people_write_them(value, text):
    assert numeral(value) == text


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([0, 0.25, 0.5], ["0", "0.25", "0.50"]),
        ([0.00103, 0.00104], ["0.00103", "0.00104"]),
        ([5000.0, 10_000.0], ["5,000", "10,000"]),
        ([-1, 0, 1], ["−1", "0", "1"]),
        ([0, 2e-8, 4e-8], ["0", "2 × 10⁻⁸", "4 × 10⁻⁸"]),
        ([5.0], ["5"]),
        ([], []),
    ],
)
def test_labels_of_an_axis_tell_its_ticks_apart(ticks, labels):
    assert axis_labels(ticks) == labels


@pytest.mark.parametrize("size", sizes("broad"))
@pytest.mark.parametrize("values", [(0.00103, 0.00104), (900, 1300), (1e-8, 5e-8), (1e6, 9.5e6)])
@drawing()
def test_no_label_of_an_axis_is_cut(values, size):
    figure, axes = new_axes(size)
    axes.plot([0, 10_000_000], values)
    label_numbers(axes.xaxis)
    label_numbers(axes.yaxis)
    make_room(figure, axes)
    whole = axes.get_tightbbox(figure._get_renderer())
    assert whole.x0 >= 0
    assert whole.y0 >= 0
    assert whole.x1 <= figure.bbox.width


def test_a_lone_point_is_no_curve():
    nan = float("nan")
    assert is_curve(Curve("", [1, 2], [0.5, 0.4]))
    assert not is_curve(Curve("", [1, 2, 3], [0.5, None, nan]))
    assert not is_curve(Curve("", [], []))


def one_epoch(tmp_path, **more):
    line = {"event": "epoch", "epoch": 0, "step": 9, "train/loss": 1.25, "lr": 0.1, "seconds": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps({**line, **more}) + "\n")
    return RunRecord(tmp_path, {}, {"baseline": {"nme": 0.5}, "sessions": []})


def test_one_epoch_is_told_in_numbers(tmp_path):
    body = curves.section(one_epoch(tmp_path, **{"val/nme": 2e-8})).body
    assert "<svg" not in body
    assert "nme, validation" in body
    assert ">2 × 10⁻⁸</td>" in body
    assert ">1.25</td>" in body
    assert ">0.5</td>" in body, "the best constant's"


@pytest.mark.parametrize(
    ("command", "typed"),
    [
        ("/usr/bin/python3.11 run.py seed=1", "python run.py seed=1"),
        ("/a/.venv/bin/python /home/me/penstock/run.py seed=1", "python run.py seed=1"),
        ("/a/bin/python /a/bin/penstock -m 'seed=1, 2'", "penstock -m 'seed=1, 2'"),
        ("python -m penstock seed=1", "python -m penstock seed=1"),
        ("/opt/job it's", "/opt/job it's"),
        ("", ""),
    ],
)
def test_a_command_is_shown_as_it_was_typed(command, typed):
    assert settings.typed(command) == typed


def test_keys_of_a_legend_are_as_short_as_they_can_be_told_apart():
    keys = ["optimizer.lr", "dataset.fold", "model.a.size", "batch.size", "seed"]
    assert list(sweep_charts.short_keys(keys).values()) == [
        "lr",
        "fold",
        "a.size",
        "batch.size",
        "seed",
    ]


def test_the_fine_line_of_a_loss_is_named_where_it_is_alone():
    """In a run of one epoch without a baseline."""
    for thin, names in ((True, ["each step"]), (False, [])):
        curve = Curve("each step", [1, 2, 3], [0.3, 0.2, 0.1], ["a", "b", "c"], thin=thin)
        drawn = line_chart("Loss", [curve], x_label="optimizer steps")
        assert re.findall(r"</span>([^<]*)</li>", drawn) == names


def test_folds_of_one_setting_are_named_in_the_legend(tmp_path):
    jobs = []
    for fold in range(3):
        lines = [
            {"event": "epoch", "epoch": epoch, "step": epoch, "val/loss": 1.0 + fold + epoch}
            for epoch in range(2)
        ]
        path = tmp_path / f"{fold}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        value = 1.0 + (fold + 1) % 3
        result = JobResult([], "done", "loss", "min", value, 1.0, None, 0, 0.0, {}, 1.0)
        settings = {"dataset.fold": str(fold)}
        epochs = measurements.read(path, ("epoch",))["epoch"]
        jobs.append(SweepJob(str(fold), settings, "done", result, None, epochs))
    sweep = SweepRecord(tmp_path, True, tuple(jobs))
    legend = re.findall(r"</span>([^<]*)</li>", sweep_charts.curves(sweep, "val/loss", "Loss"))
    assert legend == ["1. fold=2", "2. fold=0", "3. fold=1"]
    assert not sweep_charts.has_curves(sweep, "val/nme")


@pytest.mark.parametrize(
    "name", ["cat.jpg", "a_very_long_name_of_a_picture_0007.jpg", "14 letters.jpg"]
)
def test_names_below_pictures_keep_both_ends(name):
    tile = {"uri": None, "path": f"/data/{name}", "lines": [], "name": name, "wrong": False}
    body = page.part("tiles", [tile], "square", template="samples.html")
    whole = body[body.index('<span class="name">') :].replace("<span>", "").replace("</span>", "")
    assert whole.partition(">")[2].startswith(f"{name}</figcaption>")
    assert f'title="/data/{name}"' in body


def test_columns_without_anything_are_left_out():
    table = page.table("t", ["a", "b", "c"], [(1, "", 2), (3, None, "")], [2], without_empty=True)
    assert ">b</th>" not in table
    assert '<td class="number">2</td>' in table
