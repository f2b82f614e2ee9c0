"""What a file is that was taken for something else, told by how it starts.

Downloads leave web pages, checkouts leave Git LFS pointers, and people rename text files. A decoder
only says "unknown format"; a person wants to know what is lying there instead.
"""

from __future__ import annotations


def stranger(start: bytes) -> str | None:
    """Describe a file by its first bytes, when they show that it is neither image nor audio.

    Args:
        start: the first bytes of the file, 64 or more unless it is shorter.
    """
    text = start.lstrip().lower()
    if not start:
        return "it is empty"
    if not start.strip(b"\0"):
        return "it begins with nothing but zeros, as files do that never reached the disk"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer (run `git lfs pull`)"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page or other markup, as failed downloads leave behind"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start):
        return f"it is text that starts with {start[:24].decode()!r}"
    return None
