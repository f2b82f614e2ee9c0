"""Names that stand in a file of data and are joined to a folder: they must stay below it."""

from __future__ import annotations

import os
import re


def leads_out(name: object) -> bool:
    """Whether `name` is no relative name of a file below the folder that it is joined to.

    Backslashes separate as slashes do, whatever system this is: the same data is refused on every
    machine. Links are not looked at; those belong to whoever made the folder.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        return True
    parts = re.split(r"[/\\]", name)
    return ".." in parts or not parts[0] or bool(os.path.splitdrive(name)[0])
