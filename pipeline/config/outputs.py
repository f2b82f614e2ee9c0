"""Where files are written, and who may say so.

A configuration, a manifest or a stored sweep may come from anybody, and names places to write to.

    a file     only where the command line names it; an address names a folder inside of the working
    folder, of Penstock's own cache, of a folder that the command
               line names or once named, or of one that --allow-write allows

Links are followed first. Each writer protects the files in its folder: runs claim empty
folders (runs/run_folder.py), packs and caches take their own kind only, and pages and tables
replace those that were made here (files/disk.py: `replace_own`).

FILES and FOLDERS are the keys of the schema that name something to write, `of_part` knows the
arguments of parts; a test holds both against the schema and the signatures.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse
from urllib.request import url2pathname

from penstock import seams
from penstock.config import environment
from penstock.config.messages import show
from penstock.errors import PenstockError, Problem
from penstock.files import plain_json
from penstock.files.addresses import is_remote
from penstock.files.disk import write_atomically
from penstock.files.own_files import check_own, own_folder
from penstock.files.plain_json import JsonError

VARIABLE = "PENSTOCK_ALLOW_WRITE"
NAMED = "PENSTOCK_NAMED"  # the working folder and what the command line names, for all processes

FILES = {"diff.page": ("diff",), "out": ("predict", "export")}  # by the tasks that write them
FOLDERS = {
    "run_dir": ("fit", "lr_find", "profile", "replay"),
    "resume": ("fit",),
    "runs": ("report",),
    "run": ("without", "test"),
    "cache_dir": None,
    "pack.out": None,  # None: all that read data
}
SWEEP = "hydra.sweep.dir"

_FOR_ALL = ("run_dir", "cache_dir", "out", "dir")  # last names of keys that allow a folder for any
_FOR_ONE = ("resume", "runs", "run", "root", "page", "uri", "folder")  # ... for such a key alone
_OF_FILES = ("page", "folder")  # ... of which these name a file
_REMEMBERED = (*_FOR_ALL, "root")
_LINE = re.compile(rf"({'|'.join([*_FOR_ALL, *_FOR_ONE])})['\"]?\s*[=:]")
_DRAWN = (
    "penstock.datasets.synthetic_faces.SyntheticFaces",
    "penstock.datasets.synthetic_sequences.SyntheticSequences",
)
_SHIPPED = ("outputs", "multirun", "data", "data/cache")  # which a person may have put elsewhere
_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)(?:,([^${}]*))?\}")
_MOST, _LARGEST = 1000, 1 << 20  # places that are remembered, and bytes of their file


class Place(NamedTuple):
    """A place that a command line names: the last name of its key, and the path in full."""

    name: str
    path: str


_named: ContextVar[tuple[Place, ...] | None] = ContextVar("named", default=None)


def may_name(line: str) -> bool:
    """Whether an override line could name a place to write to; parsing one takes 3 ms."""
    return _LINE.search(line) is not None


def named(values: Iterable[tuple[str, Any]]) -> tuple[Place, ...]:
    """The working folder, and the places to write to that a command line names.

    Of a value with an interpolation, the folder before it counts. Variables of the environment are
    put in, since a person says what is in those, too.

    Args:
        values: full key and value of all that was typed.
    """
    places = [Place("", str(Path.cwd()))]
    for key, value in values:
        name = re.sub(r"\[\d+\]$", "", key).rpartition(".")[2]
        if isinstance(value, str) and name in (*_FOR_ALL, *_FOR_ONE):
            text = _VARIABLE.sub(lambda match: os.environ.get(match[1], match[2] or ""), value)
            if name == "out" and is_remote(text):
                places.append(Place(name, text))
            for path in _paths_of(text) if name == "uri" else [_path_of(text) or ""]:
                head, interpolated, _ = path.partition("${")
                head = head.rpartition("/")[0] if interpolated else head
                if head and "\0" not in head:
                    places.append(Place(name, str(Path(head).expanduser().absolute())))
    return tuple(dict.fromkeys(places))


def may_stand(values: Iterable[tuple[str, object]]) -> bool:
    """Whether values that nobody has typed may stand in a command that is offered for pasting.

    There they would count as typed, and be remembered: so all that they would name is allowed.

    Args:
        values: full key and value of all that an override gives.
    """
    return all(
        not is_remote(output.path)
        and _is_allowed(output.name, str(_real(output.path)), output.name in _OF_FILES)
        for output in named(values)[1:]
    )


@contextmanager
def naming(places: Iterable[Place]) -> Iterator[None]:
    """Let places be written to for a time, as if they were named on the command line."""
    token = _named.set(tuple(places))
    try:
        yield
    finally:
        _named.reset(token)


def as_variable(places: Iterable[Place]) -> str:
    """The value of NAMED, by which processes that this one starts know the same."""
    return json.dumps(list(places))


def _now() -> tuple[Place, ...]:
    places = _named.get()
    if places is None:
        places = tuple(Place(*fields) for fields in json.loads(os.environ.get(NAMED) or "[]"))
    return places or (Place("", str(Path.cwd())),)


def remember() -> None:
    """Keep the folders outside of the working folder that this command line names.

    So a run that was begun with them is resumed by its folder alone. Does nothing where they cannot
    be kept.
    """
    working, *places = _now()
    new = [
        place
        for place in places
        if place.name in _REMEMBERED and not _is_below(str(_real(place.path)), working.path)
    ]
    if not new or set(new) <= {*(known := _remembered())}:
        return
    with suppress(OSError, PenstockError):
        folder = own_folder(_own_cache(), link=True)
        kept = list(dict.fromkeys([*known, *new]))[-_MOST:]
        write_atomically(folder / "named.json", json.dumps(kept, indent=0).encode())


def _remembered() -> list[Place]:
    """The folders that `remember` has kept, from this user's own file."""
    path = _own_cache() / "named.json"
    with suppress(OSError, PenstockError, JsonError, TypeError):
        own_folder(path.parent, link=True)
        check_own(path)
        kept = [Place(*map(str, entry)) for entry in plain_json.read(path, _LARGEST)]
        return [entry for entry in kept if entry.name in _REMEMBERED]
    return []


def _own_cache() -> Path:
    from platformdirs import user_cache_path

    folder = os.environ.get("PENSTOCK_CACHE")
    return Path(folder).expanduser().absolute() if folder else user_cache_path("penstock", False)


def check_allowed(names: list[str]) -> list[Problem]:
    """Problems with the folders that --allow-write was given."""
    return [
        Problem("--allow-write", f"{name!r} is not a folder that could be written to")
        for name in names
        if Path(name).expanduser().resolve() == Path("/")
    ]


def check(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse places outside of those where a configuration may have files written."""
    task = config.get("task")
    for key, tasks in {**FILES, **FOLDERS}.items():
        if seams.only_reads(task) if tasks is None else task not in tasks:
            continue
        value: Any = config
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        for path in value if isinstance(value, list) else [value]:
            # A run is resumed in its folder; of a checkpoint, a new run begins.
            if isinstance(path, str) and (key != "resume" or Path(path, "manifest.json").exists()):
                yield from _problems(key, path, key in FILES)


def of_part(key: str, node: Mapping[str, Any]) -> Iterator[Problem]:
    """The same for the arguments of a part that name something to write.

    Args:
        key: of the node.
        node: `_target_` and arguments by name.
    """
    target, tracker = str(node.get("_target_")), key.partition(".")[0] == "tracker"
    makes = target in _DRAWN or (target.startswith("torchvision.") and node.get("download"))
    for name, value in node.items():
        if not isinstance(value, str):
            continue
        below = f"{key}.{name}"
        if name == "cache_dir" or (name == "root" and makes):
            yield from _problems(below, value)
        elif tracker and name == "folder":
            yield from _problems(below, value, file=True)
        elif tracker and name == "uri":
            for path in _paths_of(value):
                yield from _problems(below, path or ".")


def check_sweep(folder: str, subdir: str | None = None) -> Iterator[Problem]:
    """The same for the folder of a sweep, and the folder of a job in it.

    Args:
        subdir: as it is written, or as it is used.
    """
    yield from _problems(SWEEP, folder)
    if subdir is not None and "\0" not in folder + subdir:
        base, job = Path(folder).resolve(), Path(folder, subdir).resolve()
        if job == base or not job.is_relative_to(base):
            reason = f"got {show(subdir)}, which is not a folder below the sweep's"
            yield Problem("hydra.sweep.subdir", reason)


def _problems(key: str, text: str, file: bool = False) -> Iterator[Problem]:
    if key == "pack.out" and is_remote(text):
        if Place("out", text) not in _now():
            reason = f"got {show(text)}: it is an address to write to, which only the command line"
            yield Problem(key, f"{reason} names; type this key there")
        return
    # Some folders are read with ~ as the user's home, others as they are.
    meant = {} if "\0" in text else {Path(text), Path(text).expanduser()}
    if meant and all(_is_allowed(key, str(path.resolve()), file) for path in meant):
        return
    if file:
        reason = "is a file to write, which only the command line names; type this key there"
    else:
        reason = (
            "is outside of the working folder, and a configuration doesn't choose where else "
            "files are written. If it is right, type this key on the command line, or allow "
            "the folder with --allow-write"
        )
    yield Problem(key, environment.unresolved(f"got {show(text)}: it {reason}"))


def _is_allowed(key: str, path: str, file: bool) -> bool:
    """Whether a path without links may be written to."""
    working, *named_places = _now()
    if not file:
        shipped = (str(Path(working.path, name)) for name in _SHIPPED)
        if any(_is_below(path, root) for root in (working.path, *shipped)):
            return True
    names = [key.rpartition(".")[2], *([] if file else _FOR_ALL)]
    names += ["resume"] if key == SWEEP else []
    roots = [named_place.path for named_place in named_places if named_place.name in names]
    roots += [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    if any(_is_below(path, root) for root in roots):
        return True
    if file:
        return False
    roots = [
        str(_own_cache()),
        *(named_place.path for named_place in _remembered() if named_place.name in names),
    ]
    return any(_is_below(path, root) for root in roots)


def _is_below(path: str, root: str) -> bool:
    return Path(path).is_relative_to(_real(root))


@lru_cache(maxsize=256)
def _real(root: str) -> Path:
    return Path(root).expanduser().resolve()


def _paths_of(uri: str) -> list[str]:
    """The forms of a tracker's address on this machine: MLflow takes `%2e%2e/x` for `../x`."""
    path = _path_of(uri)
    return [] if path is None else list(dict.fromkeys((path, url2pathname(path))))


def _path_of(uri: str) -> str | None:
    """The path of an address on this machine, or the path itself; None for a server's address."""
    for scheme in ("sqlite:///", "file:"):
        if uri.startswith(scheme):
            path = uri.removeprefix(scheme).partition("?")[0]
            return urlparse(uri).path if path.startswith("//") else path
    return None if re.match(r"[A-Za-z][\w+.\-]*:|databricks$", uri) else uri
