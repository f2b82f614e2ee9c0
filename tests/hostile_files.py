"""Small files that ask for much, and what must be said of each.

tests/datasets/test_hostile_files.py reads `IMAGES`, `AUDIO` and `ARRAYS`: add an attack here, and
every reader meets it.
"""

import io
import os
import resource
import socket
import struct
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

TERABYTE = 1 << 40
ALL = ("torchvision", "pillow", "skimage")
TAGS = "its tags claim"
UNKNOWN = "does not know"  # said by torchvision of a format that it does not read


@contextmanager
def bounded(memory=1 << 30):
    """Fails with MemoryError where more than `memory` bytes are asked for."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@dataclass(frozen=True)
class Attack:
    """A file, and a pattern that its refusal matches; `readers` has others by reader."""

    content: bytes
    match: str
    readers: dict[str, str] = field(default_factory=dict)

    def pattern(self, reader):
        return self.readers.get(reader, self.match)


def _saved(kind, size=(16, 16), mode="RGB", **options):
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(file, kind, **options)
    return file.getvalue()


def good_jpeg(**options):
    return _saved("JPEG", **options)


def jpeg(width, height, before=b"", scans=1, **options):
    """A JPEG that claims a size, with segments before its own and its scans so many times."""
    content = bytearray(_saved("JPEG", **options))
    frame = content.find(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0")
    content[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    first = content.find(b"\xff\xda")
    content[first:-2] = content[first:-2] * scans
    return bytes(content[:2]) + before + bytes(content[2:])


def segment(marker, body):
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(body) + 2) + body


def tiff(tags, padding=0, pages=1, big_endian=False):
    """A TIFF of one directory of tags (number, type, count, value); its own next one if `pages`."""
    order = ">" if big_endian else "<"
    start = (b"MM\0*" if big_endian else b"II*\0") + struct.pack(f"{order}I", 8)
    entries = b"".join(struct.pack(f"{order}HHII", *tag) for tag in sorted(tags))
    again = 8 if pages > 1 else 0
    count = struct.pack(f"{order}H", len(tags))
    return start + count + entries + struct.pack(f"{order}I", again) + bytes(padding)


def overlapping_tags(count, padding):
    """Tags that all claim the same bytes: each is read into memory by itself."""
    return tiff([(40000 + n % 20000, 7, padding, 8) for n in range(count)], padding)


def picture_tags(width, height, channels=3, bits=8, compression=1):
    return [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 1, bits),
        (259, 3, 1, compression),
        (262, 3, 1, 2),
        (273, 4, 1, 8),
        (277, 3, 1, channels),
        (278, 4, 1, height),
        (279, 4, 1, 1 << 30),
    ]


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, bits=8, colour=2, more=b"", pixels=None):
    pixels = bytes(1 + 3) if pixels is None else pixels
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + more
        + chunk(b"IDAT", zlib.compress(pixels))
        + chunk(b"IEND", b"")
    )


def gif(width, height, frames=((1, 1),)):
    body = b"".join(
        b"," + struct.pack("<HHHHB", 0, 0, *size, 0) + b"\x02\x02\x44\x01\0" for size in frames
    )
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6) + body + b";"


def riff(kind, body):
    body = kind + body
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp(*chunks):
    return riff(
        b"WEBP", b"".join(n + struct.pack("<I", len(b)) + b + bytes(len(b) % 2) for n, b in chunks)
    )


def bmp(width, height):
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + header


BOMBED_TEXT = zlib.compress(bytes(7_900_000), 9)
TEXT_BOMB = png(
    1, 1, more=b"".join(chunk(b"zTXt", b"k%d\0\0" % n + BOMBED_TEXT) for n in range(200))
)
PIXELS = r"limits\.pixels=67108864"

IMAGES = {
    "jpeg": Attack(jpeg(65500, 65500), rf"65500 x 65500 pixels: 4290250000 .*{PIXELS}"),
    "progressive jpeg": Attack(jpeg(65500, 65500, progressive=True), PIXELS),
    "jpeg behind rubbish": Attack(
        jpeg(65500, 65500, before=b"rubbish" + segment(0xE5, b"\xff\xc0\0\x11\x08\0\1\0\1")), PIXELS
    ),
    "jpeg of scans": Attack(jpeg(8000, 8000, scans=4000, progressive=True), "too often"),
    "jpeg with exif": Attack(
        jpeg(16, 16, before=segment(0xE1, b"Exif\0\0" + overlapping_tags(3000, 29000))), TAGS
    ),
    "jpeg with long exif": Attack(
        jpeg(
            16, 16, before=b"".join(segment(0xE1, b"Exif\0\0" + bytes(60000)) for _ in range(300))
        ),
        "parts of EXIF",
    ),
    "jpeg with mpf": Attack(
        jpeg(16, 16, before=segment(0xE2, b"MPF\0" + overlapping_tags(3000, 29000))), TAGS
    ),
    "png": Attack(png(30000, 30000), f"30000 x 30000 pixels.*{PIXELS}"),
    "png of 16 bits": Attack(png(12000, 12000, 16, 6), PIXELS),
    "png with exif": Attack(png(1, 1, more=chunk(b"eXIf", overlapping_tags(9000, 200000))), TAGS),
    "png of parts": Attack(png(1, 1, more=chunk(b"abCd", b"") * 100_001), "parts"),
    "gif": Attack(gif(65535, 65535), PIXELS),
    "gif of a large frame": Attack(gif(10, 10, ((20000, 20000),)), PIXELS),
    "gif of frames": Attack(
        gif(8000, 8000, ((1, 1),) * 30), "in each of 30 frames", {"pillow": ""}
    ),
    "webp": Attack(webp((b"VP8L", b"\x2f" + b"\xff" * 8)), PIXELS),
    "webp canvas": Attack(
        webp((b"VP8X", bytes(4) + b"\xff\xff\0" * 2), (b"VP8L", bytes(5))), PIXELS
    ),
    "webp with exif": Attack(
        webp((b"VP8X", bytes(10)), (b"EXIF", overlapping_tags(9000, 200000))), TAGS
    ),
    "tiff": Attack(tiff(picture_tags(100000, 100000)), PIXELS),
    "tiff of channels": Attack(tiff(picture_tags(8000, 8000, channels=300, bits=16)), PIXELS),
    "tiff of tags": Attack(overlapping_tags(9000, 200000), TAGS),
    "tiff of tags, other order": Attack(
        tiff([(40000 + n, 7, 200000, 8) for n in range(9000)], 200000, big_endian=True), TAGS
    ),
    "bmp": Attack(bmp(60000, 60000), PIXELS, {"torchvision": UNKNOWN}),
    "ppm": Attack(b"P6 60000 60000 255\n\xff\0", PIXELS, {"torchvision": UNKNOWN}),
    "qoi": Attack(
        b"qoif" + struct.pack(">IIBB", 60000, 60000, 3, 0), PIXELS, {"torchvision": UNKNOWN}
    ),
    "tga": Attack(
        struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, 60000, 60000, 24, 0),
        PIXELS,
        {"torchvision": ""},
    ),
    "postscript": Attack(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n\xff",
        "",
    ),
}


def flac(frames, rate=8000, channels=1):
    """A FLAC whose first block claims so many frames."""
    bits = rate << 44 | (channels - 1) << 41 | 15 << 36 | frames
    body = struct.pack(">HH", 4096, 4096) + bytes(6) + bits.to_bytes(8, "big") + bytes(16)
    return b"fLaC\x80" + len(body).to_bytes(3, "big") + body


def wav(data=b"\0\0" * 8, rate=8000, channels=1, width=2, claimed=None):
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * width, width, 16)
    size = len(data) if claimed is None else claimed
    return riff(
        b"WAVE", b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", size) + data
    )


AUDIO = {
    "flac of days": Attack(flac((1 << 36) - 1), r"8589935 s, more than limits\.audio_seconds"),
    "flac of channels": Attack(
        flac(100_000_000, 192000, 8), r"3200000000 bytes as float32, more than limits\.record_bytes"
    ),
    "flac without a rate": Attack(flac(100, rate=0), "0 Hz|damaged"),
    "wav without a rate": Attack(wav(rate=0), "0 Hz|damaged"),
    "wav without channels": Attack(wav(channels=0), "0 channels|damaged"),
    "wav of channels": Attack(wav(channels=65535, width=2), "channel"),
}


def npy(header, version=1, body=b"", length=None):
    """A `.npy` file with a header of this text."""
    text = header.encode() + b"\n"
    form = "<H" if version == 1 else "<I"
    size = struct.pack(form, len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + body


def claiming(shape, dtype="'<f4'", fortran=False):
    return f"{{'descr': {dtype}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


SHORT = "is shorter than its header says"
NPY = r"is not a \.npy file"
ARRAYS = {
    "many rows": Attack(npy(claiming("(1000000000000,)")), SHORT),
    "large rows": Attack(npy(claiming("(2, 1000000000000)")), SHORT),
    "columns first": Attack(npy(claiming("(3, 1000000000000)", fortran=True)), SHORT),
    "overflow": Attack(npy(claiming("(4294967296, 4294967296, 4)")), SHORT),
    "huge side": Attack(npy(claiming(f"({10**40},)")), SHORT),
    "negative": Attack(npy(claiming("(-1, 4)")), NPY),
    "empty and huge": Attack(npy(claiming(f"(0, {10**40})")), NPY),
    "no shape": Attack(npy(claiming("'x'")), NPY),
    "truth": Attack(npy(claiming("(True,)"), body=bytes(4)), NPY),
    "long header": Attack(npy(claiming("(1,)"), 2, length=(1 << 31)), NPY),
    "deep header": Attack(npy("(" * 5000 + ")" * 5000), NPY),
    "no header": Attack(npy("1 +"), NPY),
    "record": Attack(npy(claiming("(9,)", "[('a', '<f4', (1000000000,))]")), "C int"),
    "void": Attack(npy(claiming("(9,)", "'|V1000000000'")), "not numbers"),
    "text of nothing": Attack(npy(claiming("(1000000000000,)", "'<U0'")), "not numbers"),
    "objects": Attack(npy(claiming("(9,)", "'|O'")), "Python objects"),
    "zip": Attack(b"PK\3\4" + bytes(60), NPY),
}


def _sparse(path):
    with path.open("ab") as file:
        file.truncate(TERABYTE)


def _socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


SPECIAL = {
    "fifo": (os.mkfifo, "it is a FIFO, not a file"),
    "socket": (_socket, "it is a socket, not a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a file"),
    "nothing": (lambda path: path.symlink_to("gone"), "No such file"),
    "itself": (lambda path: path.symlink_to(path.name), "symbolic links"),
    "terabyte": (_sparse, r"1099511627776 bytes, more than limits\.record_bytes=268435456 allows"),
}


def put(folder, attacks, ending):
    """Write attacks into a folder; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, attack in enumerate(attacks.values()):
        path = folder / f"x{number:02}{ending}"
        path.write_bytes(attack.content)
        paths.append(path)
    return paths


def put_special(folder, ending):
    """What is no file, into a folder; the paths."""
    paths = []
    for name, (make, _) in SPECIAL.items():
        path = folder / f"{name}{ending}"
        make(path)
        paths.append(path)
    return paths
