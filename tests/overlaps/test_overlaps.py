"""What of validation and test stands in training, too, by name; and nothing that does not."""

import numpy as np
import pytest
from PIL import Image

from penstock.addons.overlaps.marks import Marks
from penstock.addons.overlaps.overlaps import overlaps
from tests import program

QUICK = ["task=check", "loader.num_workers=0", "trainer.progress=none"]


def drawn(seed):
    """A picture of 60 x 80 pixels: a few coloured areas, as photographs have them."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((80, 60), Image.Resampling.BICUBIC)


def test_copies_and_pictures_that_were_saved_again_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for split, names in (("train", range(10)), ("val", range(20, 25)), ("test", range(30, 33))):
        for kind in ("cat", "dog"):
            folder = tmp_path / "root" / split / kind
            folder.mkdir(parents=True)
            for seed in names:
                drawn(seed + 100 * (kind == "dog")).save(folder / f"{seed}.png")
    root = tmp_path / "root"
    (root / "val/dog/copy.png").write_bytes((root / "train/cat/3.png").read_bytes())
    smaller = drawn(104).resize((40, 30), Image.Resampling.LANCZOS)
    smaller.save(root / "val/dog/small.jpg", quality=60)
    (root / "test/cat/copy.png").write_bytes((root / "train/cat/5.png").read_bytes())
    for flat in ("train", "val"):  # flat pictures are all alike
        Image.new("RGB", (80, 60), (9, 9, 9 + (flat == "val"))).save(root / flat / "cat/flat.png")
    done = program.run(capsys, *QUICK, "dataset=image_folder", "dataset.root=root")
    assert done.code == 0, done.err
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines.pop(0) == "34 samples, nothing wrong with them"
    assert lines[0].startswith(
        "overlap 2 of val are in train, too: 1 equal, 1 nearly equal; 1 of them with another "
        "target (13 with 21 of train, "
    )
    assert [line.split()[2::2] for line in lines[2:4]] == [
        ["root/val/dog/copy.png", "3"],
        ["root/val/dog/small.jpg", "15"],
    ]
    assert lines[2].endswith("equal 3 root/train/cat/3.png")
    assert lines[3].endswith("nearly 15 root/train/dog/4.png")
    assert lines[4].startswith("overlap 1 of test are in train, too: 1 equal")


@pytest.mark.thorough
def test_rows_of_a_table_are_compared_without_their_target(tmp_path, monkeypatch, capsys):
    pytest.importorskip("penstock.addons.tabular")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(20)))
    (tmp_path / "b.csv").write_text("x,y\n3,1\n4,1\n77,0\n")
    words = ["dataset=table", "dataset.root=.", "dataset.file=a.csv", "dataset.val_file=b.csv"]
    done = program.run(capsys, *QUICK, *words, "dataset.target=y", "loader.num_workers=2")
    assert "2 of val are in train, too: 2 equal; 1 of them with another target" in done.out
    assert "nearly" not in done.out


def test_no_pair_is_missed_that_differs_in_few_bits():
    generator = np.random.default_rng(0)
    count = 300

    def marks(bits, colours, first):
        rows = np.arange(count)
        return Marks(rows, rows.astype(np.uint64) + np.uint64(first), rows * 0, bits, colours, None)

    bits = generator.integers(0, 256, (count, 32), dtype=np.uint8)
    colours = generator.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8)
    moved = bits.copy()
    for row in range(count):  # 15 bits each, so of 16 parts one at least is whole
        for place in generator.choice(256, 15, replace=False):
            moved[row, place // 8] ^= 1 << (place % 8)
    found, pairs = overlaps(marks(bits, colours, 0), marks(moved, colours, 1000))
    assert [(each.place, each.train, each.kind) for each in found] == [
        (row, row, "nearly") for row in range(count)
    ]
    assert pairs < count * count / 8, "not all pairs"
    assert not overlaps(marks(bits, colours, 0), marks(moved, colours[::-1], 1000))[0]
