"""Reports in a browser: no request, no error, every chart drawn, nothing that keeps people out."""

import pytest

from penstock.addons.reports import run_report
from tests.reports import browser as browsers

pytestmark = browsers.needed

CHARTS = 6  # loss, metric, learning rate; waiting, work by stage, speed


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_a_report_is_whole_on_desks_and_phones_in_light_and_dark(browser, runs, width, scheme):
    path = run_report.write(runs / "done")
    seen = browsers.check(browser, path, CHARTS, width=width, scheme=scheme)
    assert seen.title == "LandmarkNet on SyntheticFaces"
    wide = max(chart[0] for chart in seen.charts)
    assert wide > 1000 if width == 1280 else wide < 390


@pytest.mark.parametrize(("name", "charts"), [("resumed", CHARTS), ("failed", 0)])
def test_runs_that_did_not_go_straight(browser, runs, name, charts):
    browsers.check(browser, run_report.write(runs / name), charts)


def test_a_run_that_was_stopped(browser, preempted):
    folder, *_ = preempted
    browsers.check(browser, folder / "report.html", CHARTS)


def test_colors_of_charts_follow_the_scheme(browser, runs):
    path, found = run_report.write(runs / "done").as_uri(), {}
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(path)
        found[scheme] = page.evaluate(
            "[...document.querySelectorAll('svg path[style*=\"stroke: var(--c1)\"]')]"
            ".map(one => getComputedStyle(one).stroke)"
        )
        page.close()
    assert found["light"]
    assert found["light"] != found["dark"]
    assert not {"none", "rgb(0, 0, 0)"} & {*found["light"], *found["dark"]}


def test_a_pointer_and_the_keyboard_read_a_chart(browser, runs):
    page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page.goto(run_report.write(runs / "done").as_uri())
    plot = page.locator(".plot:visible").first
    box = plot.bounding_box()
    plot.scroll_into_view_if_needed()
    plot.hover(position={"x": box["width"] * 0.5, "y": box["height"] / 2})
    assert plot.locator("output").inner_text().startswith("epoch 1, step ")
    page.mouse.move(0, 0)
    assert plot.locator("output").is_hidden()

    slider = plot.locator("input")
    slider.focus()
    page.keyboard.press("Home")
    first = slider.get_attribute("aria-valuetext")
    page.keyboard.press("ArrowRight")
    second = slider.get_attribute("aria-valuetext")
    assert first.startswith("epoch 0, step 0, each step")
    assert second.startswith("epoch 0, step 1, each step")
    assert plot.locator("output").inner_text().startswith("epoch 0, step 1\n")
    page.close()


def test_what_the_checks_find(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<title>x</title><img src='http://localhost:9/a.png'><script>nothing()</script>"
        "<p style='color: #ccc; background: #fff; width: 3000px'>pale</p>"
    )
    seen = browsers.look(browser, bad)
    assert any("nothing is not defined" in one for one in seen.problems)
    assert "http://localhost:9/a.png" in seen.requests
    assert {one.split(":")[0] for one in seen.violations} >= {"image-alt", "color-contrast"}
    assert seen.overflow > 1000
