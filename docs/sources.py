"""Where the site's API page reads docstrings: in a copy of `pipeline` that is called `penstock`.

`pipeline/datasets` is a link to `datasets/`, which has no `__init__.py`, so mkdocstrings passes it
over. In the copy links are folders, and that one is a package. Nothing is imported.
"""

import shutil
import tempfile
from pathlib import Path

from mkdocs.plugins import event_priority

ROOT = Path(__file__).parent.parent
COPY = tempfile.TemporaryDirectory(prefix="penstock-docs-")


@event_priority(100)  # before mkdocstrings looks at its configuration
def on_config(config):
    package = Path(COPY.name) / "penstock"
    only_python = shutil.ignore_patterns("__pycache__", "conf", "*.so", "*.c", "*.h")
    shutil.copytree(ROOT / "pipeline", package, ignore=only_python, dirs_exist_ok=True)
    for folder in (package / "datasets", *(package / "datasets").rglob("*")):
        if folder.is_dir():
            (folder / "__init__.py").touch()
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [COPY.name]
    return config
