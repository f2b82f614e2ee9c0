"""What the site needs besides the pages: the sources, the release, commands in tabs.

mkdocstrings reads docstrings in a copy of `pipeline` named `penstock`, as it is imported.
`pipeline/datasets` is a link to `datasets/`, which has no `__init__.py`, so mkdocstrings passes it
over. In the copy links are folders, and that one is a package. Nothing is imported.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

from mkdocs.plugins import event_priority

ROOT = Path(__file__).parent.parent
# Pages for those who begin show both commands; the others take it as known.
WITH_TABS = ("index.md", "using.md", "recipes.md")
PROGRAMS = ("python run.py", "penstock")
_copies = []


@event_priority(100)  # before mkdocstrings looks at its configuration
def on_config(config):
    """Copy the sources, and have mkdocstrings read the copy. Name the host and the release."""
    address = os.environ.get("SITE_URL", "")
    config.site_url = f"{address.rstrip('/')}/" if address else ""
    init = (ROOT / "pipeline" / "__init__.py").read_text()
    release = re.search(r'^__version__ = "(.+)"', init, re.MULTILINE)[1]
    config.extra["release"] = release
    config.copyright = f"{config.site_name} {release}, under the Apache License 2.0"
    copy = tempfile.TemporaryDirectory(prefix="penstock-docs-")
    _copies.append(copy)
    package = Path(copy.name) / "penstock"
    only_python = shutil.ignore_patterns("__pycache__", "conf", "*.so", "*.c", "*.h")
    shutil.copytree(ROOT / "pipeline", package, ignore=only_python)
    for folder in (package / "datasets").rglob("*"):
        if folder.is_dir():
            (folder / "__init__.py").touch()
    (package / "datasets" / "__init__.py").touch()
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [copy.name]
    return config


def on_page_markdown(markdown, page, **_):
    """Show blocks of commands twice on some pages: for a checkout and for an installation."""
    if page.file.src_uri not in WITH_TABS:
        return markdown
    return re.sub(r"^```sh\n(.*?)^```\n", _tabs, markdown, flags=re.DOTALL | re.MULTILINE)


def _tabs(block):
    checkout, installed = PROGRAMS
    if not re.search(rf"^{checkout}\b", block[1], re.MULTILINE):
        return block[0]
    tabs = []
    for program in (checkout, installed):
        commands = re.sub(rf"^{checkout}\b", program, block[0], flags=re.MULTILINE)
        inside = "".join(
            f"    {line}" if line.strip() else line for line in commands.splitlines(True)
        )
        tabs.append(f'=== "{program}"\n\n{inside}\n')
    return "\n".join(tabs)


def on_shutdown():
    """Remove the copy."""
    while _copies:
        _copies.pop().cleanup()
