"""Addresses of files: paths of this machine, "file://" and stores."""

from __future__ import annotations

import re
from urllib.parse import quote

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://", re.ASCII)


def scheme_of(address: str) -> str | None:
    """The scheme of an address in small letters; None for a path of this machine."""
    match = _SCHEME.match(address)
    return match[1].lower() if match else None


def is_remote(address: str) -> bool:
    """Whether files at `address` are to be fetched; not for "file://" and paths."""
    return scheme_of(address) not in (None, "file")


def local_path(address: str) -> str:
    """A local address without "file://"."""
    return address[7:] if address[:7].lower() == "file://" else address


def join(folder: str, name: str) -> str:
    """The address of the file `name` in the folder at an address."""
    web = scheme_of(folder) in ("http", "https")
    return f"{folder.rstrip('/')}/{quote(name) if web else name}"
