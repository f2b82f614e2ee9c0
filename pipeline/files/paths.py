"""Addresses of files: paths of this machine, "file://" and stores."""

from __future__ import annotations

from urllib.parse import quote


def is_remote(address: str) -> bool:
    """Whether files at `address` are to be fetched; not for "file://" and paths."""
    return "://" in address and not address.lower().startswith("file://")


def local_path(address: str) -> str:
    """A local address without "file://"."""
    return address[7:] if address[:7].lower() == "file://" else address


def join(folder: str, name: str) -> str:
    """The address of the file `name` in the folder at an address."""
    # Stores take any bytes in a key; a web server reads % and ? in a path as signs.
    is_web = folder.lower().startswith(("http://", "https://"))
    return f"{folder.rstrip('/')}/{quote(name) if is_web else name}"
