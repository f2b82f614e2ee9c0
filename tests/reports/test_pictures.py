import math

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.addons.reports import pictures
from penstock.addons.reports.pictures import (
    confusion_matrix,
    contact_sheet,
    folded,
    forecast_thumbnail,
    forecasts,
    learning_curves,
    signals,
)
from penstock.training.rendered import Rendered

GREEN, ORANGE = (34, 224, 138), (255, 75, 31)


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def shows(path, color, tolerance=30):
    return bool((np.abs(pixels(path) - color).max(-1) < tolerance).any())


def test_true_landmarks_are_green_and_predicted_ones_orange(tmp_path):
    images = torch.full((2, 3, 32, 32), 128, dtype=torch.uint8)
    points = torch.rand(2, 68, 2) * 30
    path = contact_sheet(images, tmp_path / "both.png", points, points.flip(-1))
    assert shows(path, GREEN)
    assert shows(path, ORANGE)
    path = contact_sheet(images, tmp_path / "true.png", landmarks=points)
    assert shows(path, GREEN)
    assert not shows(path, ORANGE)
    path = contact_sheet(images, tmp_path / "none.png")
    assert not shows(path, GREEN)


TEX = [
    r"$\frac{$",
    r"$\undefined$",
    "$" + "{" * 200 + "x" + "}" * 200 + "$",
    "$x^x^x$",
    "\ud800",
    "\uffff\0",
    "$$",
    "a" * 100_000,
]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", TEX, ids=lambda name: ascii(name[:9]))
def test_names_are_texts_and_no_tex(name, tmp_path):
    """Of classes, metrics and samples, which may come from anybody."""
    path = tmp_path / "x.png"
    pixels(confusion_matrix(torch.eye(2, dtype=torch.int64), [name, "b"], path, title=name))
    history = [{"epoch": 0, f"val/{name}/a": 1.0, f"val/{name}/{name}": 2.0}]
    pixels(learning_curves(history, path, levels={name: {name: 1.0}}))
    pixels(contact_sheet(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), path, captions=[name]))
    pixels(signals([torch.rand(10, 2)], path, [name]))


def test_captions_are_folded_and_then_cut():
    assert folded("a small star", 12) == "a small star"
    assert folded("a small star left of a square", 18) == "a small star left\nof a square"
    assert folded("a small star " * 5, 18) == "a small star a\nsmall star a sm..."
    assert [len(line) for line in folded("a" * 100, 18).split("\n")] == [18, 18]


def test_settings_of_the_working_folder_change_nothing(tmp_path, monkeypatch):
    """A file matplotlibrc there is read when matplotlib is imported."""
    import matplotlib

    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfigure.facecolor: red\n")
    monkeypatch.chdir(tmp_path)
    before = pixels(learning_curves([{"epoch": 0, "val/loss": 1.0}], tmp_path / "a.png"))
    with matplotlib.rc_context(fname="matplotlibrc"):
        after = pixels(learning_curves([{"epoch": 0, "val/loss": 1.0}], tmp_path / "b.png"))
        assert matplotlib.rcParams["text.usetex"]
    assert (before == after).all()


def test_points_lie_where_they_belong(tmp_path):
    image = torch.full((1, 3, 20, 40), 255, dtype=torch.uint8)
    points = torch.tensor([[[10.0, 15.0]]])  # a quarter across, three quarters down
    plain = contact_sheet(image, tmp_path / "plain.png")
    drawn = contact_sheet(image, tmp_path / "drawn.png", landmarks=points)
    found = np.abs(pixels(drawn) - GREEN).max(-1) < 30
    found[:60] = False  # the legend
    rows, columns = np.nonzero(found)
    width = pixels(plain).shape[1]
    assert abs(columns.mean() / width - 0.25) < 0.03
    tile = pixels(drawn).shape[0] - rows.mean()
    assert tile < pixels(drawn).shape[0] / 2


def test_floats_and_bytes_and_gray_look_alike(tmp_path):
    level = torch.full((1, 3, 16, 16), 64, dtype=torch.uint8)
    expected = pixels(contact_sheet(level, tmp_path / "bytes.png"))
    for name, other in {"floats": level / 255, "gray": level[:, :1]}.items():
        path = contact_sheet(other, tmp_path / f"{name}.png")
        assert np.abs(pixels(path) - expected).max() <= 1, name
    middle = expected[expected.shape[0] // 2, expected.shape[1] // 2]
    assert middle.tolist() == [64, 64, 64]


def test_images_of_different_sizes_and_captions(tmp_path):
    images = [torch.rand(3, 10, 30), torch.rand(1, 30, 10), torch.rand(3, 8, 8)]
    short = contact_sheet(images, tmp_path / "a.png", columns=2)
    captioned = contact_sheet(images, tmp_path / "b.png", captions=["x", "y\nz", ""], columns=2)
    assert pixels(short).shape[1] == pixels(captioned).shape[1]
    assert pixels(short).shape[0] < pixels(captioned).shape[0]


def test_learning_curves_have_a_panel_for_each_metric(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: saved.append(figure) or path)
    history = [{"epoch": e, "train/loss": 1 / (e + 1), "lr": 0.1, "seconds": 1.0} for e in range(4)]
    for epoch in (1, 3):
        history[epoch] |= {
            "val/loss": 0.5,
            "train/loss/box": 0.3,
            "val/loss/box": 0.2,
            "val/nme": 0.1,
            "val/recall/ants": 1.0,
            "val/recall/bees": 0.5,
        }
    baseline = {"nme": 0.3, "loss": math.nan}
    learning_curves(history, tmp_path / "c.png", {"mean face": baseline})
    axes = {one.get_title(loc="left"): one for one in saved[0].axes}
    assert list(axes) == ["loss", "nme", "recall"]
    labels = {title: [line.get_label() for line in one.lines] for title, one in axes.items()}
    assert labels == {
        "loss": ["training", "validation", "box, training", "box"],
        "nme": ["validation", "mean face"],
        "recall": ["ants", "bees"],
    }
    assert axes["nme"].lines[0].get_xdata().tolist() == [1, 3]
    assert axes["loss"].lines[0].get_ydata().tolist() == [1, 1 / 2, 1 / 3, 1 / 4]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_curves_of_hopeless_numbers_can_be_drawn(tmp_path, value):
    history = [{"epoch": 0, "train/loss": value, "val/loss": value}]
    assert learning_curves(history, tmp_path / "new" / "c.png").exists()


def test_no_global_state_of_matplotlib_is_touched(tmp_path):
    import matplotlib

    before = matplotlib.get_backend(auto_select=False)
    contact_sheet(torch.rand(1, 3, 8, 8), tmp_path / "a.png")
    assert matplotlib.get_backend(auto_select=False) == before


@pytest.fixture
def figures(monkeypatch):
    """The figures that would have been saved."""
    saved = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: saved.append(figure) or path)
    return saved


@pytest.mark.one_in(4)
@pytest.mark.parametrize("epochs", [[0], [7], [0, 1], [3, 4, 5, 6]])
def test_epochs_are_whole_numbers_and_no_legend_covers_a_line(tmp_path, figures, epochs):
    history = [{"epoch": e, "train/loss": 1.0, "val/loss": 2.0} for e in epochs]
    learning_curves(history, tmp_path / "c.png", {"mean": {"loss": 3.0}})
    (figure,) = figures
    figure.canvas.draw()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert set(ticks) <= set(epochs)
    assert ticks
    legend, panel = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert legend.x0 >= panel.x1
    assert legend.x1 <= figure.bbox.x1


def test_a_confusion_matrix_has_the_counts_and_the_names(tmp_path, figures):
    counts = torch.tensor([[5, 1, 0], [0, 0, 2], [3, 0, 7]])
    confusion_matrix(counts, ["ant", "bee", "a" * 40], tmp_path / "c.png", "epoch 3")
    (axes,) = figures[0].axes
    found = {(text.get_position()[::-1]): text.get_text() for text in axes.texts}
    assert found == {(0, 0): "5", (0, 1): "1", (1, 2): "2", (2, 0): "3", (2, 2): "7"}
    assert [one.get_text() for one in axes.get_yticklabels()] == ["ant", "bee", "a" * 15 + "..."]
    shares = axes.images[0].get_array()
    assert shares[1].tolist() == [0, 0, 1]


def test_signals_are_lines_or_heat_maps(tmp_path, figures):
    signals([torch.rand(30, 2), torch.rand(1, 50), torch.rand(40, 60)], tmp_path / "s.png", "abc")
    lines, wave, heat = figures[0].axes
    assert [len(one.get_xdata()) for one in lines.lines] == [30, 30]
    assert [len(one.get_xdata()) for one in wave.lines] == [50]
    assert heat.images[0].get_array().shape == (40, 60)


def test_a_forecast_goes_on_where_the_past_ends(tmp_path, figures):
    past, truth = torch.arange(8.0), torch.tensor([8.0, torch.nan, 10.0])
    row = Rendered(predicted="mae 1", past=past, future=truth, forecast=torch.full((3,), 7.0))
    forecasts([row, Rendered(past=past)], tmp_path / "f.png", ["mae 1", ""])
    both, alone = figures[0].axes
    assert [line.get_xdata().tolist() for line in both.lines[1:]] == [[7, 8, 9, 10]] * 2
    assert both.lines[2].get_ydata().tolist() == [7, 7, 7, 7]
    assert [len(line.get_xdata()) for line in alone.lines] == [8]
    for number, drawn in enumerate((row, Rendered(past=torch.full((1,), torch.nan)))):
        made = tmp_path / f"{number}.png"
        made.write_bytes(forecast_thumbnail(drawn))
        assert pixels(made).shape == (80, 160, 3)
    assert shows(tmp_path / "0.png", ORANGE)


def test_names_in_any_script_are_drawn_without_a_word(tmp_path, recwarn):
    assert confusion_matrix(torch.eye(2).long(), ["개미", "벌"], tmp_path / "c.png").exists()
    assert [str(one.message) for one in recwarn if "Glyph" in str(one.message)] == []
