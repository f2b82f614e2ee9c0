"""Reports in a real browser, without a network: Debian's chromium, driven by playwright.

`look(page_file)` opens a file as somebody would who was mailed it, and says what happened.
"""

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needed = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@dataclass
class Seen:
    """What a browser met in a report.

    Attributes:
        charts: (width, height, drawn strokes, aria-label) of every chart that is visible.
        violations: of accessibility, "rule: element", that axe-core calls serious or critical.
        overflow: pixels that the page is wider than its window.
    """

    problems: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    charts: list = field(default_factory=list)
    violations: list = field(default_factory=list)
    overflow: int = 0
    title: str = ""


@contextmanager
def opened():
    """A browser; it takes half a second to start."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


_CHARTS = """() => [...document.querySelectorAll('svg[role=img]')]
    .filter(one => one.checkVisibility())
    .map(one => {
        const box = one.getBoundingClientRect();
        const strokes = [...one.querySelectorAll('path, use, rect')].filter(part => {
            const area = part.getBoundingClientRect();
            return area.width + area.height > 0;
        });
        return [box.width, box.height, strokes.length, one.getAttribute('aria-label')];
    })"""
_AXE = """async () => (await axe.run()).violations
    .filter(one => ['serious', 'critical'].includes(one.impact))
    .flatMap(one => one.nodes.map(node => one.id + ': ' + node.html.slice(0, 200)))"""


def look(browser, path, width=1280, height=900, scheme="light", axe=True, folds=True):
    """Open a file with the network off, unfold everything, and say what was seen."""
    seen = Seen()
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
    )
    try:
        page = context.new_page()
        page.on("console", lambda message: seen.problems.append(message.text))
        page.on("pageerror", lambda error: seen.problems.append(str(error)))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on("dialog", lambda dialog: (seen.problems.append("a dialog"), dialog.dismiss()))
        page.goto(Path(path).resolve().as_uri())
        if folds:
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        seen.title = page.title()
        seen.charts = page.evaluate(_CHARTS)
        seen.overflow = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        if axe:  # through the debugger, which the page's policy does not bind
            base = pytest.importorskip("axe_playwright_python.base")
            page.evaluate(Path(base.AXE_FILE_PATH).read_text())
            seen.violations = page.evaluate(_AXE)
    finally:
        context.close()
    return seen


def check(browser, path, charts, **how):
    """Assert that a report is whole in a browser; returns what was seen."""
    seen = look(browser, path, **how)
    assert seen.problems == []
    assert [one for one in seen.requests if not one.startswith("data:")] == [
        Path(path).resolve().as_uri()
    ]
    assert seen.violations == []
    assert seen.overflow <= 0
    assert len(seen.charts) == charts, [one[3][:60] for one in seen.charts]
    assert all(
        width > 200 and height > 100 and strokes > 5 and label
        for width, height, strokes, label in seen.charts
    )
    return seen
