"""Formats for `fuzz_folders`: small sound files, and ways to damage them.

A mutator that knows the structure reaches what random bytes do not: fields of sizes get extreme
values, and checksums are made to fit again, so that damage gets past them.
"""

from __future__ import annotations

import gzip
import io
import random
import re
import struct
import tarfile
import wave
import zlib
from functools import cache
from typing import Any

import numpy as np

# What to put in the place of sizes, counts and offsets.
EXTREMES = (
    0,
    1,
    -1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    4096,
    65535,
    65536,
    2**20,
    2**28,
    2**30,
    2**31 - 1,
    -(2**31),
    2**32 - 1,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
    10**9,
)


def generic(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """One to four changes that know nothing of the format."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 4))):
        at = draw.randrange(len(changed) + 1)
        kind = draw.randrange(10)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            changed[at : at + 1] = bytes([draw.randrange(256)])
        elif kind <= 4:
            width = draw.choice((1, 2, 4, 4, 8, 8))
            at -= at % draw.choice((1, width))
            value = (draw.choice(EXTREMES) + draw.randrange(-2, 3)) % 256**width
            changed[at : at + width] = value.to_bytes(width, draw.choice(("little", "big")))
        elif kind == 5 and draw.random() < 0.5:
            del changed[at:]
        elif kind == 6:
            end = at + draw.randrange(1, 200)
            changed[at:at] = changed[at:end] * draw.choice((1, 1, 1, 2, 50))
        elif kind == 7:
            other = draw.choice(others)
            start, size = draw.randrange(len(other) + 1), draw.choice((4, 16, 100, 4000))
            changed[at : at + size] = other[start : start + size]
        elif kind == 8:
            del changed[at : at + draw.choice((1, 4, 8, 64))]
        else:  # a small number that is near what was there
            width = draw.choice((1, 4))
            value = int.from_bytes(changed[at : at + width], "little") + draw.randrange(-9, 10)
            if at + width <= len(changed):
                changed[at : at + width] = (value % 256**width).to_bytes(width, "little")
    return bytes(changed)


# Arrow and Parquet


def _table() -> Any:
    import pyarrow as pa

    rows = range(40)
    tensor = np.arange(240, dtype=np.float32).reshape(40, 2, 3)
    return pa.table(
        {
            "number": pa.array([row * 3 if row % 7 else None for row in rows], pa.int32()),
            "real": pa.array([row / 4 for row in rows], pa.float64()),
            "flag": pa.array([row % 2 == 0 for row in rows]),
            "text": pa.array([f"row {row} é" * (row % 4) for row in rows]),
            "view": pa.array([f"a longer text of row {row}" for row in rows], pa.string_view()),
            "label": pa.array([("cat", "dog", "emu")[row % 3] for row in rows]).dictionary_encode(),
            "kind": pa.array([row % 5 for row in rows], pa.int64()),
            "sequence": pa.array([[row / 2] * (row % 5) for row in rows], pa.list_(pa.float32())),
            "nested": pa.array(
                [[[row, 1], [2, 3]] for row in rows], pa.large_list(pa.list_(pa.int8()))
            ),
            "vector": pa.array([[row, row + 1] for row in rows], pa.list_(pa.uint16(), 2)),
            "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(tensor),
            "blob": pa.array([{"bytes": picture(row), "path": f"{row}"} for row in rows]),
            "image": pa.array([picture(row) for row in rows], pa.binary()),
        }
    )


def picture(row: int) -> bytes:
    from PIL import Image

    sink = io.BytesIO()
    Image.new("L", (1 + row % 3, 2), row).save(sink, "PNG")
    return sink.getvalue()


@cache
def arrow_seeds() -> dict[str, bytes]:
    import pyarrow as pa

    found, table = {}, _table()
    for name, new, compression, columns in (
        ("file.arrow", pa.ipc.new_file, None, None),
        ("stream.arrow", pa.ipc.new_stream, None, None),
        ("zstd.feather", pa.ipc.new_file, "zstd", None),
        ("lz4.feather", pa.ipc.new_file, "lz4", None),
        ("few.arrow", pa.ipc.new_file, None, ["text", "label", "sequence"]),
        ("some.arrow", pa.ipc.new_stream, None, ["view", "label", "kind"]),
    ):
        some = table.select(columns) if columns else table
        sink = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with new(sink, some.schema, options=options) as writer:
            writer.write_table(some, max_chunksize=15)
        found[name] = sink.getvalue()
    return found


@cache
def parquet_seeds() -> dict[str, bytes]:
    import pyarrow.parquet as pq

    found, table = {}, _table()
    for name, columns, options in (
        ("all.parquet", None, {"compression": "none"}),
        (
            "plain.parquet",
            ["number", "text", "sequence", "kind"],
            {"compression": "none", "use_dictionary": False},
        ),
        ("few.parquet", ["text", "label"], {"compression": "none", "store_schema": False}),
        (
            "two.parquet",
            ["text", "number", "nested"],
            {"compression": "none", "data_page_version": "2.0", "version": "2.6"},
        ),
        (
            "delta.parquet",
            ["text", "kind"],
            {
                "compression": "none",
                "use_dictionary": False,
                "column_encoding": {"text": "DELTA_BYTE_ARRAY", "kind": "DELTA_BINARY_PACKED"},
            },
        ),
        ("zstd.parquet", ["text", "kind"], {"compression": "zstd"}),
    ):
        sink = io.BytesIO()
        some = table.select(columns) if columns else table
        pq.write_table(some, sink, row_group_size=15, **options)
        found[name] = sink.getvalue()
    return found


def mutate_parquet(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Also the footer alone, with its length made to fit; and headers of pages."""
    if draw.random() < 0.4:
        return generic(draw, content, others)
    length = int.from_bytes(content[-8:-4], "little")
    body, footer = content[: -8 - length], content[-8 - length : -8]
    if draw.random() < 0.5:
        footer = _varints(draw, footer)
    else:
        body = _varints(draw, body) if draw.random() < 0.7 else generic(draw, body, others)
    return body + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def _varints(draw: random.Random, content: bytes) -> bytes:
    """A varint somewhere, in its place or (so that nothing moves) of the same length."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(max(1, len(changed)))
        value = abs(draw.choice(EXTREMES)) * 2
        encoded = bytearray()
        while value > 127:
            encoded.append(value & 127 | 128)
            value >>= 7
        encoded.append(value)
        changed[at : at + draw.choice((1, 1, 2, len(encoded)))] = encoded
    return bytes(changed)


# Delimited text


@cache
def csv_seeds() -> dict[str, bytes]:
    plain = b"id,text,label\n" + b"".join(
        b'%d,"text ""%d"", of\n two lines",%s\r\n' % (row, row, (b"ham", b"spam")[row % 2])
        for row in range(60)
    )
    simple = b"text\tlabel\n" + b"".join(
        "Ok lår %d...\t%s\n".encode() % (row, (b"ham", b"spam")[row % 2]) for row in range(90)
    )
    found = {"quoted.csv": plain, "plain.tsv": simple, "bom.csv": b"\xef\xbb\xbf" + plain}
    return found | {
        f"{name}.{kind}": packed(text)
        for name, text in list(found.items())
        for kind, packed in (("gz", gzipped), ("zst", zstandard_of))
    }


def gzipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def zstandard_of(content: bytes) -> bytes:
    import zstandard

    return zstandard.compress(content)


_PIECES = (
    b'"',
    b'""',
    b'"\n',
    b"\0",
    b"\r",
    b"\n",
    b"\r\n",
    b",",
    b"\t",
    b"\xff",
    b"\xc3",
    b"\xe2\x80",
    b"\xef\xbb\xbf",
    b"\n\n\n",
    b"," * 3000,
    b"\n" * 9000,
    b'"' * 4097,
    b"1e400",
    b"9" * 5000,
    b"x" * 300_000,
    b"\0" * 70_000,
)


def mutate_text(draw: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3, 6))):
        at = draw.randrange(len(changed) + 1)
        if draw.random() < 0.7:
            changed[at : at + draw.choice((0, 0, 1, 5))] = draw.choice(_PIECES)
        else:
            del changed[at : at + draw.choice((1, 10, 5000))]
    return bytes(changed)


def mutate_csv(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    packed = content.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd"))
    if not packed:
        return mutate_text(draw, content) if draw.random() < 0.8 else generic(draw, content, others)
    if draw.random() < 0.5:
        return generic(draw, content, others)
    text = mutate_text(draw, _unpacked(content))
    if draw.random() < 0.03:
        piece, size = draw.choice(((b"\0", 90), (b'"', 90), (b"\n", 4), (b"a,b\n", 4)))
        text += piece * ((size << 20) // len(piece))
    return (gzipped if content[:1] == b"\x1f" else zstandard_of)(text)


def _unpacked(content: bytes) -> bytes:
    import zstandard

    if content[:1] == b"\x1f":
        return gzip.decompress(content)
    return zstandard.ZstdDecompressor().decompress(content)


# Tar


@cache
def tar_seeds() -> dict[str, bytes]:
    found = {}
    for name, kind in (("pax.tar", tarfile.PAX_FORMAT), ("gnu.tar", tarfile.GNU_FORMAT)):
        sink = io.BytesIO()
        with tarfile.open(fileobj=sink, mode="w", format=kind) as archive:
            for row in range(8):
                stem = f"{'long/' * 30 if row == 3 else ''}é{row:03}"
                for ending, content in _parts(row).items():
                    info = tarfile.TarInfo(f"{stem}.{ending}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
        found[name] = sink.getvalue().rstrip(b"\0") + bytes(2048)
    return found | {f"{name}.gz": gzipped(content) for name, content in list(found.items())}


def _parts(row: int) -> dict[str, bytes]:
    sink = io.BytesIO()
    np.save(sink, np.arange(row + 3, dtype=np.float32))
    said = b'{"a": [1, 2.5, {"b": null}], "c": "d"}'
    return {"cls": b"%d" % row, "txt": b"text", "json": said, "npy": sink.getvalue()}


def mutate_tar(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    packed = content.startswith(b"\x1f\x8b")
    if packed and draw.random() < 0.3:
        return generic(draw, content, others)
    changed = bytearray(gzip.decompress(content) if packed else content)
    for _ in range(draw.choice((1, 1, 2, 3))):
        header = draw.randrange(max(1, len(changed) // 512)) * 512
        kind = draw.randrange(8)
        if kind <= 2:
            field = draw.choice(((0, 100), (124, 12), (124, 12), (156, 1), (345, 155), (257, 8)))
            changed[header + field[0] : header + sum(field)] = _tar_field(draw, field[1])
        elif kind == 3:
            changed[:] = generic(draw, bytes(changed), [bytes(changed)])
        elif kind == 4:
            start = draw.randrange(max(1, len(changed) // 512)) * 512
            changed[header:header] = changed[start : start + 1024] * draw.choice((1, 1, 400))
        elif kind == 5:
            changed[header : header + 512] = _nonsense(draw)[:512].ljust(
                512, draw.choice((b"\0", b" "))
            )
        else:  # text in its place: pax records, JSON, headers of npy
            changed[:] = number_in_text(draw, bytes(changed))
    repaired = _with_checksums(changed)
    return gzipped(repaired) if packed else repaired


def _tar_field(draw: random.Random, size: int) -> bytes:
    value = draw.choice(EXTREMES)
    if draw.random() < 0.3:
        return (b"\x80" + (abs(value) % 256 ** (size - 1)).to_bytes(size - 1, "big"))[:size]
    text = draw.choice(
        (
            b"%o" % abs(value),
            b"%d" % value,
            b"-1",
            b"",
            b"../x",
            b"/x.cls",
            b"x" * size,
            b"g",
            b"x",
            b"L",
            b"K",
            b"S",
            b"5",
            b"2",
            b"nan",
            b" 7 7 ",
        )
    )
    return text[:size].ljust(size, b"\0")


def _nonsense(draw: random.Random) -> bytes:
    return draw.choice(
        (
            b"[" * 400,
            b"9" * 400,
            b"1e400",
            b"NaN",
            b'{"a":' * 80,
            b"-Infinity",
            b"30 size=-512\n",
            b"19 size=99999999999999\n",
            b"9" * 300 + b" path=x\n",
            b"12 path=../x\n",
            b"20 size=1e3\n",
            b"\x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, "
            b"'shape': (999999999999,), }",
        )
    )


def number_in_text(draw: random.Random, content: bytes) -> bytes:
    """Another number in the place of one that is written in digits; of the same length or not."""
    found = list(re.finditer(rb"\d+", content))
    match = draw.choice(found)
    value = draw.choice((b"0", b"-1", b"9" * len(match[0]), b"99999999999", b"1e400", b"9" * 5000))
    if draw.random() < 0.7:
        value = value[: len(match[0])].rjust(len(match[0]), b"0")
    return content[: match.start()] + value + content[match.end() :]


def _with_checksums(content: bytearray) -> bytes:
    for at in range(0, len(content) - 511, 512):
        if content[at + 257 : at + 262] == b"ustar":
            content[at + 148 : at + 156] = b" " * 8
            total = sum(content[at : at + 512])
            content[at + 148 : at + 156] = b"%06o\0 " % total
    return bytes(content)


# WAV, PNG, npy


@cache
def wav_seeds() -> dict[str, bytes]:
    found = {}
    for channels, width in ((1, 2), (2, 1), (1, 3)):
        sink = io.BytesIO()
        with wave.open(sink, "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(width)
            file.setframerate(8000)
            file.writeframes(bytes(range(240)) * channels * width)
        found[f"{channels}-{width}.wav"] = sink.getvalue()
    return found


def mutate_head(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Mostly the first bytes, where few mean much."""
    if draw.random() < 0.3:
        return generic(draw, content, others)
    return generic(draw, content[:64], [other[:64] for other in others]) + content[64:]


@cache
def png_seeds() -> dict[str, bytes]:
    from PIL import Image

    found = {}
    for mode in ("RGB", "L", "P", "RGBA", "I;16", "1"):
        sink = io.BytesIO()
        Image.new(mode, (37, 21), 1 if mode in ("P", "1", "I;16") else 0).save(sink, "PNG")
        found[f"{mode.replace(';', '')}.png"] = sink.getvalue()
    return found


@cache
def animated_seeds() -> dict[str, bytes]:
    from PIL import Image

    found = {}
    for kind in ("GIF", "WEBP"):
        for count in (1, 3):
            frames = [Image.effect_noise((37, 21), 60).convert("P") for _ in range(count)]
            sink = io.BytesIO()
            frames[0].save(sink, kind, save_all=count > 1, append_images=frames[1:])
            found[f"{count}.{kind.lower()}"] = sink.getvalue()
    return found


def mutate_png(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    if draw.random() < 0.2:
        return generic(draw, content, others)
    chunks = _chunks(content)
    for _ in range(draw.choice((1, 1, 2))):
        place = 0 if draw.random() < 0.5 else draw.randrange(len(chunks))
        kind, data = chunks[place]
        action = draw.randrange(4)
        if action == 0 and len(chunks) > 1:
            del chunks[place]
        elif action == 1:
            chunks.insert(draw.randrange(len(chunks) + 1), draw.choice(chunks))
        elif kind == b"IHDR" and len(data) == 13 and action == 2:
            sides = [draw.choice((0, 1, 37, 21, 65500, 2**31 - 1, 2**31, 20000)) for _ in range(2)]
            chunks[place] = (kind, struct.pack(">II", *sides) + data[8:])
        else:
            chunks[place] = (kind, generic(draw, data or b"\0", [content]))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, chunks))


def _chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 8
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        found.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += 12 + length
    return found


def _chunk(chunk: tuple[bytes, bytes]) -> bytes:
    kind, data = chunk
    checksum = zlib.crc32(kind + data).to_bytes(4, "big")
    return len(data).to_bytes(4, "big") + kind + data + checksum


@cache
def npy_seeds() -> dict[str, bytes]:
    found = {}
    for name, array in (
        ("floats", np.arange(60, dtype=np.float32).reshape(20, 3)),
        ("bytes", np.arange(48, dtype=np.uint8).reshape(6, 2, 4)),
        ("labels", np.arange(20, dtype=np.int64)),
    ):
        sink = io.BytesIO()
        np.save(sink, array)
        found[f"{name}.npy"] = sink.getvalue()
    return found


def mutate_npy(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    kind = draw.randrange(4)
    if kind == 0:
        return generic(draw, content, others)
    if kind == 1:
        return mutate_head(draw, content, others)
    if kind == 2:
        return number_in_text(draw, content[:128]) + content[128:]
    old = draw.choice((b"<f4", b"|u1", b"<i8", b"False", b"(", b"20", b"shape"))
    new = draw.choice((b"|O ", b"<U9", b"<f8", b"True ", b"((", b"-9", b"[" * 300, b"V0", b"M8[s]"))
    return content.replace(old, new, 1)
