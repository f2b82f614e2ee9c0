"""Files that are neither image nor audio: a decoder only says "unknown format"."""

from __future__ import annotations


def stranger(start: bytes) -> str | None:
    """Describe a file by its first bytes (64 or more) if they are neither of image nor of audio."""
    text = start.lstrip().lower()
    kinds = {
        "it is empty": not start,
        "it begins with zeros only, as files that were never written to the disk": (
            not start.strip(b"\0")
        ),
        "it is a Git LFS pointer (run `git lfs pull`)": start.startswith(
            b"version https://git-lfs"
        ),
        "it is a web page or other markup, as failed downloads leave behind": text.startswith(
            (b"<!doctype", b"<html", b"<?xml")
        ),
        f"it is text that starts with {start[:24].decode('ascii', 'replace')!r}": all(
            byte in b"\t\n\r" or 32 <= byte < 127 for byte in start
        ),
    }
    return next((kind for kind, fits in kinds.items() if fits), None)
