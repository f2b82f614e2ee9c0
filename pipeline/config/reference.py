"""Every key of the configuration with what its YAML says of it: `--help`, `--cfg` and docs/keys.md.

The comments in conf/ are the one place where keys are described. Here they are read from there and
put beside the keys of a composed configuration, or all into one page:

    python -m pipeline.config.reference > docs/keys.md

Cost: 2 ms a file; nothing of torch is imported but for the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from pipeline import terminal

CONF = (Path(__file__).resolve().parent.parent / "conf").resolve()
_GLOBAL = "# @package _global_"
_NOT_KEYS = ("defaults", "hydra")
_WIDTH = 100  # a longer value stands without its comment

_HEAD = """# Every key

What `python run.py` takes, by group: `key=value` on the command line changes a value,
`group=option` swaps a part. `python run.py --cfg job` shows the keys of one run with their values.
Made from the comments in `conf/` by `python -m pipeline.config.reference > docs/keys.md`.

`+key` marks an argument that a part takes and its YAML leaves out: it is added with `+key=value`.
Parts of other libraries (torch's optimizers, for instance) take theirs in the same way; a wrong
name is answered with all that there are.

Tab completes keys and options in a shell that was told so (add it to its start-up file; `zsh` and
`fish` in the place of `bash`):

```sh
eval "$(python run.py -sc install=bash)"
```
"""


@dataclass(frozen=True)
class Entry:
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
    line: int


def entries(text: str, prefix: str = "") -> list[Entry]:
    """The keys of a YAML text, in order; those inside of {...} belong to the key before it."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return list(_entries(root, prefix, text.splitlines()))


def _entries(node: Any, prefix: str, lines: list[str]) -> Iterator[Entry]:
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        key = f"{prefix}.{name.value}".lstrip(".")
        inner = isinstance(value, yaml.MappingNode) and not value.flow_style
        end = name.end_mark if inner else value.end_mark
        line = lines[name.start_mark.line]
        if inner:
            written, behind = "", line[end.column + 1 :]
        elif value.start_mark.line == value.end_mark.line == name.start_mark.line:
            written, behind = line[value.start_mark.column : end.column], line[end.column :]
        else:  # over several lines
            written, behind = "...", ""
        comment = behind.strip().removeprefix("#").strip() if "#" in behind else ""
        yield Entry(key, written, comment, name.start_mark.line)
        if inner:
            yield from _entries(value, key, lines)


def comments(
    folders: Iterable[Path], choices: Mapping[str, str | None], name: str
) -> dict[str, str]:
    """What the YAML files of a composition say, by key.

    Args:
        folders: in which hydra looks, the first that has a file wins.
        choices: the option of each group.
        name: of the primary configuration.
    """
    found: dict[str, str] = {}
    places = list(folders)
    for group, option in [("", name), *choices.items()]:
        if option is not None and group.split("/")[0] != "hydra":
            for path in _files(places, group, str(option)):
                said = entries(path.read_text(encoding="utf-8"), _package(path, group))
                found |= {entry.key: entry.comment for entry in said if entry.comment}
    return found


def _files(folders: list[Path], group: str, option: str) -> list[Path]:
    """The file of an option, after those of its own group that it builds on."""
    path = next((one for folder in folders
                 if (one := folder / group / f"{option}.yaml").is_file()), None)  # fmt: skip
    if path is None:
        return []
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    before = given.get("defaults", []) if isinstance(given, dict) and group else []
    names = [one for one in before if isinstance(one, str) and one not in ("_self_", option)]
    return [file for one in names for file in _files(folders, group, one)] + [path]


def _package(path: Path, group: str) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return "" if first.strip() == _GLOBAL else group.replace("/", ".")


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


def page() -> str:
    """docs/keys.md."""
    parts = [_HEAD, "## Of a run\n", _table(_own(CONF / "config.yaml", ""))]
    for folder in sorted(path for path in CONF.iterdir() if path.is_dir() and path.name != "hydra"):
        parts.append(f"## {folder.name}\n")
        for path in sorted(folder.glob("*.yaml"), key=lambda one: (one.stem != "default", one)):
            rows = [*_own(path, folder.name), *_not_in_yaml(path, folder.name)]
            parts += [f"### {folder.name}={path.stem}\n", _description(path), _table(rows)]
    return "\n".join(part for part in parts if part)


def _own(path: Path, group: str) -> list[Entry]:
    found = entries(path.read_text(encoding="utf-8"), _package(path, group))
    shown = [
        one for one in found if one.key.removeprefix(f"{group}.").split(".")[0] not in _NOT_KEYS
    ]
    return [one for one in shown if one.value or one.comment]


def _description(path: Path) -> str:
    """The comment at the head of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    head = takewhile(lambda line: line.startswith("#"), lines)
    said = " ".join(line.removeprefix("#").strip() for line in head if line.strip() != _GLOBAL)
    return f"{said}\n" if said else ""


@lru_cache(maxsize=1)
def _supplied() -> dict[str, tuple[str, ...]]:
    """What the build gives the part of each group, so that nobody writes it."""
    from pipeline.config import nodes, preflight

    return {part.key: part.supplied for part in nodes.parts(preflight.compose())}


def _not_in_yaml(path: Path, group: str) -> list[Entry]:
    """Arguments of one of our own parts that its YAML leaves to their defaults."""
    from pipeline.config import allow_list, signatures

    given = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    node = given.get(group, given)
    target = str(node.get("_target_", "")) if isinstance(node, dict) else ""
    if not isinstance(node, dict) or not target.startswith("pipeline."):
        return []
    known = signatures.arguments(allow_list.resolve(target, group))
    supplied = {*_supplied().get(group, ()), *node}
    return [
        Entry(f"+{group}.{name}", _plain(known.defaults[name]), "", 0)
        for name in known.names
        if name not in supplied and name in known.defaults
    ]


def _plain(value: Any) -> str:
    value = list(value) if isinstance(value, tuple) else value
    if value is not None and not isinstance(value, (str, int, float, bool, list, dict)):
        return "..."
    text: str = yaml.safe_dump(value, default_flow_style=True, width=80)
    return text.removesuffix("\n...\n").strip()


def _table(rows: list[Entry]) -> str:
    if not rows:
        return ""
    cells = [(f"`{row.key}`", f"`{row.value}`" if row.value else "", row.comment) for row in rows]
    escaped = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in cells]
    return "\n".join(["| key | default | |", "|---|---|---|", *escaped]) + "\n"


if __name__ == "__main__":
    terminal.put(page().removesuffix("\n"))
