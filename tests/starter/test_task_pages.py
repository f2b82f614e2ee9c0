"""The pages of tasks begin alike; tests/documents/ runs their commands."""

import re

import pytest

from tests.program import ROOT

PAGES = (
    "classification.md",
    "multi_label.md",
    "image_tables.md",
    "pairs.md",
    "gan.md",
    "vision.md",
    "landmarks.md",
    "tabular.md",
    "forecasting.md",
    "texts.md",
    "language_models.md",
    "audio.md",
    "video.md",
)


def commands(page):
    """The commands on files that a person has; drawn experiments have tests of their own."""
    text = re.sub(r"\\\n *", "", (ROOT / "docs" / page).read_text())
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.split("\n")
    ]
    return [line for line in lines if line.startswith("python run.py") and "dataset.root=" in line]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_files_a_command_and_what_is_seen(page):
    text = (ROOT / "docs" / page).read_text()
    kinds = re.findall(r"^```(\w+)$", text, re.MULTILINE)
    assert kinds[:2] == ["text", "sh"]
    if page != "image_tables.md":  # trains by the tasks of other pages
        assert kinds.count("text") >= 2
    assert commands(page)


def test_each_task_is_on_the_first_page():
    text = (ROOT / "docs" / "index.md").read_text()
    table = text[text.index("## What do you train?") : text.index("## Start")]
    linked = set(re.findall(r"\((\w+\.md)", table))
    assert linked >= {*PAGES} - {"image_tables.md"}
