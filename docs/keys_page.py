"""docs/keys.md: every key of the configuration, with its default and its comment in YAML.

The page is written by

    python docs/keys_page.py > docs/keys.md
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import yaml

from penstock import terminal
from penstock.config import targets
from penstock.config.compose import CONF

PACKAGE = "# @package "
_NOT_KEYS = ("defaults", "hydra")

_HEAD = """# Every key

This page lists all keys of `python run.py`, by config group. `key=value` on the command line
changes a value, and `group=option` swaps a part. `python run.py --cfg job` shows the keys of one
run with their values. Each group unfolds; on the site, the field below finds keys in all of them.
The comments in `conf/` become this page by
`python docs/keys_page.py > docs/keys.md`.

`+key` marks an argument that a part takes and that its YAML leaves out. Add it with `+key=value`.
Parts of other libraries (torch's optimizers, for instance) take their arguments in the same way.
After a wrong name, the message lists all names.
"""

# Folds on GitHub and on the site, which reads Markdown inside.
_OPEN = '<details class="keys" markdown="1">\n'


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
    return list(_entries(yaml.compose(text, Loader=yaml.SafeLoader), prefix, text.splitlines()))


def _entries(node: object, prefix: str, lines: list[str]) -> Iterator[YamlKey]:
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        key = f"{prefix}.{name.value}".lstrip(".")
        start, end = value.start_mark, value.end_mark
        line = lines[name.start_mark.line]
        names = {key.value for key, _ in value.value} if isinstance(value, yaml.MappingNode) else ()
        one_line = not names or (value.flow_style and ("_target_" in names or "#" in line))
        is_section = isinstance(value, yaml.MappingNode) and not one_line
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


def keys_of(path: Path, group: str) -> list[YamlKey]:
    """The keys of an option's file, in full, and of the file at the root that it begins with."""
    text = path.read_text(encoding="utf-8")
    own = {key.key: key for key in entries(text, package_of(text, group))}
    first = re.match(r"(#.*\n)*defaults: \[(/\w+)", text)
    common = keys_of(Path(f"{CONF}{first[2]}.yaml"), group) if first else []
    return [*own.values(), *(key for key in common if key.key not in own)]


def package_of(text: str, group: str) -> str:
    """The key at which an option's file puts its own."""
    first = text.partition("\n")[0].strip()
    said = first.removeprefix(PACKAGE) if first.startswith(PACKAGE) else group.replace("/", ".")
    return "" if said == "_global_" else said


def page() -> str:
    """docs/keys.md."""
    parts = [_HEAD, "## Of a run\n", _table(_own(CONF / "config.yaml", ""))]
    for folder in sorted({path.parent for path in CONF.glob("*/*.yaml")} - {CONF / "hydra"}):
        group = folder.name
        files = sorted(folder.glob("*.yaml"), key=lambda file: (file.stem != "default", file))
        options = ", ".join(path.stem for path in files)
        parts += [f"## {group}\n", f"{_OPEN}<summary>{options}</summary>\n"]
        for path in files:
            rows = [*_own(path, group), *_not_in_yaml(path, group, targets.SUPPLIED.get(group, ()))]
            parts += [f"### {group}={path.stem}\n", _description(path), _table(rows)]
        parts.append("</details>\n")
    return "\n".join(part for part in parts if part)


def _own(path: Path, group: str) -> list[YamlKey]:
    return [
        key
        for key in keys_of(path, group)
        if (key.value or key.comment)
        and key.key.removeprefix(f"{group}.").split(".")[0] not in _NOT_KEYS
    ]


def _description(path: Path) -> str:
    """The comment at the head of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    head = takewhile(lambda line: line.startswith("#"), lines)
    said = " ".join(line.removeprefix("#").strip() for line in head if not line.startswith(PACKAGE))
    return f"{_text(said)}\n" if said else ""


def _text(comment: str) -> str:
    """A comment as Markdown: `<name>` outside code would be an element of HTML."""
    parts = comment.split("`")
    return "`".join(
        part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts)
    )


def _not_in_yaml(path: Path, group: str, supplied: Iterable[str]) -> list[YamlKey]:
    """Arguments of one of our own parts that its YAML leaves to their defaults.

    Args:
        supplied: those that the build gives the part of this group.
    """
    text = path.read_text(encoding="utf-8")
    content = yaml.safe_load(text) or {}
    where = package_of(text, group) or group
    node = content.get(group, content)
    target = str(node.get("_target_", "")) if isinstance(node, dict) else ""
    if not isinstance(node, dict) or not target.startswith("penstock."):
        return []
    known = targets.arguments(targets.resolve(target, group))
    there = {key.key for key in keys_of(path, group)}
    return [
        YamlKey(f"+{where}.{name}", _plain(known[name].default), "")
        for name in known
        if name not in supplied and f"{where}.{name}" not in there
        if known[name].default is not known[name].empty
    ]


def _plain(value: object) -> str:
    value = list(value) if isinstance(value, tuple) else value
    if value is not None and not isinstance(value, (str, int, float, bool, list, dict)):
        return "..."
    text: str = yaml.safe_dump(value, default_flow_style=True, width=80)
    return text.removesuffix("\n...\n").strip()


def _table(rows: list[YamlKey]) -> str:
    if not rows:
        return ""
    cells = [
        (f"`{row.key}`", f"`{row.value}`" if row.value else "", _text(row.comment)) for row in rows
    ]
    escaped = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in cells]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *escaped]) + "\n"


if __name__ == "__main__":
    terminal.put(page().removesuffix("\n"))
