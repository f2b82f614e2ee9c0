"""Files that datasets of ours read in random configurations, written once for all cases."""

import io
import random
import tarfile
from pathlib import Path

import numpy as np

from tests.support.pack_files import write_images


def files_of(folder: Path):
    """`folder` with the files, which are written once."""
    if not folder.exists():
        write_files(folder)
    return folder


def write_files(folder):
    """Files that datasets of ours read, once for all cases."""
    draw = random.Random(0)
    (folder / "arrays").mkdir(parents=True)
    numbers = np.random.default_rng(0)
    np.save(folder / "arrays" / "inputs.npy", numbers.random((50, 3), np.float32))
    np.save(folder / "arrays" / "targets.npy", numbers.integers(0, 3, 50))
    lines = ["label\ttext"]
    for row in range(60):
        words = " ".join(draw.choice(("one", "two", "three", "four")) for _ in range(row * 5 % 13))
        lines.append(f"{('ham', 'spam')[row % 3 == 0]}\t{words} {row}")
    (folder / "texts").mkdir()
    (folder / "texts" / "messages.tsv").write_text("\n".join(lines) + "\n")
    write_images(folder / "images", 36)
    _write_shards(folder / "shards", folder / "images")
    (folder / "tokens").mkdir()
    lengths = [row * 7 % 19 for row in range(50)]
    np.save(folder / "tokens" / "all.npy", numbers.integers(0, 60, sum(lengths)).astype(np.uint16))
    np.save(folder / "tokens" / "all.offsets.npy", np.cumsum([0, *lengths]))
    _write_table(folder / "table")


def _write_shards(folder, pictures):
    folder.mkdir()
    paths = sorted(pictures.rglob("*.jpg"))[:30]
    for number in range(3):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            for place, path in enumerate(paths[number::3]):
                archive.add(path, f"{number}-{place}.jpg")
                label = tarfile.TarInfo(f"{number}-{place}.cls")
                label.size = 1
                archive.addfile(label, io.BytesIO(b"012"[place % 3 : place % 3 + 1]))


def _write_table(folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    rows = range(48)
    table = pa.table(
        {
            "x": [[row % 3 / 3, row % 5 / 5, row % 7 / 7] for row in rows],
            "label": [row % 3 for row in rows],
            "size": [row * 7 % 31 for row in rows],
            "name": [f"n{row % 9}" for row in rows],
        }
    )
    pq.write_table(table, folder / "all.parquet", row_group_size=10)
