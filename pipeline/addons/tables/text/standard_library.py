"""Text that every installation of Python has: what `help()` says of the language and its library.

A file for each topic of the language reference that comes with Python, and for each module of the
standard library its docstrings, each below the line that it belongs to. A form feed stands between
two docstrings. Only the first module keeps text that several modules share.
"""

from __future__ import annotations

import ast
import hashlib
import platform
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from penstock.terminal import watched

VERSION = 1  # raise it when the text changes
PAGE = "\f"  # between two documents of a file

# Tests, programs, tables of characters, what is installed beside, and files of one machine.
_LEFT_OUT = {
    "__pycache__",
    "config",
    "dist-packages",
    "distutils",
    "encodings",
    "ensurepip",
    "idlelib",
    "lib-dynload",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}


def name() -> str:
    """A name that differs where the text may: of this Python's version and build."""
    build = hashlib.blake2b(sys.version.encode(), digest_size=4).hexdigest()
    return f"python-{platform.python_version()}-{build}-v{VERSION}"


def write(folder: Path) -> None:
    """Write the text, a file for each topic and module; about 2 s."""
    seen: set[str] = set()
    for file, documents in _all():
        fresh = [text for text in dict.fromkeys(documents) if text.strip() and text not in seen]
        seen.update(fresh)
        if fresh:
            (folder / file).write_text(PAGE.join(fresh), encoding="utf-8", newline="\n")


def _all() -> Iterator[tuple[str, list[str]]]:
    with suppress(ImportError):  # some systems pack it separately
        from pydoc_data.topics import topics

        for topic, text in sorted(topics.items()):
            yield f"topic-{topic}.txt", [text]
    root = Path(sysconfig.get_path("stdlib"))
    modules = sorted(path.relative_to(root) for path in root.rglob("*.py"))
    kept = [path for path in modules if not _LEFT_OUT & set(path.parts[:-1])]
    for path in watched(kept, len(kept), "reading the standard library's docstrings"):
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        if path.parts[0].startswith(("_sysconfigdata", "config-")):
            continue
        try:
            tree = ast.parse((root / path).read_bytes())
        except (OSError, SyntaxError, ValueError):  # templates and examples of errors
            continue
        yield f"module-{module}.txt", list(_docstrings(tree, module))


def _docstrings(tree: ast.Module, module: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        text = ast.get_docstring(node)
        if not text:
            continue
        if isinstance(node, ast.Module):
            head = f"module {module}"
        elif isinstance(node, ast.ClassDef):
            head = f"class {node.name}"
        else:
            head = f"def {node.name}({ast.unparse(node.args)})"
        yield f"{head}\n\n{text}\n".encode("utf-8", "replace").decode()
