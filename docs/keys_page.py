"""docs/keys.md: every key of the configuration once, with its default and its comment in YAML.

The page is written by

    python docs/keys_page.py > docs/keys.md
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import yaml

from penstock import terminal
from penstock.config import targets
from penstock.config.compose import CONF

PACKAGE = "# @package "
_SEVERAL = 4  # comments on one key: those of more stand with the options, not in one row

_HEAD = """# Every key

```sh
python run.py optimizer.lr=0.01 --cfg job     # all keys of one run, with their values
```

`key=value` changes a value, and `group=option` swaps a part. This page lists the keys by config
group. A key that several options of a group share stands once; the last column names these options,
and is empty if all have it. Its default is that of most of them: `--cfg job` shows that of a run.
`+key` is an argument that a part takes and that its YAML leaves out: type the plus. Parts of other
libraries take their arguments in this way, too. The comments in `conf/` become this page by
`python docs/keys_page.py > docs/keys.md`.
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
    """The keys of an option's file, in full, and of the files that it begins with."""
    text = path.read_text(encoding="utf-8")
    own = {key.key: key for key in entries(text, package_of(text, group))}
    first = re.match(r"(#.*\n)*defaults: \[(/?)(\w+)[],]", text)
    folder = CONF if first and first[2] else path.parent
    common = keys_of(folder / f"{first[3]}.yaml", group) if first else []
    return [*own.values(), *(key for key in common if key.key not in own)]


def package_of(text: str, group: str) -> str:
    """The key at which an option's file puts its own."""
    first = text.partition("\n")[0].strip()
    said = first.removeprefix(PACKAGE) if first.startswith(PACKAGE) else group.replace("/", ".")
    return "" if said == "_global_" else said


def page() -> str:
    """docs/keys.md."""
    of_a_run = [key for key in keys_of(CONF / "config.yaml", "") if _is_key(key, "")]
    parts = [_HEAD, "## Of a run\n", _table([(key, "") for key in of_a_run])]
    for folder in sorted({path.parent for path in CONF.glob("*/*.yaml")} - {CONF / "hydra"}):
        files = sorted(folder.glob("*.yaml"), key=lambda file: (file.stem != "default", file))
        keys = _by_name(files, folder.name)
        parts += [f"## {folder.name}\n", _options(files, folder.name, keys)]
        if folder.name != "experiment":  # recipes set keys of other groups
            rows = [_merged(options) for options in keys.values()]
            where = [_where(options, files) for options in keys.values()]
            parts.append(_table(list(zip(rows, where, strict=True))))
    return "\n".join(part for part in parts if part)


def _is_key(key: YamlKey, group: str) -> bool:
    """Whether it is a key of this group: no setting of another, no class, which the list names."""
    if not key.value and not key.comment:
        return False
    parts = key.key.removeprefix("+").split(".")
    if group in ("", "task", "tracker"):  # of the whole configuration; of one tracker each
        return parts[0] not in ("defaults", "hydra") and parts[-1] != "_target_"
    return parts[0] == group and parts[1:] not in (["_target_"], ["defaults"])


def _by_name(files: list[Path], group: str) -> dict[str, dict[str, YamlKey]]:
    """The keys of a group by name, and of each those of the options that have it."""
    found: dict[str, dict[str, YamlKey]] = {}
    for path in files:
        for key in (*keys_of(path, group), *_not_in_yaml(path, group)):
            if _is_key(key, group):
                found.setdefault(key.key, {})[path.stem] = key
    for name in [name for name in found if name[0] == "+" and name[1:] in found]:
        found[name[1:]] |= found.pop(name)
    return found


def _options(files: list[Path], group: str, keys: dict[str, dict[str, YamlKey]]) -> str:
    """A line per option: its class, its description, and keys that mean another thing in each."""
    lines, bare = [], []
    for path in files if len(files) > 1 else ():
        text = path.read_text(encoding="utf-8")
        head = takewhile(lambda line: line.startswith("#"), text.splitlines())
        said = [line.removeprefix("#").strip() for line in head if not line.startswith(PACKAGE)]
        for name, options in keys.items():
            if len(_comments(options)) > _SEVERAL and getattr(
                options.get(path.stem), "comment", ""
            ):
                said.append(f"`{name.removeprefix(group + '.')}`: {options[path.stem].comment}.")
        target = _target(path, group) if group != "experiment" else ""
        of = f" ({target.rpartition('.')[2]})" if target else ""
        if said:
            lines.append(f"- `{path.stem}`{of}: {_text(' '.join(said))}\n")
        else:
            bare.append(f"`{path.stem}`{of}")
    return "".join(lines) + (f"- {', '.join(bare)}\n" if bare else "")


def _comments(options: dict[str, YamlKey]) -> dict[str, list[str]]:
    """The comments on a key, and the options of each."""
    comments: dict[str, list[str]] = {}
    for option, key in options.items():
        if key.comment:
            comments.setdefault(key.comment, []).append(option)
    return comments


def _merged(options: dict[str, YamlKey]) -> YamlKey:
    """One key for those of several options: the default of most of them, and their comments."""
    comments = _comments(options)
    several = [
        f"{comment} ({', '.join(of)})" if len(comments) > 1 else comment
        for comment, of in comments.items()
    ]
    values = Counter(key.value for key in options.values() if key.value)
    (value, count), *_ = values.most_common(1) or [("", 0)]
    if "default" in options:
        value = options["default"].value
    elif count <= len(options) / 2:
        value = ""
    meaning = "see above" if len(comments) > _SEVERAL else "; ".join(several)
    name = min((key.key for key in options.values()), key=len)  # without the plus, if one has it
    return YamlKey(name, value, meaning)


def _where(options: dict[str, YamlKey], files: list[Path]) -> str:
    if len(options) == len(files):
        return ""
    return ", ".join(options) if len(options) <= _SEVERAL + 1 else "most"


def _text(comment: str) -> str:
    """A comment as Markdown: `<name>` outside code would be an element of HTML."""
    parts = comment.split("`")
    return "`".join(
        part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts)
    )


def _target(path: Path, group: str) -> str:
    """The class of an option's own node."""
    keys = {key.key: key.value for key in keys_of(path, group)}
    where = package_of(path.read_text(encoding="utf-8"), group) or group
    return keys.get(f"{where}._target_", "")


def _not_in_yaml(path: Path, group: str) -> list[YamlKey]:
    """Arguments of one of our own parts that its YAML leaves to their defaults."""
    target = _target(path, group)
    if not target.startswith("penstock."):
        return []
    where = package_of(path.read_text(encoding="utf-8"), group) or group
    known = targets.arguments(targets.resolve(target, group))
    there = {key.key for key in keys_of(path, group)}
    return [
        YamlKey(f"+{where}.{name}", _plain(known[name].default), "")
        for name in known
        if name not in targets.SUPPLIED.get(group, ()) and f"{where}.{name}" not in there
        if known[name].default is not known[name].empty
    ]


def _plain(value: object) -> str:
    value = list(value) if isinstance(value, tuple) else value
    if value is not None and not isinstance(value, (str, int, float, bool, list, dict)):
        return "..."
    text: str = yaml.safe_dump(value, default_flow_style=True, width=80)
    return " ".join(text.removesuffix("\n...\n").split())


def _table(rows: list[tuple[YamlKey, str]]) -> str:
    columns = 4 if any(where for _, where in rows) else 3
    head = ["key", "default", "meaning", "in"]
    cells = [
        (f"`{row.key}`", f"`{row.value}`" if row.value else "", _text(row.comment), where)
        for row, where in rows
    ]
    lines = [head, ["---"] * 4, *([cell.replace("|", r"\|") for cell in row] for row in cells)]
    written = ("| " + " | ".join(line[:columns]) + " |" for line in lines)
    return "\n".join(written) + "\n" if rows else ""


if __name__ == "__main__":
    terminal.put(page().removesuffix("\n"))
