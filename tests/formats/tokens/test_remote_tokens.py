"""Files of tokens at addresses: of the large ones, the blocks of the rows that are read."""

import numpy as np
import pytest

from penstock.addons.tokens.token_files import TokenFiles
from penstock.datasets.files import Files
from penstock.datasets.reading.base import Shares
from penstock.errors import DataError
from tests.support.store_server import InThread, Shelf
from tests.support.token_pairs import write_pair

pytest.importorskip("obstore")

SEQUENCES = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pair of Megatron's, a flat file with offsets, an array, and a small one."""
    made = tmp_path_factory.mktemp("tokens")
    draws = np.random.default_rng(0)
    rows = [draws.integers(0, 50_000, int(n)) for n in draws.integers(0, 900, SEQUENCES)]
    write_pair(made, "a", rows, [*range(0, SEQUENCES, 4), SEQUENCES])
    ends = np.cumsum([0, *map(len, rows)])
    np.concatenate(rows).astype("<u2").tofile(made / "b.bin")
    np.save(made / "b.offsets.npy", ends)
    np.save(made / "c.npy", np.concatenate(rows).astype(np.int32))
    np.save(made / "c.offsets.npy", ends)
    np.save(made / "d.npy", np.arange(40, dtype=np.uint16))
    np.save(made / "d.offsets.npy", np.array([0, 10, 40]))
    return made


def served(folder, **options):
    return Shelf({f"data/{path.name}": path.read_bytes() for path in folder.iterdir()}, **options)


def opened(root, cache, files=None, **options):
    given = {"timeout": 1, **(files or {})}  # what ends too soon is waited for as long
    files = Files(cache_dir=str(cache), retries=8, first_wait=0.01, **given)
    return TokenFiles(
        str(root), files=files, **{"dtype": "uint16", "shares": Shares(0.0), **options}
    )


def test_tokens_that_cannot_be_read_by_blocks_are_refused_as_on_a_disk(folder, tmp_path):
    shelf = served(folder)
    shelf.files["data/b.bin"] = shelf.files["data/b.bin"][:-1]
    shelf.files["data/c.npy"] = b"\x93NUMPY" + bytes(3000)
    with InThread(shelf) as port:
        root = f"http://127.0.0.1:{port}/data"
        with pytest.raises(DataError, match=r"b\.bin' cannot be read: it has \d+ bytes, no mul"):
            opened(root, tmp_path, tokens="b.bin")
        with pytest.raises(DataError, match=r"c\.npy' cannot be read: Cannot parse"):
            opened(root, tmp_path, tokens="c.npy")
