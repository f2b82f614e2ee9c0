"""Writes the files of a new project, which runs and whose tests pass as they are.

The files lie in `template/`: `project/` has those of every kind, `KIND/` its own, with a package
that is called my_project there. Names end in .txt, which is removed, so that no tool takes the
files for Penstock's own code. Pictures and tables are drawn when a project is made (`drawn.py`).
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock import program
from penstock.config.allow_list import NEVER
from penstock.config.composition import CONF
from penstock.config.messages import nearest
from penstock.errors import ConfigError, Problem
from penstock.terminal import put

_TEMPLATE = Path(__file__).parent / "template"
_NAME = "my_project"
_BESIDE = frozenset({"conf", "data", "multirun", "outputs", "tests"})  # folders of a project
_GROUPS = ("dataset", "experiment")  # have a file of the project's name
_OWN = "own"
_KINDS = {
    "images": "a folder of pictures for each class",
    "masks": "pictures, and the class of each of their pixels",
    "boxes": "pictures, and boxes as COCO's JSON",
    "text": "a TSV of texts and their classes",
    "table": "a CSV of numbers, categories and dates, and a class",
    "series": "a CSV of series to forecast",
    "points": "pictures, and a CSV of points in them; a dataset class",
    _OWN: "the default: a dataset class of your own, on a small CSV",
}


def run(words: Sequence[str]) -> int:
    """Write a project; the exit code.

    Args:
        words: what stands after `penstock init`.

    Raises:
        ConfigError: they are not one folder that is new or empty, and a kind that there is.
    """
    usage = f"{program.text('init')} FOLDER [--kind {'|'.join(_KINDS)}]"
    if set(words) & {"-h", "--help"}:
        put(
            f"{usage}\n  writes a small project of your own into a new folder: data to begin with, "
            "its configuration, a test, a README.\n\n"
            + "".join(f"  {kind:8}{what}\n" for kind, what in _KINDS.items()).rstrip()
        )
        return 0
    place, kind = _parsed(words, usage)
    folder = Path(place).expanduser()
    name = package_name(folder.resolve().name)
    # The command as it works in another folder.
    first, *others = program.words()
    again = program.joined([first, *(str(Path(word).resolve()) for word in others)])
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(Problem("init", f"{folder} is not empty; name a folder that is new"))
        if not folder.is_dir() and (folder.exists() or folder.is_symlink()):
            raise ConfigError(Problem("init", f"{folder} is not a folder; name one that is new"))
        for path, content in files(name, again, kind):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with open(folder / path, "xb") as file:
                file.write(content)
    except OSError as error:
        raise ConfigError(
            Problem("init", f"{error.filename or folder} cannot be written: {error.strerror}")
        ) from error
    has = f"the package {name}" if kind in (_OWN, "points") else "data"
    option = "dataset" if kind == _OWN else "experiment"
    put(
        f"{folder} has {has}, its configuration in conf/, a test and a README.md. "
        f"To train on its data:\n  {program.joined(['cd', str(folder)])}\n"
        f"  {again} {option}={name}"
    )
    return 0


def _parsed(words: Sequence[str], usage: str) -> tuple[str, str]:
    """The folder, and the kind."""
    folders: list[str] = []
    kind: str | None = None
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option == "--kind" and kind is None:
            kind = value if equals else next(rest, "")
        else:
            folders.append(word)
    if len(folders) != 1 or folders[0].startswith("-"):
        raise ConfigError(Problem("init", f"takes one folder, which is new or empty: {usage}"))
    kind = _OWN if kind is None else kind
    if kind not in _KINDS:
        reason = f"{kind!r} is not one of {', '.join(_KINDS)}{nearest(kind, _KINDS)}"
        raise ConfigError(Problem("init: --kind", reason))
    return folders[0], kind


def package_name(text: str) -> str:
    """A name for a package, after a folder's, that means nothing else here.

    Raises:
        ConfigError: there is none.
    """
    name = re.sub(r"\W+", "_", text.lower(), flags=re.ASCII).strip("_")
    for candidate in (name, f"my_{name}" if name else _NAME, _NAME):
        if (
            candidate.isidentifier()
            and not keyword.iskeyword(candidate)
            and candidate not in NEVER | _BESIDE
            and not any((CONF / group / f"{candidate}.yaml").exists() for group in _GROUPS)
            and importlib.util.find_spec(candidate) is None
        ):
            return candidate
    raise ConfigError(
        Problem(
            "init",
            f"{text!r} and {_NAME!r} are taken as names of packages "
            "here; give the folder another name",
        )
    )


def files(name: str, command: str, kind: str = _OWN) -> Iterator[tuple[Path, bytes]]:
    """The path of each file in a project, and what is in it.

    Args:
        name: of its package, its dataset and its experiment.
        command: what starts the program.
        kind: of its data.
    """
    templates = {}
    for folder in (_TEMPLATE / "project", _TEMPLATE / kind):
        for source in folder.rglob("*"):
            if source.is_file():
                templates[source.relative_to(folder).as_posix().removesuffix(".txt")] = source
    for path, source in sorted(templates.items()):
        path = path.replace("package/", f"{name}/").replace(_NAME, name)
        path = path.replace("gitignore", ".gitignore")
        text = source.read_text(encoding="utf-8").replace(_NAME, name)
        yield Path(path), text.replace("PROGRAM", command).encode()
    if kind != _OWN:
        from penstock.addons.starter.drawn import KINDS

        for path, content in KINDS[kind]().items():
            yield Path("data", path), content
