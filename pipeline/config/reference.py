"""Every key of the configuration with its comment in YAML: for `--help`, `--cfg` and docs/keys.md.

The comments in conf/ are the one place where keys are described. The page is written by

    python -m penstock.config.reference > docs/keys.md

Cost: 2 ms a file; torch is imported for the page only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from penstock import terminal

# In a checkout, `pipeline/conf` is a link to the folder beside it.
CONF = (Path(__file__).resolve().parent.parent / "conf").resolve()
_PACKAGE = "# @package "
_NOT_KEYS = ("defaults", "hydra")
_WIDTH = 100  # a longer value stands without its comment

_HEAD = """# Every key

What `python run.py` takes, by group: `key=value` on the command line changes a value,
`group=option` swaps a part. `python run.py --cfg job` shows the keys of one run with their values.
Made from the comments in `conf/` by `python -m penstock.config.reference > docs/keys.md`.

`+key` marks an argument that a part takes and its YAML leaves out: it is added with `+key=value`.
Parts of other libraries (torch's optimizers, for instance) take theirs in the same way; a wrong
name is answered with all that there are.

Tab completes keys, options and names of files in a shell that was told so, in its start-up
file (`zsh` in the place of `bash`; for fish, `python run.py -sc install=fish | source`):

```sh
eval "$(python run.py -sc install=bash)"
```
"""


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


def _entries(node: Any, prefix: str, lines: list[str]) -> Iterator[YamlKey]:
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
    found: dict[str, str] = {}
    places = list(folders)
    for group, option in [("", name), *choices.items()]:
        if option is not None and group.split("/")[0] != "hydra":
            for path in _files(places, group, str(option)):
                found |= {one.key: one.comment for one in _keys(path, group) if one.comment}
    return found


def _files(folders: list[Path], group: str, option: str) -> list[Path]:
    """The file of an option, after those of its own group that it builds on."""
    path = next(
        (one for folder in folders if (one := folder / group / f"{option}.yaml").is_file()), None
    )
    if path is None:
        return []
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    before = given.get("defaults", []) if isinstance(given, dict) and group else []
    names = [one for one in before if isinstance(one, str) and one not in ("_self_", option)]
    return [file for one in names for file in _files(folders, group, one)] + [path]


def _keys(path: Path, group: str) -> list[YamlKey]:
    """The keys of an option's file, in full."""
    text = path.read_text(encoding="utf-8")
    return entries(text, _package(text, group))


def _package(text: str, group: str) -> str:
    """The key at which an option's file puts its own."""
    first = text.partition("\n")[0].strip()
    said = first.removeprefix(_PACKAGE) if first.startswith(_PACKAGE) else group.replace("/", ".")
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


def page() -> str:
    """docs/keys.md."""
    from penstock.config import nodes, preflight

    supplied = {part.key: part.supplied for part in nodes.parts(preflight.compose())}
    parts = [_HEAD, "## Of a run\n", _table(_own(CONF / "config.yaml", ""))]
    for folder in sorted(path for path in CONF.iterdir() if path.is_dir() and path.name != "hydra"):
        group = folder.name
        parts.append(f"## {group}\n")
        for path in sorted(folder.glob("*.yaml"), key=lambda one: (one.stem != "default", one)):
            rows = [*_own(path, group), *_not_in_yaml(path, group, supplied.get(group, ()))]
            parts += [f"### {group}={path.stem}\n", _description(path), _table(rows)]
    return "\n".join(part for part in parts if part)


def _own(path: Path, group: str) -> list[YamlKey]:
    return [
        one
        for one in _keys(path, group)
        if (one.value or one.comment)
        and one.key.removeprefix(f"{group}.").split(".")[0] not in _NOT_KEYS
    ]


def _description(path: Path) -> str:
    """The comment at the head of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    head = takewhile(lambda line: line.startswith("#"), lines)
    said = " ".join(
        line.removeprefix("#").strip() for line in head if not line.startswith(_PACKAGE)
    )
    return f"{said}\n" if said else ""


def _not_in_yaml(path: Path, group: str, supplied: Iterable[str]) -> list[YamlKey]:
    """Arguments of one of our own parts that its YAML leaves to their defaults.

    Args:
        supplied: those that the build gives the part of this group.
    """
    from penstock.config import allow_list, signatures

    text = path.read_text(encoding="utf-8")
    given = yaml.safe_load(text) or {}
    where = _package(text, group) or group
    node = given.get(group, given)
    target = str(node.get("_target_", "")) if isinstance(node, dict) else ""
    if not isinstance(node, dict) or not target.startswith("penstock."):
        return []
    known = signatures.arguments(allow_list.resolve(target, group))
    return [
        YamlKey(f"+{where}.{name}", _plain(known.defaults[name]), "")
        for name in known.names
        if name not in {*supplied, *node} and name in known.defaults
    ]


def _plain(value: Any) -> str:
    value = list(value) if isinstance(value, tuple) else value
    if value is not None and not isinstance(value, (str, int, float, bool, list, dict)):
        return "..."
    text: str = yaml.safe_dump(value, default_flow_style=True, width=80)
    return text.removesuffix("\n...\n").strip()


def _table(rows: list[YamlKey]) -> str:
    if not rows:
        return ""
    cells = [(f"`{row.key}`", f"`{row.value}`" if row.value else "", row.comment) for row in rows]
    escaped = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in cells]
    return "\n".join(["| key | default | |", "|---|---|---|", *escaped]) + "\n"


if __name__ == "__main__":
    terminal.put(page().removesuffix("\n"))
