"""Three ways of a reader through the site, by links only, in Chromium: docs/contributing.md."""

import os
import subprocess
import sys

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
        ("Why is my GPU idle?", "task=profile", "task=tune and loader=tuned"),
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
