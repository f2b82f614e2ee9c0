"""The server's run that our run goes to, remembered in the run folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.files import plain_json
from penstock.files.disk import write_atomically
from penstock.files.plain_json import JsonError, integer, mapping, shown

NAME = "run.json"
_LARGEST = 1 << 12  # bytes
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def read(folder: Path) -> dict[str, Any] | None:
    """The content that `write` kept in a tracker's folder; None if nothing is there.

    Raises:
        PenstockError: the file is damaged.
    """
    path = folder / NAME
    try:
        known = mapping(plain_json.read(path, _LARGEST))
        integer(known, "version", 1, 1)
        for name, value in known.items():
            if isinstance(value, str) and not _ID.fullmatch(value):
                raise JsonError(f"{name} is {shown(value)}, which is no id")
        if not isinstance(known.get("id"), str):
            raise JsonError(f"id is {shown(known.get('id'))}")
    except FileNotFoundError:
        return None
    except (OSError, JsonError) as error:
        raise PenstockError(f"{path} is damaged: {error}. Delete it to begin a new run") from error
    return known


def write(folder: Path, id: str, token: str) -> dict[str, object]:
    """Keep the id of a server's run; returns what `read` will give.

    Args:
        token: a mark of the run, so that no other one is continued.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = {"version": 1, "id": id, "token": token}
    write_atomically(folder / NAME, (json.dumps(kept) + "\n").encode())
    return kept
