"""Three ways of a reader through the site, by links only, in Chromium: docs/contributing.md.

And what a reader needs on the way: the search, and roles for screen readers.
"""

import functools
import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.program import ROOT
from tests.reports import browser as browsers

pytestmark = [browsers.needed, pytest.mark.stress]

# The text of each link from the home page on, and a command of the last page.
WAYS = {
    "a folder of images": (
        ("Image classification", "one row per file"),
        "python run.py task=predict",
    ),
    "a killed run on another machine": (
        ("On another machine", "fingerprint"),
        "python run.py resume=outputs/photos dataset.root=",
    ),
    "an idle GPU": (
        ("Why is my GPU idle?", "task=profile", "task=tune"),
        "python run.py task=tune",
    ),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        check=True,
    )
    return folder


@pytest.mark.parametrize("name", WAYS)
def test_links_lead_from_the_home_page_to_the_command(name, site):
    links, command = WAYS[name]
    with browsers.opened() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto((site / "index.html").as_uri())
        for text in links:
            link = page.locator("article, .md-sidebar").get_by_role("link", name=text, exact=True)
            link.filter(visible=True).first.click()
            anchor = page.evaluate("decodeURIComponent(location.hash.slice(1))")
            assert not anchor or page.locator(f"[id='{anchor}']").count() == 1
        assert command in page.locator("article").inner_text()


@pytest.fixture(scope="module")
def address(site):
    """The site on a web server, without which browsers start no workers, and so no search."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("question", "page"),
    [
        ("resume on another machine", "resuming.html"),
        ("why is my GPU idle", "tuning.html"),
        ("on", "packing.html"),  # "once", in its title: a question of such words alone stays
    ],
)
def test_the_search_finds_the_page_first(question, page, address):
    with browsers.opened() as browser:
        site = browser.new_page(viewport={"width": 1280, "height": 900})
        site.goto(f"{address}/api/pipeline.html")
        site.locator(".md-search__input").click()
        site.locator(".md-search__input").press_sequentially(question)
        first = site.locator(f".md-search-result__item:first-child a[href*='/{page}']").first
        first.wait_for(state="visible")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", ["index", "resuming", "using", "keys"])
def test_axe_finds_nothing_on_a_page(page, width, site):
    base = pytest.importorskip("axe_playwright_python.base")
    with browsers.opened() as browser:
        opened = browser.new_page(viewport={"width": width, "height": 900})
        opened.goto((site / f"{page}.html").as_uri())
        opened.locator("nav.md-code__nav, details.keys").first.wait_for(state="attached")
        opened.evaluate(Path(base.AXE_FILE_PATH).read_text())
        found = opened.evaluate(
            "async () => (await axe.run()).violations.map(rule => rule.id + rule.nodes[0].html)"
        )
    # The corner of a table with names of rows is empty.
    assert [rule for rule in found if not rule.startswith("empty-table-header")] == []
