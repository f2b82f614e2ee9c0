"""Damage that decoders ignore, for `task=check`.

    JPEG    libjpeg's own warnings (invalid bytes, data that ends too early); no end marker
    WebP    shorter than its header claims
    GIF     no last byte
    WAV     only silence; zeros from a boundary of the disk's blocks to the end, as after a crash
    FLAC    the same, and samples that differ from the checksum (MD5) of the encoded ones

Reading verifies the checksums of PNG. Cost: one more decoding of a JPEG or a FLAC.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading

import numpy as np
import torch
import torchvision.io  # noqa: F401  (registers torch.ops.image)

from penstock.datasets.reading.audio import read_audio, read_integers
from penstock.files.limits import DEFAULT, Limits
from penstock.files.regular_file import read_regular
from penstock.terminal import say

_RGB = 3  # torchvision.io.ImageReadMode.RGB.value, which warns when it is looked up
_BLOCK = 4096  # bytes of a page, and of most disks' blocks
_LEAST_ZEROS = 4096

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


def audio_damage(path: str, limits: Limits = DEFAULT) -> str | None:
    """Damage in an audio file that can be decoded; None if none is found."""
    content = read_regular(path, limits)
    values, _ = read_audio(path, limits)
    if content.startswith(b"fLaC"):
        checksum = content[26:42]  # in the first block, which is of fixed length
        bits = (int.from_bytes(content[18:26], "big") >> 36 & 31) + 1
        if any(checksum) and _flac_checksum(path, bits) != checksum:  # zeros if not computed
            return "its samples do not match the checksum that it carries"
    if not values.any():
        return "it is silent: all of its samples are zero"
    start = len(content.rstrip(b"\0"))
    zeros, before = len(content) - start, -start % _BLOCK
    # Silence begins anywhere; blocks that were never written begin at their boundary.
    if zeros - before >= _LEAST_ZEROS and before < 4:
        return (
            f"it is all zeros from byte {start + before} to its end ({zeros} bytes), from a "
            "boundary of the disk's blocks: they were never written"
        )
    return None


def _flac_checksum(path: str, bits: int) -> bytes:
    samples = np.ascontiguousarray(read_integers(path) >> (32 - bits)).astype("<i4").view(np.uint8)
    plain = samples.reshape(-1, 4)[:, : -(-bits // 8)].tobytes()
    return hashlib.md5(plain, usedforsecurity=False).digest()
