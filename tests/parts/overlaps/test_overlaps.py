"""What of validation and test stands in training, too, by name; and nothing that does not."""

import numpy as np
from PIL import Image

from tests.support import program

QUICK = ["task=check", "loader.num_workers=0", "trainer.progress=none"]


def drawn(seed):
    """A picture of 60 x 80 pixels: a few coloured areas, as photographs have them."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((80, 60), Image.Resampling.BICUBIC)


def test_copies_of_pictures_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for split, names in (("train", range(10)), ("val", range(20, 25)), ("test", range(30, 33))):
        for kind in ("cat", "dog"):
            folder = tmp_path / "root" / split / kind
            folder.mkdir(parents=True)
            for seed in names:
                drawn(seed + 100 * (kind == "dog")).save(folder / f"{seed}.png")
    root = tmp_path / "root"
    (root / "val/dog/copy.png").write_bytes((root / "train/cat/3.png").read_bytes())
    (root / "test/cat/copy.png").write_bytes((root / "train/cat/5.png").read_bytes())
    done = program.run(capsys, *QUICK, "dataset=image_folder", "dataset.root=root")
    assert done.code == 0, done.err
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines.pop(0) == "31 samples, nothing wrong with them"
    assert lines[0].startswith(
        "overlap 1 of val are in train, too; 1 of them with another target (11 with 20 of train)"
    )
    assert lines[2].endswith("root/val/dog/copy.png 3 root/train/cat/3.png")
    assert lines[3].startswith("overlap 1 of test are in train, too (7 with 20 of train")
