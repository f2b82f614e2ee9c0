"""Damage that decoders ignore, for `task=check`.

    JPEG    libjpeg's own warnings (invalid bytes, data that ends too early); no end marker
    WebP    shorter than its header claims
    GIF     no last byte

Reading verifies the checksums of PNG. Cost: one more decoding of a JPEG.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading

import torch
import torchvision.io  # noqa: F401  (registers torch.ops.image)

from penstock.files.limits import DEFAULT, Limits
from penstock.files.regular_file import read_regular
from penstock.terminal import say

_RGB = 3  # torchvision.io.ImageReadMode.RGB.value, which warns when it is looked up

_stderr = threading.Lock()


def image_damage(path: str, limits: Limits = DEFAULT) -> str | None:
    """Damage in an image file that can be decoded; None if none is found."""
    content = read_regular(path, limits)
    if content.startswith(b"\xff\xd8"):
        if content.rfind(b"\xff\xd9") < content.rfind(b"\xff\xda"):  # after the last scan begins
            return "it has no end marker: it was cut off, or its end was never written"
        warnings = _libjpeg_warnings(content)
        return f"libjpeg warns: {warnings[0]}" if warnings else None
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        claimed = int.from_bytes(content[4:8], "little") + 8
        if claimed > len(content):
            return f"it was cut off: it claims {claimed} bytes, but there are {len(content)}"
    if content.startswith(b"GIF8") and not content.rstrip(b"\0").endswith(b";"):
        return "it has no end: it was cut off, or its end was never written"
    return None


def _libjpeg_warnings(content: bytes) -> list[str]:
    """libjpeg's warnings while it decodes; torchvision lets it print to this process's stderr."""
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    with _stderr, tempfile.TemporaryFile() as file:
        if sys.stderr is not None:
            sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            torch.ops.image.decode_image(data, _RGB, True)
        except RuntimeError:
            pass  # reading reports it
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        lines = file.read().decode(errors="replace").splitlines()
    others = [line for line in lines if "JPEG" not in line]
    if others:  # another thread's
        say("\n".join(others))
    return [line.strip() for line in lines if "JPEG" in line]
