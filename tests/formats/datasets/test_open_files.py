"""Datasets that open a file before workers are forked: each worker reads its own rows."""

import contextlib
import mmap
import sqlite3
import zipfile

import pytest
from torch.utils.data import Dataset

from penstock import DataLoader

ROWS, SIZE = 200, 512


def content(row):
    return row.to_bytes(8, "little") * (SIZE // 8)


def zipped(folder):
    with zipfile.ZipFile(folder / "rows.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for row in range(ROWS):
            archive.writestr(str(row), content(row))
    archive = zipfile.ZipFile(folder / "rows.zip")
    return archive, lambda row: archive.read(str(row))


def bare(folder):
    (folder / "rows").write_bytes(b"".join(map(content, range(ROWS))))
    file = (folder / "rows").open("rb")
    return file, lambda row: (file.seek(row * SIZE), file.read(SIZE))[1]


def mapped(folder):
    file, _ = bare(folder)
    with file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return memory, lambda row: (memory.seek(row * SIZE), memory.read(SIZE))[1]


def sqlite(folder):
    base = sqlite3.connect(folder / "rows.db", check_same_thread=False)
    base.execute("create table rows (number integer primary key, content blob)")
    base.executemany("insert into rows values (?, ?)", [(n, content(n)) for n in range(ROWS)])
    base.commit()
    query = "select content from rows where number = ?"
    return base, lambda row: base.execute(query, (row,)).fetchone()[0]


def h5(folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "rows.h5", "w") as file:
        file["rows"] = [list(content(row)) for row in range(ROWS)]
    file = h5py.File(folder / "rows.h5", "r")
    return file, lambda row: bytes(file["rows"][row].tolist())


class Opened(Dataset):
    def __init__(self, opened, read):
        self.opened, self.read = opened, read

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return row, int(self.read(row) == content(row))


@pytest.mark.parametrize("opening", [zipped, bare, mapped, sqlite, h5])
def test_forked_workers_share_no_position(opening, tmp_path):
    data = Opened(*opening(tmp_path))
    with contextlib.closing(data.opened):
        data[0]  # so that something is buffered
        loader = DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="fork")
        for rows, are_right in loader:
            assert are_right.all(), rows.tolist()
