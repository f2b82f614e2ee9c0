"""Writes the files of a new project, which runs and whose tests pass as they are.

The files lie in `template/`, with a package that is called my_project there. Names end in .txt,
which is removed, so that no tool takes the files for Penstock's own code.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock import program
from penstock.config.compose import CONF
from penstock.config.targets import NEVER
from penstock.errors import ConfigError, Problem
from penstock.terminal import put

_TEMPLATE = Path(__file__).parent / "template"
_NAME = "my_project"
_BESIDE = frozenset({"conf", "data", "multirun", "outputs", "tests"})  # folders of a project
_GROUPS = ("dataset", "experiment")  # have a file of the project's name


def run(words: Sequence[str]) -> int:
    """Write a project; the exit code.

    Args:
        words: what stands after `penstock init`.

    Raises:
        ConfigError: they are not one folder that is new or empty.
    """
    usage = f"{program.text('init')} FOLDER"
    if set(words) & {"-h", "--help"}:
        put(
            f"{usage}\n  writes a small project of your own into a new folder: a dataset class on "
            "a small CSV, its configuration, a test, a README."
        )
        return 0
    if len(words) != 1 or words[0].startswith("-"):
        raise ConfigError(Problem("init", f"takes one folder, which is new or empty: {usage}"))
    folder = Path(words[0]).expanduser()
    name = package_name(folder.resolve().name)
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(Problem("init", f"{folder} is not empty; name a folder that is new"))
        if not folder.is_dir() and (folder.exists() or folder.is_symlink()):
            raise ConfigError(Problem("init", f"{folder} is not a folder; name one that is new"))
        for path, content in files(name):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with open(folder / path, "xb") as file:
                file.write(content)
    except OSError as error:
        raise ConfigError(
            Problem("init", f"{error.filename or folder} cannot be written: {error.strerror}")
        ) from error
    put(
        f"{folder} has the package {name}, its configuration in conf/, a test and a README.md. "
        f"To train on its data:\n  {program.joined(['cd', str(folder)])}\n"
        f"  python run.py dataset={name}"
    )
    return 0


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


def files(name: str) -> Iterator[tuple[Path, bytes]]:
    """The path of each file in a project, and what is in it.

    Args:
        name: of its package and its dataset.
    """
    for source in sorted(path for path in _TEMPLATE.rglob("*") if path.is_file()):
        path = source.relative_to(_TEMPLATE).as_posix().removesuffix(".txt")
        path = path.replace("package/", f"{name}/").replace(_NAME, name)
        text = source.read_text(encoding="utf-8").replace(_NAME, name)
        yield Path(path.replace("gitignore", ".gitignore")), text.encode()
