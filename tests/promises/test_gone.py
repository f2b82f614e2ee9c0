"""README, docs, YAML and `--help` name nothing that is gone (`pipeline/config/familiar.py`)."""

import re

import pytest
import yaml

from penstock.config.familiar import GONE
from tests.support.program import ROOT, run

PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
FILES = sorted((ROOT / "conf").rglob("*.yaml"))


def pattern_of(name):
    """Matches the name as a word; `*` at its end stands for any rest."""
    end = r"" if name.endswith("*") else r"(?![\w-])"
    return re.compile(rf"(?<![\w.-]){re.escape(name.removesuffix('*'))}{end}")


def keys_of(node, prefix=""):
    """The dotted keys of a mapping."""
    for key, value in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{key}"
        yield from keys_of(value, f"{prefix}{key}.")


@pytest.fixture(scope="module")
def texts():
    """Texts by where they stand; of YAML its dotted keys and the choices that its folder gives."""
    found = {path.relative_to(ROOT): path.read_text() for path in (*PAGES, *FILES)}
    for path in FILES:
        group = str(path.parent.relative_to(ROOT / "conf"))
        is_global = group == "." or "@package _global_" in path.read_text()
        keys = keys_of(yaml.safe_load(path.read_text()), "" if is_global else f"{group}.")
        found[f"keys of {path.name}"] = "\n".join([*keys, f"{group}={path.stem}"])
    return found


@pytest.mark.parametrize("name", GONE)
def test_no_page_and_no_file_names_what_is_gone(name, texts):
    pattern = pattern_of(name)
    assert [str(place) for place, text in texts.items() if pattern.search(text)] == []


def test_help_names_nothing_that_is_gone(capsys):
    shown = run(capsys, "--help")
    assert shown.code == 0
    assert len(shown.out) > 1000
    assert [name for name in GONE if pattern_of(name).search(shown.out)] == []
