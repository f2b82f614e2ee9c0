"""The comments behind keys in YAML files: for `--help`, `--cfg` and docs/keys.md.

The comments in conf/ are the one place where keys are described. Cost: 0.1 ms a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from penstock.config.yaml_sizes import PARSER

PACKAGE = "# @package "
_WIDTH = 100  # a longer value stands without its comment


class YamlKey(NamedTuple):
    """A key as it stands in a YAML file.

    Attributes:
        key: in full.
        value: as it is written; empty for a section.
        comment: what stands behind it.
        line: its number, from 0.
    """

    key: str
    value: str
    comment: str
    line: int = 0


def entries(text: str, prefix: str = "") -> list[YamlKey]:
    """The keys of a YAML text, in order; those inside of {...} belong to the key before it."""
    return list(_entries(yaml.compose(text, Loader=PARSER), prefix, text.splitlines()))


def _entries(node: object, prefix: str, lines: list[str]) -> Iterator[YamlKey]:
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        key = f"{prefix}.{name.value}".lstrip(".")
        start, end = value.start_mark, value.end_mark
        line = lines[name.start_mark.line]
        is_section = isinstance(value, yaml.MappingNode) and not value.flow_style
        if is_section:
            written, behind = "", line[name.end_mark.column + 1 :]
        elif start.line == end.line == name.start_mark.line:
            written, behind = line[start.column : end.column], line[end.column :]
        else:  # over several lines
            written, behind = "...", ""
        comment = behind.strip().removeprefix("#").strip() if "#" in behind else ""
        yield YamlKey(key, written, comment, name.start_mark.line)
        if is_section:
            yield from _entries(value, key, lines)


def comments(
    folders: Iterable[Path], choices: Mapping[str, str | None], name: str
) -> dict[str, str]:
    """The comments in the YAML files of a composition, by key.

    Args:
        folders: in which hydra looks, the first that has a file wins.
        choices: the option of each group.
        name: of the primary configuration.
    """
    said: dict[str, str] = {}
    places = list(folders)
    for group, option in [("", name), *choices.items()]:
        if option is not None:
            for path in _files(places, group, str(option)):
                said |= {
                    entry.key: entry.comment for entry in keys_of(path, group) if entry.comment
                }
    return said


def _files(folders: list[Path], group: str, option: str) -> list[Path]:
    """The file of an option, after those of its own group that it builds on."""
    files = (folder / group / f"{option}.yaml" for folder in folders)
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        return []
    content = yaml.load(path.read_text(encoding="utf-8"), PARSER)
    before = content.get("defaults", []) if isinstance(content, dict) and group else []
    names = [name for name in before if isinstance(name, str) and name not in ("_self_", option)]
    return [file for name in names for file in _files(folders, group, name)] + [path]


def keys_of(path: Path, group: str) -> list[YamlKey]:
    """The keys of an option's file, in full."""
    text = path.read_text(encoding="utf-8")
    return entries(text, package_of(text, group))


def package_of(text: str, group: str) -> str:
    """The key at which an option's file puts its own."""
    first = text.partition("\n")[0].strip()
    said = first.removeprefix(PACKAGE) if first.startswith(PACKAGE) else group.replace("/", ".")
    return "" if said == "_global_" else said


def annotated(text: str, said: Mapping[str, str], prefix: str = "") -> str:
    """A YAML text with comments behind its keys.

    Args:
        said: comments by key.
        prefix: the key that the text is the value of.
    """
    lines = text.splitlines()
    for entry in entries(text, prefix):
        comment, line = said.get(entry.key), lines[entry.line]
        if comment and entry.value != "..." and len(line) < _WIDTH:
            lines[entry.line] = f"{line}  # {comment}"
    return "\n".join(lines) + "\n"
