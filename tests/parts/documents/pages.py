"""The pages of docs/ as tests read them: their blocks of code, commands and files."""

import re

from tests.support.program import ROOT


def text_of(page):
    """A page of docs/, with each command in a line of its own."""
    return re.sub(r"\\\n *", "", (ROOT / "docs" / page).read_text())


def blocks(page, language):
    text = text_of(page) if language == "sh" else (ROOT / "docs" / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(page):
    """The command lines of a page, one string each."""
    return [line for block in blocks(page, "sh") for line in block.splitlines()]


def write_files(page, folder):
    """Write every block that names its file, `# file: name`, whole."""
    for language in ("python", "yaml"):
        for block in blocks(page, language):
            if name := re.search(r"^# file: (.+)$", block, re.MULTILINE):
                path = folder / name[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block)
