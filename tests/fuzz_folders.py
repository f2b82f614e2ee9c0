"""Folders of damaged and hostile files for `fuzz_readers`, one kind for each reader, and how a
configuration reads them.

Files that claim much are sparse: they take no room on the disk, as an attacker's would not.
"""

from __future__ import annotations

import io
import json
import random
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.addons.mixtures.mixture import Mixture
from penstock.addons.mixtures.mixture_stream import StreamMixture
from penstock.addons.packs.fields import Encode
from penstock.addons.packs.folder import PackWriter
from penstock.addons.packs.packed import Packed
from penstock.addons.shards.indexed_tars import IndexedTars
from penstock.addons.shards.tar_shards import TarShards
from penstock.addons.tables.delimited_stream import DelimitedStream
from penstock.addons.tables.delimited_text import DelimitedText
from penstock.addons.tables.parquet import Parquet
from penstock.addons.tables.parquet_stream import ParquetStream
from penstock.addons.tables.plain_text import PlainText
from penstock.addons.tokens.byte_pairs import BytePairs, learn
from penstock.addons.tokens.flatten import Flatten
from penstock.addons.tokens.token_files import TokenFiles
from penstock.config.instantiate import make
from penstock.datasets.arrays import Arrays
from penstock.datasets.audio_pairs import AudioPairs
from penstock.datasets.face_landmarks import FaceLandmarks
from penstock.datasets.image_folder import ImageFolder
from penstock.datasets.sequences import Sequences
from penstock.datasets.spoken_digits import SpokenDigits
from penstock.files.limits import Limits
from penstock.loading.collate import List, Pad, PadTime, Stack
from penstock.loading.encoded import EncodedImage
from penstock.transforms.audio import LogMel, Resample
from penstock.transforms.image_decoding import DecodeResize
from penstock.transforms.text import Tokenize
from tests import fuzz, fuzz_formats
from tests.fuzz_formats import EXTREMES, generic, mutate_head
from tests.hostile_files import AUDIO, IMAGES, claiming, npy, wav
from tests.pack_files import NO_ANSWERS

MIB = 1 << 20
ROWS = 64
LIMITS = Limits(batch_bytes=384 * MIB)


@dataclass(frozen=True)
class Sparse:
    """A file that begins with `content` and holds zeros up to `size`."""

    content: bytes
    size: int


@dataclass(frozen=True)
class Way:
    """A dataset as a configuration names it, and what its samples go through."""

    dataset: Callable[[], Any]
    collate: Any
    steps: tuple[Any, ...] = ()


Files = dict[str, bytes | Sparse]


@dataclass(frozen=True)
class Reader:
    """A reader that a configuration can name.

    Attributes:
        files: a folder: content by name. The same object twice is one file with two names.
        ways: how the folder is read; each way has its own dataset.
    """

    files: Callable[[random.Random], Files]
    ways: Callable[[Path], Iterator[Way]]


def sized(draw: random.Random, content: bytes, most: int = 25) -> bytes | Sparse:
    """Mostly the content, sometimes with many zeros behind it; to read them takes its time."""
    if draw.random() < 0.9:
        return content
    return Sparse(
        content,
        1 << (draw.choice((28, 30, 40)) if draw.random() < 0.1 else draw.randrange(10, most)),
    )


def _one(draw: random.Random, seeds: Mapping[str, bytes], mutate: Any) -> tuple[str, bytes]:
    """The name and content of a damaged file."""
    name = draw.choice(sorted(seeds))
    return name, mutate(draw, seeds[name], [seeds[other] for other in sorted(seeds)])


def _linked(draw: random.Random, contents: list[bytes | Sparse], suffix: str) -> Files:
    """So many names for a few contents that they fill a batch."""
    count = draw.choice((1, 7, ROWS, ROWS))
    return {f"{number:03}{suffix}": contents[number % len(contents)] for number in range(count)}


def _several(draw: random.Random, make: Callable[[], bytes | Sparse]) -> list[bytes | Sparse]:
    """One content, so that a batch has it 64 times, or many, which cost no more to read."""
    return [make() for _ in range(draw.choice((1, 1, 12, 32)))]


# Arrays


def _array(draw: random.Random, sound: np.ndarray | None = None) -> bytes | Sparse:
    """A `.npy` file: damaged, or one that claims much and may hold it."""
    if sound is not None and draw.random() < 0.6:
        sink = io.BytesIO()
        np.save(sink, sound)
        content = sink.getvalue()
        return content if draw.random() < 0.6 else fuzz_formats.mutate_npy(draw, content, [content])
    if draw.random() < 0.3:
        return sized(draw, _one(draw, fuzz_formats.npy_seeds(), fuzz_formats.mutate_npy)[1])
    rows = draw.choice((ROWS, ROWS, ROWS + 1, 2, 0, abs(draw.choice(EXTREMES))))
    sides = [1 << draw.randrange(28) for _ in range(draw.randrange(4))]
    dtype = draw.choice(("|u1", "|b1", "<i8", "<f4", ">f4", "<f2", "<u2", ">i8", "<u8", "<c16"))
    content = npy(claiming((rows, *sides), repr(dtype), draw.random() < 0.1))
    size = rows * int(np.prod(sides, dtype=object)) * np.dtype(dtype).itemsize
    return Sparse(content, len(content) + size) if size < 1 << 42 else content


def _arrays(draw: random.Random) -> Files:
    files = {"inputs.npy": _array(draw), "targets.npy": _array(draw, np.arange(ROWS) % 3)}
    return files | ({"classes.txt": sized(draw, b"a\nb\nc\n")} if draw.random() < 0.2 else {})


def _lengths(draw: random.Random) -> list[int]:
    """Lengths of rows: equal, mixed, or one of them long."""
    long, kind = 1 << draw.randrange(26), draw.randrange(3)
    return [
        long
        if kind == 0 or (kind == 1 and row == 17)
        else draw.randrange(1, 1 + long)
        if kind == 2
        else 3
        for row in range(ROWS)
    ]


def _sequences(draw: random.Random) -> Files:
    ends = np.cumsum([0, *_lengths(draw)])
    head = npy(claiming((int(ends[-1]), draw.choice((1, 1, 3))), "'<f4'"))
    values = Sparse(head, len(head) + 12 * int(ends[-1]))
    if draw.random() < 0.3:
        ends[draw.randrange(len(ends))] = draw.choice(EXTREMES[:-2])
    return {
        "values.npy": values if draw.random() < 0.8 else _array(draw, np.zeros((200, 3), "f4")),
        "offsets.npy": _array(draw, ends),
        "labels.npy": _array(draw, np.arange(ROWS) % 3),
    }


def _tokens(draw: random.Random) -> Files:
    lengths = np.array(_lengths(draw))
    if draw.random() < 0.5:
        width, code = draw.choice(((1, 1), (1, 2), (2, 8), (4, 4), (8, 5)))
        places = np.zeros(ROWS, "<i8") if draw.random() < 0.5 else np.cumsum(lengths) - lengths
        index = (
            b"MMIDIDX\0\0"
            + struct.pack("<QBQQ", 1, code, ROWS, 2)
            + lengths.astype("<i4").tobytes()
            + (places * width).astype("<i8").tobytes()
        )
        index += np.array([0, ROWS], "<i8").tobytes()
        if draw.random() < 0.6:
            index = draw.choice((generic, mutate_head))(draw, index, [index])
        size = int(lengths.max() if not places.any() else lengths.sum()) * width
        return {"a.bin": Sparse(b"\1\2\3", size), "a.idx": sized(draw, index)}
    name = draw.choice(("a.bin", "a.npy"))
    head = npy(claiming((int(lengths.sum()),), "'<u2'")) if name == "a.npy" else b""
    flat = Sparse(head, len(head) + 2 * int(lengths.sum()))
    files: Files = {name: flat if draw.random() < 0.7 else _array(draw)}
    if draw.random() < 0.5:
        files["a.offsets.npy"] = _array(draw, np.cumsum([0, *lengths]))
    if draw.random() < 0.5:
        files["a.lengths.npy"] = _array(draw, lengths)
    return files


def _token_ways(root: Path) -> Iterator[Way]:
    cache_dir = str(root.parent / "cache")
    # To look for the ends of documents brings all of a file into memory, as pages of the cache.
    small = all(path.stat().st_size < 1 << 26 for path in root.iterdir())
    for rows, collate in (
        ("sequences", Flatten(labels=True)),
        ("documents", Pad()),
        ("documents", Flatten(pad_to=4096)),
    ):
        given = {"rows": rows, "dtype": "uint16", "cache_dir": cache_dir, "limits": LIMITS}
        eod = {"eod": 0, "append_eod": True} if rows == "documents" and small else {}
        yield Way(partial(TokenFiles, str(root), val_fraction=0.0, **given, **eod), collate)


# Pictures


@cache
def _picture_seeds() -> dict[str, bytes]:
    others = fuzz_formats.png_seeds() | fuzz_formats.animated_seeds()
    hostile = {
        f"{name}.jpg": attack.content
        for name, attack in IMAGES.items()
        if len(attack.content) < 1 << 16
    }
    return others | hostile


def picture(draw: random.Random) -> bytes | Sparse:
    """Of any format; JPEG most often."""
    kind = draw.randrange(4)
    if kind < 2:
        return sized(draw, fuzz.damaged(draw, _jpegs()))
    if kind == 2:
        return sized(draw, _one(draw, fuzz_formats.png_seeds(), fuzz_formats.mutate_png)[1])
    return sized(draw, _one(draw, _picture_seeds(), draw.choice((generic, mutate_head)))[1])


_jpegs = cache(fuzz.originals)


def _pictures(draw: random.Random) -> Files:
    files = _linked(draw, _several(draw, lambda: picture(draw)), draw.choice((".jpg", ".png")))
    return {f"{'ab'[place % 2]}/{name}": files[name] for place, name in enumerate(files)}


def _picture_ways(reader: str, root: Path) -> Iterator[Way]:
    made = partial(ImageFolder, str(root), val_fraction=0.0, reader=reader, limits=LIMITS)
    yield Way(made, List())
    if reader == "torchvision":
        yield Way(partial(made, lazy=True), Stack(), (DecodeResize(32),))
    else:
        yield Way(made, Stack(), (small_image,))


def small_image(sample: dict[str, Any]) -> dict[str, Any]:
    import torchvision.transforms.v2.functional as F

    return sample | {"image": F.resize(sample["image"], [32, 32])}


def _faces(draw: random.Random) -> Files:
    header = ["image_name", *(f"part_{part}_{axis}" for part in range(5) for axis in "xy")]
    files = _linked(draw, _several(draw, lambda: picture(draw)), ".jpg")
    lines = [",".join(header), *(f"{name},{','.join(map(str, range(10)))}" for name in files)]
    table = "\n".join(lines).encode() + b"\n"
    if draw.random() < 0.6:
        table = draw.choice((fuzz_formats.mutate_text, fuzz_formats.number_in_text))(draw, table)
    return files | {"face_landmarks.csv": sized(draw, table)}


# Sound


def _recording(draw: random.Random) -> bytes | Sparse:
    kind = draw.randrange(4)
    if kind == 0:
        rate = draw.choice((1, 7, 8000, 16000, 44100, 192000, 2**31 - 1))
        size = 1 << draw.randrange(4, 27)
        content = wav(b"", claimed=size, rate=rate, channels=draw.choice((1, 2, 8, 300)))
        return Sparse(content, len(content) + size)
    seeds = {**fuzz_formats.wav_seeds(), **{name: one.content for name, one in AUDIO.items()}}
    return sized(draw, _one(draw, seeds, draw.choice((generic, mutate_head)))[1])


def _audio_pairs(draw: random.Random) -> Files:
    if draw.random() < 0.4:  # that fit, and are long
        frames, dtype = 1 << draw.randrange(4, 25), draw.choice(("<f4", "<f8", "|u1"))
        recording = wav(b"", claimed=2 * frames, rate=draw.choice((1, 8000, 192000)))
        head = npy(claiming((1, frames), repr(dtype)))
        target = Sparse(head, len(head) + np.dtype(dtype).itemsize * frames)
        audio = Sparse(recording, len(recording) + 2 * frames)
        names = _linked(draw, [audio], "")
        return {
            f"{name}{suffix}": content
            for name in names
            for suffix, content in ((".wav", audio), (".npy", target))
        }
    files = _linked(draw, _several(draw, lambda: _recording(draw)), ".wav")
    targets = _several(draw, lambda: _array(draw, np.zeros((1, 240), "f4")))
    return files | {
        name.replace(".wav", ".npy"): targets[place % len(targets)]
        for place, name in enumerate(files)
    }


def _digits(draw: random.Random) -> Files:
    files = _linked(draw, _several(draw, lambda: _recording(draw)), ".wav")
    return {
        f"recordings/{place % 10}_me_{5 + place}.wav": files[name]
        for place, name in enumerate(files)
    }


# Text


def _delimited(draw: random.Random) -> Files:
    if draw.random() < 0.1:  # long lines, without room on the disk
        size = 1 << draw.randrange(16)
        return {"a.tsv": Sparse(b"text\tlabel\nx", size)}
    name, content = _one(draw, fuzz_formats.csv_seeds(), fuzz_formats.mutate_csv)
    return {name: sized(draw, content)}


def _delimited_ways(root: Path) -> Iterator[Way]:
    name = next(path.name for path in root.iterdir())
    for quoting, tokenize in (("standard", Tokenize()), ("none", Tokenize(kind="bytes"))):
        given: dict[str, Any] = {"quoting": quoting, "limits": LIMITS, "val_fraction": 0.0}
        if name.endswith(("csv", "tsv")):
            given |= {"file": name, "cache_dir": str(root.parent / "cache")}
            yield Way(partial(DelimitedText, str(root), **given), Pad(), (tokenize,))


def _delimited_stream_ways(root: Path) -> Iterator[Way]:
    for quoting, tokenize in (("standard", Tokenize()), ("none", Tokenize(kind="bytes"))):
        given: dict[str, Any] = {"quoting": quoting, "limits": LIMITS, "val_fraction": 0.0}
        given["classes"] = ["ham", "spam"]
        yield Way(partial(DelimitedStream, str(root), **given), Pad(), (tokenize,))


_PROSE = "Die Würde des Menschen ist unantastbar. Sie zu achten ist Pflicht.\n\n\U0001f600 x\n"


def _prose(draw: random.Random) -> Files:
    content = (_PROSE * draw.choice((1, 30, 900))).encode()
    changed = draw.choice((fuzz_formats.mutate_text, partial(generic, others=[content])))
    return {
        f"a{ending}": sized(draw, changed(draw, content))
        for ending in draw.sample((".txt", ".md", ".tsv", ".py"), 2)
    }


def _prose_ways(root: Path) -> Iterator[Way]:
    given = {"val_fraction": 0.0, "cache_dir": str(root.parent / "cache"), "limits": LIMITS}
    made = partial(PlainText, str(root), **given)
    yield Way(partial(made, longest=1 << 22), Pad(), (Tokenize(kind="bytes"),))
    yield Way(made, Flatten(labels=True, fields=["token_bytes"]), (_pairs(),))


@cache
def _vocabulary() -> str:
    return learn([_PROSE], 300)


@cache
def _pairs() -> BytePairs:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(_vocabulary())
        file.flush()
        return BytePairs(file.name)


def _vocabularies(draw: random.Random) -> Files:
    content = _vocabulary().encode()
    kind = draw.randrange(3)
    if kind == 0:
        content = fuzz_formats.number_in_text(draw, content)
    elif kind == 1:
        content = json_damage(draw, content)
    else:
        content = generic(draw, content, [content])
    return {"tokenizer.json": sized(draw, content), "a.txt": _PROSE.encode() * 20}


def _vocabulary_ways(root: Path) -> Iterator[Way]:
    given = {"val_fraction": 0.0, "cache_dir": str(root.parent / "cache"), "limits": LIMITS}
    made = partial(PlainText, str(root), suffixes=[".txt"], longest=100, **given)
    yield Way(made, Pad(), (partial(_with, str(root / "tokenizer.json")),))


def _with(vocabulary: str, sample: dict[str, Any]) -> dict[str, Any]:
    return BytePairs(vocabulary)(sample)


def json_damage(draw: random.Random, content: bytes) -> bytes:
    """JSON with some values in the place of others."""
    whole = json.loads(content)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = whole
        while True:
            keys = list(at if isinstance(at, dict) else range(len(at)))
            if not keys:
                break
            key = draw.choice(keys)
            if isinstance(at[key], (dict, list)) and draw.random() < 0.9:
                at = at[key]
                continue
            at[key] = draw.choice(
                (
                    *EXTREMES,
                    None,
                    True,
                    0.5,
                    -0.0,
                    "",
                    "x" * 300,
                    "../x",
                    "int",
                    "tensor",
                    "file",
                    "Image",
                    "str",
                    "array",
                    "scalar",
                    "<f4",
                    "|O",
                    "<U9",
                    "|V8",
                    [],
                    {},
                    [[[]]],
                    {"a": {"b": []}},
                    [1] * 5000,
                    whole.get("count", 0),
                )
            )
            break
    return json.dumps(whole).encode()


# Tables and archives


def _table(draw: random.Random) -> Files:
    kind = draw.randrange(10)
    if kind < 4:
        name, content = _one(draw, fuzz_formats.arrow_seeds(), generic)
    elif kind < 8:
        name, content = _one(draw, fuzz_formats.parquet_seeds(), fuzz_formats.mutate_parquet)
    else:
        name, content = _large_table(draw)
    return {name: sized(draw, content)}


def _large_table(draw: random.Random) -> tuple[str, bytes]:
    """A small file whose rows are large: one value again and again, or zeros that are packed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    long = 1 << draw.randrange(8, 22)
    texts = pa.array(["a" * long + draw.choice(("", "\U0001f600"))])
    zeros = pa.array(np.zeros(ROWS * min(long, 1 << 14), draw.choice(("u1", "f4", "i8"))))
    columns = draw.choice(
        (
            {"text": pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int8()), texts)},
            {"label": pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int8()), texts)},
            {"x": pa.FixedSizeListArray.from_arrays(zeros, len(zeros) // ROWS)},
            {
                "x": pa.ListArray.from_arrays(
                    pa.array(range(0, 1 + len(zeros), len(zeros) // ROWS), pa.int32()), zeros
                )
            },
            {"x": pa.nulls(draw.choice((ROWS, 1 << 20)))},
            {"x": pa.RunEndEncodedArray.from_arrays(pa.array([ROWS], pa.int32()), texts)},
        )
    )
    table, sink = pa.table(columns), io.BytesIO()
    packing = draw.choice(("zstd", "lz4", None))
    if draw.random() < 0.5:
        options = pa.ipc.IpcWriteOptions(compression=packing)
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        return "large.arrow", sink.getvalue()
    try:
        pq.write_table(table, sink, compression=packing or "none")
    except pa.ArrowNotImplementedError:
        return "large.parquet", b"PAR1"
    return "large.parquet", sink.getvalue()


def _parquet_ways(kind: Any, root: Path) -> Iterator[Way]:
    for cache_mb, collate in ((64, List()), (1, Pad())):
        given = {"val_fraction": 0.0, "cache_mb": cache_mb, "limits": LIMITS}
        yield Way(partial(kind, str(root), **given), collate)


def _archive(draw: random.Random) -> Files:
    if draw.random() < 0.8:
        name, content = _one(draw, fuzz_formats.tar_seeds(), fuzz_formats.mutate_tar)
        return {name: sized(draw, content)}
    ending = draw.choice(("txt", "bin", "json", "cls", "npy", "jpg"))
    part = draw.choice(
        (
            b"[" + b"{}," * (1 << draw.randrange(16)) + b"{}]",
            b"[" * 5000 + b"]" * 5000,
            b"[" + b"1," * (1 << draw.randrange(18)) + b"1]",
            b"9" * 4000,
            bytes(1 << 16),
            npy(claiming((1 << draw.randrange(30),))),
            fuzz.damaged(draw, _jpegs()),
        )
    )
    content = io.BytesIO()
    import tarfile

    with tarfile.open(fileobj=content, mode="w") as file:
        for number in range(draw.choice((1, ROWS))):
            info = tarfile.TarInfo(f"{number:03}.{ending}")
            info.size = len(part)
            file.addfile(info, io.BytesIO(part))
    if draw.random() < 0.5:
        return {"a.tar.gz": fuzz_formats.gzipped(content.getvalue())}
    return {"a.tar": content.getvalue()}


def _archive_ways(root: Path) -> Iterator[Way]:
    made = partial(TarShards, str(root), val_fraction=0.0, limits=LIMITS)
    yield Way(made, List())
    yield Way(made, Stack())
    fields = {"label": "cls", "json": None, "npy": None}
    yield Way(partial(made, fields=fields, index=False), Pad())
    cache_dir = str(root.parent / "cache")
    rows = partial(IndexedTars, str(root), val_fraction=0.0, cache_dir=cache_dir, limits=LIMITS)
    yield Way(rows, List())


# Packs and mixtures


@cache
def _packs() -> dict[str, Files]:
    """Packs of samples of one shape, of several, and of files."""
    from torchvision import tv_tensors

    def sample(row: int, odd: int) -> dict[str, Any]:
        side = 4 + odd * (row % 3)
        image = tv_tensors.Image(torch.zeros(3, side, 5, dtype=torch.uint8))
        points = tv_tensors.KeyPoints(torch.zeros(2, 2), canvas_size=(side, 5))
        return {
            "image": image,
            "points": points,
            "label": row % 2,
            "share": row / 3,
            "text": "é" * (1 + odd * (row % 4)),
            "array": np.zeros(3 + odd * (row % 2)),
            "file": EncodedImage(_jpegs()[row % 3], "x", None, 0),
        }

    found = {}
    for name, odd, fields in (
        ("even", 0, ("image", "points", "label", "share", "array")),
        ("odd", 1, None),
        ("files", 0, ("file", "label")),
        ("text", 1, ("text",)),
    ):
        samples = [sample(row, odd) for row in range(ROWS)]
        chosen = [{key: one[key] for key in fields or one} for one in samples]
        with tempfile.TemporaryDirectory() as folder:
            encoded = Encode()(chosen)
            writer = PackWriter(Path(folder), encoded["fields"])
            writer.append(encoded["columns"], encoded["fields"])
            told = NO_ANSWERS | ({"text": "text"} if name == "text" else {})
            writer.finish({"fingerprint": "x", "split": "train", "classes": ["a", "b"], **told})
            found[name] = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    return found


def _pack(draw: random.Random) -> Files:
    files = dict(_packs()[draw.choice(sorted(_packs()))])
    record = files["pack.json"]
    name = draw.choice(sorted(files))
    if name == "pack.json":
        kind = draw.randrange(3)
        if kind == 0:
            files[name] = generic(draw, record, [record])
        else:
            files[name] = json_damage(draw, record)
            record = files[name]
    elif draw.random() < 0.5:
        files[name] = _array(draw)
    else:
        files[name] = sized(draw, fuzz_formats.mutate_npy(draw, files[name], [files[name]]), 34)
    if draw.random() < 0.8 and files["pack.json"] == record:
        told = json.loads(record)
        for other, content in files.items():
            if isinstance(told.get("files"), dict) and other in told["files"]:
                size = content.size if isinstance(content, Sparse) else len(content)
                told["files"][other] = max(size, len(getattr(content, "content", content)))
        files["pack.json"] = json.dumps(told).encode()
    return files


def _pack_ways(root: Path) -> Iterator[Way]:
    made = partial(Packed, str(root), limits=LIMITS)
    yield Way(made, Stack())
    yield Way(made, List())
    yield Way(partial(made, lazy=True), Pad(), (_decoded,))


def _decoded(sample: dict[str, Any]) -> dict[str, Any]:
    return DecodeResize(16)(sample) if isinstance(sample.get("image"), EncodedImage) else sample


def _mixed(draw: random.Random) -> Files:
    sources = {"a": _arrays, "t": _tokens, "q": _table, "p": _pack}
    return {
        f"{name}/{file}": content
        for name, make in sources.items()
        for file, content in make(draw).items()
    }


def _mixture_ways(root: Path) -> Iterator[Way]:
    def sources(*names: str) -> dict[str, Any]:
        given: dict[str, Any] = {"val_fraction": 0.0, "limits": LIMITS}
        make = {
            "a": lambda: Arrays(str(root / "a"), **given),
            "t": lambda: TokenFiles(str(root / "t"), dtype="uint16", **given),
            "q": lambda: Parquet(str(root / "q"), cache_mb=1, **given),
            "p": lambda: Packed(str(root / "p"), limits=LIMITS),
            "s": lambda: ParquetStream(str(root / "q"), cache_mb=1, **given),
        }
        return {name: make[name]() for name in names}

    for names in (("a", "p"), ("t", "t"), ("q", "p")):
        yield Way(lambda names=names: Mixture(sources(*dict.fromkeys(names))), List())
    yield Way(lambda: StreamMixture(sources("s", "a")), List())


def _made(kind: Any, collate: Any, *steps: Any, **given: Any) -> Callable[[Path], Iterator[Way]]:
    def ways(root: Path) -> Iterator[Way]:
        yield Way(partial(kind, str(root), limits=LIMITS, **given), collate, steps)
        yield Way(partial(kind, str(root), limits=LIMITS, **given), List())

    return ways


def _idx(draw: random.Random) -> Files:
    """MNIST's files; of their own size, as torchvision reads any that there are whole."""
    images = struct.pack(">IIII", 2051, ROWS, 4, 4) + bytes(ROWS * 16)
    labels = struct.pack(">II", 2049, ROWS) + bytes(ROWS)
    contents = [draw.choice((generic, mutate_head))(draw, images, [labels]), labels]
    names = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    return {f"MNIST/raw/{name}": contents[place % 2] for place, name in enumerate(names)}


def _idx_ways(root: Path) -> Iterator[Way]:
    node = {"_target_": "torchvision.datasets.MNIST", "root": str(root), "train": True}
    yield Way(lambda: make(node, "dataset"), List())


val = {"val_fraction": 0.0}
READERS = {
    "arrays": Reader(_arrays, _made(Arrays, Stack(), **val)),
    "sequences": Reader(_sequences, _made(Sequences, Pad(), **val)),
    "tokens": Reader(_tokens, _token_ways),
    **{
        f"images-{name}": Reader(_pictures, partial(_picture_ways, name))
        for name in ("torchvision", "pillow", "skimage")
    },
    "faces": Reader(_faces, _made(FaceLandmarks, List(), small_image, **val)),
    "audio-pairs": Reader(_audio_pairs, _made(AudioPairs, PadTime(), **val)),
    "digits": Reader(
        _digits,
        _made(SpokenDigits, PadTime(), Resample(8000), LogMel(8000, n_fft=256, hop=80, n_mels=40)),
    ),
    "text": Reader(_delimited, _delimited_ways),
    "text-stream": Reader(_delimited, _delimited_stream_ways),
    "prose": Reader(_prose, _prose_ways),
    "vocabulary": Reader(_vocabularies, _vocabulary_ways),
    "parquet": Reader(_table, partial(_parquet_ways, Parquet)),
    "parquet-stream": Reader(_table, partial(_parquet_ways, ParquetStream)),
    "tar": Reader(_archive, _archive_ways),
    "pack": Reader(_pack, _pack_ways),
    "mixture": Reader(_mixed, _mixture_ways),
    "mnist": Reader(_idx, _idx_ways),
}
