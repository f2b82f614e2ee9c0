"""Small files of which a batch of 64 would take a gigabyte or far more, though each row may pass.

`FILES` are read by tests/datasets/test_hostile_files.py, `TABLES` by test_hostile_tables.py: add an
attack here. Each runs in a process of its own, which may take little more than it had.
"""

import gzip
import io
import json
import os
import resource
import struct
import tarfile
import traceback
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from penstock.addons.mixtures.mixture import Mixture
from penstock.addons.packs.fields import Encode
from penstock.addons.packs.folder import PackWriter
from penstock.addons.packs.packed import Packed
from penstock.addons.shards.tar_shards import TarShards
from penstock.addons.tables.delimited_stream import DelimitedStream
from penstock.addons.tables.delimited_text import DelimitedText
from penstock.addons.tables.parquet import Parquet
from penstock.addons.tokens.flatten import Flatten
from penstock.addons.tokens.token_files import TokenFiles
from penstock.datasets.arrays import Arrays
from penstock.datasets.audio_pairs import AudioPairs
from penstock.datasets.image_folder import ImageFolder
from penstock.datasets.sequences import Sequences
from penstock.errors import DataError
from penstock.files.batch_bytes import BatchTooLargeError
from penstock.files.limits import Limits
from penstock.loading.collate import List, Pad, PadTime, Stack
from penstock.loading.compose import Compose
from penstock.loading.fetch import Fetch
from penstock.loading.stream_fetch import StreamFetch
from penstock.order.plan import Plan
from penstock.order.samplers import Sequential
from penstock.order.streams import StreamOrder, StreamPlan
from penstock.transforms.audio import LogMel, PadOrCrop, Resample
from penstock.transforms.batch import BatchCompose
from penstock.transforms.batch_colors import BatchNormalize
from penstock.transforms.image_decoding import DecodeResize
from penstock.transforms.mixing import MixUp
from penstock.transforms.text import Tokenize
from tests.hostile_files import claiming, npy, wav
from tests.pack_files import NO_ANSWERS

ROWS, MIB = 64, 1 << 20
MOST = 64 * MIB  # limits.batch_bytes of each attack
ROOM = 400 * MIB  # what refusing may take, with what reading a file takes beside


class Attack:
    """Files, and how they are read: `fetch(root)` makes both."""

    def __init__(self, fetch, match="limits.batch_bytes=", **limits):
        self.fetch, self.match = fetch, match
        self.limits = Limits(batch_bytes=MOST, **limits)


def sparse_npy(path, shape, dtype="|u1", fortran=False):
    path.write_bytes(npy(claiming(tuple(shape), repr(dtype), fortran)))
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    os.truncate(path, path.stat().st_size + size)


def links(root, content, suffix, count=ROWS):
    """So many names of one file."""
    (root / f"000{suffix}").write_bytes(content)
    for number in range(1, count):
        os.link(root / f"000{suffix}", root / f"{number:03}{suffix}")


def fetched(dataset, collate=None, steps=(), stream=False, buffer=0, **more):
    """What makes the first batch of a dataset."""
    transform = Compose(dict(enumerate(steps))) if steps else None
    if not stream:
        fetch = Fetch(dataset, transform, collate or Stack(), 0, batch_bytes=MOST, **more)
        plan = Plan(Sequential(len(dataset)), ROWS)
        return lambda: fetch(plan.request(0, 0))
    order = StreamOrder(0, buffer=buffer)
    fetch = StreamFetch(
        dataset,
        transform,
        collate or Stack(),
        0,
        batch_bytes=MOST,
        order=order,
        batch_size=ROWS,
        **more,
    )
    return lambda: fetch(StreamPlan(order, ROWS, "keep", None).request(0, 0))


def tokens(root, limits, size=32 * MIB):
    """Rows of an index of 1 KB that all span the same file."""
    with (root / "a.bin").open("wb") as file:
        file.truncate(size)
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 1, ROWS, 2)
    index += np.full(ROWS, size, "<i4").tobytes() + np.zeros(ROWS, "<i8").tobytes()
    (root / "a.idx").write_bytes(index + np.array([0, ROWS], "<i8").tobytes())
    return TokenFiles(str(root), val_fraction=0.0, limits=limits)


def arrays(root, limits, row=256 * MIB, dtype="|u1"):
    sparse_npy(root / "inputs.npy", (ROWS, row // np.dtype(dtype).itemsize), dtype)
    np.save(root / "targets.npy", np.zeros(ROWS, np.int64))
    return Arrays(str(root), val_fraction=0.0, limits=limits)


def sequences(root, limits, lengths):
    sparse_npy(root / "values.npy", (sum(lengths), 1), "<f4")
    np.save(root / "offsets.npy", np.cumsum([0, *lengths]))
    np.save(root / "labels.npy", np.zeros(len(lengths), np.int64))
    return Sequences(str(root), val_fraction=0.0, limits=limits)


def pack(root, limits, samples, change=lambda folder, record: None, **how):
    """A pack of real samples whose files are changed afterwards."""
    folder = root / "pack"
    folder.mkdir()
    encoded = Encode()(samples)
    writer = PackWriter(folder, encoded["fields"])
    writer.append(encoded["columns"], encoded["fields"])
    writer.finish({"fingerprint": "x", **NO_ANSWERS})
    record = json.loads((folder / "pack.json").read_text())
    change(folder, record)
    record["files"] = {name: (folder / name).stat().st_size for name in record["files"]}
    (folder / "pack.json").write_text(json.dumps(record))
    return Packed(str(folder), limits=limits, **how)


def even_pack(root, limits, fortran=False):
    samples = [{"x": torch.zeros(2, 8, dtype=torch.uint8)} for _ in range(ROWS)]
    shape = (ROWS, 2, 16 * MIB)
    return pack(
        root,
        limits,
        samples,
        lambda folder, _: sparse_npy(folder / "x.npy", shape, fortran=fortran),
    )


def uneven_pack(root, limits, text=False):
    """A pack of large samples, which take no room on the disk."""
    size = 16 * MIB

    def change(folder, _):
        sparse_npy(folder / "x.npy", (size * ROWS,))
        np.save(folder / "x.offsets.npy", np.arange(ROWS + 1) * size)
        np.save(folder / "x.shapes.npy", np.full((ROWS, 1), size, np.int32))

    samples = [
        {"x": "a" * (1 + row % 2) if text else torch.zeros(1 + row % 2, dtype=torch.uint8)}
        for row in range(ROWS)
    ]
    return pack(root, limits, samples, change)


def damaged_pack(root, limits):
    """Offsets that go back."""
    samples = [{"x": torch.zeros(1 + row % 2, dtype=torch.uint8)} for row in range(ROWS)]
    offsets = np.array([0, -5, 2**62, *range(ROWS - 2)])
    return pack(root, limits, samples, lambda folder, _: np.save(folder / "x.offsets.npy", offsets))


def audio(root, limits, seconds, rate=16000, held=None):
    """Links to one recording of silence, whose samples take no room on the disk."""
    content = wav(b"", claimed=2 * seconds * rate, rate=rate)
    links(root, content, ".wav")
    os.truncate(root / "000.wav", len(content) + 2 * seconds * rate)
    np.save(root / "000.npy", np.zeros((1, 1), np.float32))
    for number in range(1, ROWS):
        os.link(root / "000.npy", root / f"{number:03}.npy")
    return Recordings(str(root), val_fraction=0.0, limits=limits)


class Recordings(AudioPairs):
    """The recordings alone."""

    def __getitem__(self, index):
        values, rate = self.audio(index)
        return {"audio": values, "rate": rate}


def picture(side, kind="PNG", **options):
    file = io.BytesIO()
    Image.new("1" if kind == "PNG" else "RGB", (side, side)).save(file, kind, **options)
    return file.getvalue()


def pictures(root, limits, content=None, size=None, **how):
    (root / "a").mkdir()
    links(root / "a", content or b"\xff\xd8\xff", ".jpg")
    if size:
        os.truncate(root / "a/000.jpg", size)
    return ImageFolder(str(root), val_fraction=0.0, limits=limits, **how)


class Foreign(torch.utils.data.Dataset):
    """Somebody's own dataset, which reserves nothing."""

    def __init__(self, length=2 * MIB):
        self.length = length

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"x": torch.ones(self.length, dtype=torch.float64)}


class OneLong(Foreign):
    """One row is long, and padding makes all as long."""

    def __getitem__(self, index):
        return {"x": torch.zeros(1, 4 * MIB if index == 17 else 3, dtype=torch.uint8)}


class OneWide(Foreign):
    """Bytes, but for a row of another type and length."""

    def __init__(self, row, length):
        self.row, self.length = row, length

    def __getitem__(self, index):
        if index == self.row:
            return {"x": torch.zeros(self.length, dtype=torch.float64)}
        return {"x": torch.zeros(900_000, dtype=torch.uint8)}


class Images(Foreign):
    """Decoded pictures that fit in bytes, and not as floats."""

    def __getitem__(self, index):
        from torchvision import tv_tensors

        image = tv_tensors.Image(torch.zeros(3, 480, 480, dtype=torch.uint8))
        return {"image": image, "label": index}


def own_collate(samples):
    return {"x": torch.stack([sample["x"] for sample in samples] * 9)}


def cut_out(sample):
    """A view: each row keeps its whole picture."""
    return sample | {"image": sample["image"][:, :8, :8]}


FILES = {
    "rows of an index overlap": Attack(lambda root, limits: fetched(tokens(root, limits))),
    "the same, one after the other": Attack(
        lambda root, limits: fetched(tokens(root, limits), Flatten(labels=True))
    ),
    "the same, padded": Attack(
        lambda root, limits: fetched(tokens(root, limits, MIB // 2), Flatten(pad_to=MIB))
    ),
    "the same in a mixture": Attack(
        lambda root, limits: fetched(Mixture({"a": tokens(root, limits)}))
    ),
    "rows of a sparse array": Attack(lambda root, limits: fetched(arrays(root, limits))),
    "floats that get wider": Attack(
        lambda root, limits: fetched(arrays(root, limits, MIB, "<f2"), List())
    ),
    "sequences of a sparse array": Attack(
        lambda root, limits: fetched(sequences(root, limits, [16 * MIB] * ROWS), List())
    ),
    "one long sequence": Attack(
        lambda root, limits: fetched(sequences(root, limits, [4 * MIB, *[1] * ROWS]), Pad()),
        r"padded to length 4194304.*Its longest sample is 0\b",
    ),
    "one that is long in time": Attack(
        lambda root, limits: fetched(OneLong(), PadTime()), r"Its longest sample is 17\b"
    ),
    "a sparse pack": Attack(lambda root, limits: fetched(even_pack(root, limits))),
    "a sparse pack, sample by sample": Attack(
        lambda root, limits: fetched(even_pack(root, limits), List())
    ),
    "a sparse pack of rows of their own sizes": Attack(
        lambda root, limits: fetched(uneven_pack(root, limits), List())
    ),
    "a sparse pack of texts": Attack(
        lambda root, limits: fetched(uneven_pack(root, limits, text=True))
    ),
    "a pack whose offsets lead astray": Attack(
        lambda root, limits: fetched(damaged_pack(root, limits), List()), "lies at 0 to -5 of"
    ),
    "a pack that is stored column by column": Attack(
        lambda root, limits: fetched(even_pack(root, limits, fortran=True)), "row by row"
    ),
    "long recordings": Attack(lambda root, limits: fetched(audio(root, limits, 900))),
    "recordings at 1 Hz": Attack(
        lambda root, limits: fetched(audio(root, limits, 14000, 1), steps=[Resample(16000)])
    ),
    "recordings at 1 Hz, and no small ratio": Attack(
        lambda root, limits: fetched(audio(root, limits, 200, 7), steps=[Resample(44101)])
    ),
    "recordings whose ratio takes a large filter": Attack(
        lambda root, limits: fetched(audio(root, limits, 1, 999_983), steps=[Resample(8000)]),
        "weights",
    ),
    "recordings at 2 GHz": Attack(
        lambda root, limits: fetched(audio(root, limits, 0, 2**31 - 1), steps=[PadOrCrop(1.0)]),
        "limits.batch_bytes=|samples",
    ),
    "a padded recording at 1 GHz": Attack(
        lambda root, limits: fetched(audio(root, limits, 1, 1 << 20), steps=[PadOrCrop(1000.0)])
    ),
    "spectra": Attack(
        lambda root, limits: fetched(audio(root, limits, 300), steps=[LogMel(16000, hop=1)])
    ),
    "pictures of 64 million pixels": Attack(
        lambda root, limits: fetched(pictures(root, limits, picture(8000)))
    ),
    "pictures that are decoded by Pillow": Attack(
        lambda root, limits: fetched(pictures(root, limits, picture(3000), reader="pillow"), List())
    ),
    "parts of pictures": Attack(
        lambda root, limits: fetched(pictures(root, limits, picture(1000)), steps=[cut_out])
    ),
    "large files of pictures": Attack(
        lambda root, limits: fetched(
            pictures(root, limits, size=64 * MIB, lazy=True), steps=[DecodeResize(8)]
        )
    ),
    "progressive pictures": Attack(
        lambda root, limits: fetched(
            pictures(root, limits, picture(5000, "JPEG", progressive=True), lazy=True),
            steps=[DecodeResize(8)],
        )
    ),
    "pictures that are large when decoded": Attack(
        lambda root, limits: fetched(
            pictures(root, limits, picture(16, "JPEG"), lazy=True), steps=[DecodeResize(2000)]
        )
    ),
    "one row decides the type of all": Attack(
        lambda root, limits: fetched(OneWide(0, 1), Pad(["x"])), r"padded to length 900000"
    ),
    "one row decides the type of all, in time": Attack(
        lambda root, limits: fetched(OneWide(0, 1), PadTime(["x"])), r"padded to length 900000"
    ),
    "one row widens the type of all": Attack(
        lambda root, limits: fetched(OneWide(1, 900_000), Stack()), r"field 'x' would take"
    ),
    "somebody's own samples": Attack(lambda root, limits: fetched(Foreign(), List())),
    "somebody's own collate function": Attack(
        lambda root, limits: fetched(Foreign(32_000), own_collate)
    ),
    "pictures as floats": Attack(
        lambda root, limits: fetched(
            Images(), batch_transform=BatchCompose({"n": BatchNormalize()}, 0)
        )
    ),
    "classes of all pictures": Attack(
        lambda root, limits: fetched(Images(), batch_transform=BatchCompose({"m": MixUp(10**6)}, 0))
    ),
}


def parquet(root, limits, table, fields=None, **how):
    import pyarrow.parquet as pq

    pq.write_table(table, root / "a.parquet", **how)
    path = str(root / "a.parquet")
    return Parquet(path, val_fraction=0.0, fields=fields, cache_mb=1, limits=limits)


def feather(root, limits, table, compression=None, **how):
    import pyarrow as pa

    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(root / "a.arrow"), table.schema, options=options) as writer:
        writer.write_table(table)
    return Parquet(str(root / "a.arrow"), val_fraction=0.0, cache_mb=1, limits=limits, **how)


def repeated(content):
    """A column that has one value again and again."""
    import pyarrow as pa

    indices = pa.array([0] * ROWS, pa.int8())
    return pa.DictionaryArray.from_arrays(indices, pa.array([content]))


def table(**columns):
    import pyarrow as pa

    return pa.table(columns)


def zeros(rows, each):
    """A column of lists."""
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * each, np.float32)), each)


def archive(root, limits, content, ending, packed=False, **how):
    """So many samples of one part."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as file:
        for number in range(how.pop("count", ROWS)):
            info = tarfile.TarInfo(f"{number:03}.{ending}")
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    name = "a.tar.gz" if packed else "a.tar"
    (root / name).write_bytes(gzip.compress(sink.getvalue(), 1) if packed else sink.getvalue())
    return TarShards(str(root / name), val_fraction=0.0, limits=limits, **how)


def sparse_archive(root, limits, size, ending):
    """Samples of zeros, which take no room on the disk."""
    with (root / "a.tar").open("wb") as file:
        for number in range(ROWS):
            info = tarfile.TarInfo(f"{number:03}.{ending}")
            info.size = size
            file.write(info.tobuf())
            file.seek(size, os.SEEK_CUR)
        file.truncate(file.tell() + 1024)
    return TarShards(str(root / "a.tar"), val_fraction=0.0, limits=limits)


def lines(root, limits, size, kind=DelimitedText, **how):
    """Lines of zeros, which take no room on the disk."""
    with (root / "a.csv").open("wb") as file:
        file.write(b"text\n")
        for _ in range(ROWS):
            file.seek(size, os.SEEK_CUR)
            file.write(b"\n")
    given = {"label": None, "limits": limits, "val_fraction": 0.0, **how}
    if kind is DelimitedText:
        return kind(str(root), file="a.csv", cache_dir=str(root / "cache"), **given)
    return kind(str(root / "a.csv"), **given)


def wide(count):
    """A text of so many bytes in ASCII, of which each character takes four."""
    return "a" * count + "\U0001f600"


TABLES = {
    "one text in every row": Attack(
        lambda root, limits: fetched(
            parquet(root, limits, table(text=repeated("a" * 8 * MIB)), {"text": "text"})
        )
    ),
    "one text in every row, in Arrow's format": Attack(
        lambda root, limits: fetched(
            feather(root, limits, table(text=repeated("a" * 8 * MIB)), fields={"text": "text"})
        )
    ),
    "one long label in every row": Attack(
        lambda root, limits: fetched(
            feather(root, limits, table(label=repeated("a" * 8 * MIB), x=list(range(ROWS))))
        ),
        "^$",
    ),
    "texts with a wide character": Attack(
        lambda root, limits: fetched(feather(root, limits, table(text=[wide(MIB)] * ROWS)))
    ),
    "a row group that expands": Attack(
        lambda root, limits: fetched(
            parquet(
                root, limits, table(x=zeros(20_000, 1000)), compression="zstd", use_dictionary=False
            )
        ),
        expansion=1e6,
    ),
    "a batch of Arrow's that expands": Attack(
        lambda root, limits: fetched(feather(root, limits, table(x=zeros(20_000, 1000)), "zstd")),
        expansion=1e6,
    ),
    "rows of lists": Attack(
        lambda root, limits: fetched(feather(root, limits, table(x=zeros(ROWS, 300_000))))
    ),
    "texts in an archive": Attack(
        lambda root, limits: fetched(sparse_archive(root, limits, 8 * MIB, "txt"), stream=True)
    ),
    "bytes in an archive": Attack(
        lambda root, limits: fetched(sparse_archive(root, limits, 8 * MIB, "bin"), stream=True)
    ),
    "JSON that becomes thirty times as large": Attack(
        lambda root, limits: fetched(
            archive(root, limits, b"[" + b"{}," * MIB + b"{}]", "json"), List(), stream=True
        )
    ),
    "JSON that becomes a tensor a number": Attack(
        lambda root, limits: fetched(
            archive(root, limits, b"[" + b"1," * 500_000 + b"1]", "json", count=1), stream=True
        )
    ),
    "a compressed archive": Attack(
        lambda root, limits: fetched(
            archive(root, limits, bytes(4 * MIB), "bin", packed=True), stream=True
        ),
        "sampler.buffer",
        expansion=1e6,
    ),
    "a compressed archive that is shuffled": Attack(
        lambda root, limits: fetched(
            archive(root, limits, bytes(MIB), "bin", packed=True, count=200),
            stream=True,
            buffer=200,
        ),
        "sampler.buffer",
        expansion=1e6,
    ),
    "pictures in an archive": Attack(
        lambda root, limits: fetched(archive(root, limits, picture(8000), "png"), stream=True)
    ),
    "long lines": Attack(lambda root, limits: fetched(lines(root, limits, 8 * MIB))),
    "long lines, as a stream": Attack(
        lambda root, limits: fetched(lines(root, limits, 8 * MIB, DelimitedStream), stream=True)
    ),
    "long lines, as tokens": Attack(
        lambda root, limits: fetched(lines(root, limits, 4 * MIB), Pad(), [Tokenize(kind="bytes")])
    ),
    "words of long lines": Attack(
        lambda root, limits: fetched(lines(root, limits, 4 * MIB), Pad(), [Tokenize(kind="words")])
    ),
}


def outcome(attack, root):
    """What came of an attack in a process with `ROOM`: the error, and MiB that it took at most.

    "" is no error.
    """
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        with open(read) as answer:
            said = json.loads(answer.read() or '["the process died", 0]')
        os.waitpid(child, 0)
        return said
    said = ["", 0]
    try:
        torch.set_num_threads(1)
        run = attack.fetch(root, attack.limits)
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        most = _status("VmData") + ROOM
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        try:
            run()
        except (BatchTooLargeError, DataError) as error:
            said[0] = f"{type(error).__name__}: {error}"
        said[1] = (_status("VmHWM") - before) // MIB
    except BaseException:
        said[0] = traceback.format_exc()
    with os.fdopen(write, "w") as answer:
        answer.write(json.dumps(said))
    os._exit(0)


def _status(name):
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) << 10
