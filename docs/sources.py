"""Where mkdocstrings reads docstrings: a copy of `pipeline` named `penstock`, as it is imported.

`pipeline/datasets` is a link to `datasets/`, which has no `__init__.py`, so mkdocstrings passes it
over. In the copy links are folders, and that one is a package. Nothing is imported.
"""

import shutil
import tempfile
from pathlib import Path

from mkdocs.plugins import event_priority

ROOT = Path(__file__).parent.parent
_copies = []


@event_priority(100)  # before mkdocstrings looks at its configuration
def on_config(config):
    """Copy the sources, and have mkdocstrings read the copy."""
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


def on_shutdown():
    """Remove the copy."""
    while _copies:
        _copies.pop().cleanup()
