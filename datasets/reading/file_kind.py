"""Files that are neither image nor audio: a decoder only says "unknown format"."""

from __future__ import annotations


def stranger(start: bytes) -> str | None:
    """Describe a file by its first bytes (64 or more) if they are neither of image nor of audio."""
    text = start.lstrip().lower()
    if not start:
        return "it is empty"
    if not start.strip(b"\0"):
        return "it begins with zeros only, as files that were never written to the disk"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer (run `git lfs pull`)"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page or other markup, as failed downloads leave behind"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start):
        return f"it is text that starts with {start[:24].decode()!r}"
    return None
