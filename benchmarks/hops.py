"""How many functions of ours a batch passes through on its way to the consumer.

    PYTHONPATH=. python benchmarks/hops.py [--list]

Distinct functions of `pipeline/` and `datasets/` called in this process between asking the loader
for its third batch and having it, without workers: of samples made one by one (the default
recipe), and of JPEG files decoded a batch at a time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from PIL import Image

import penstock

WARM = 2  # batches before the one that counts
ROOT = Path(penstock.__file__).resolve().parent.parent
OURS = tuple(f"{ROOT / name}/" for name in ("pipeline", "datasets"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the functions, in order of use")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder))
        recipes = {
            "sample by sample": ["loader.num_workers=0"],
            "at once": [
                "dataset=image_folder",
                f"dataset.root={folder}",
                "loader.backend=main",
                "transform=images_fast",
                "batch.size=8",
            ],
        }
        for name, overrides in recipes.items():
            config = penstock.compose(*overrides, f"cache_dir={folder}", "trainer.device=cpu")
            called = hops(config)
            print(f"{name:18} {len(called)}")
            for code in called if args.list else ():
                place = Path(code.co_filename).resolve().relative_to(ROOT)
                print(f"    {place}:{code.co_firstlineno} {code.co_qualname}")


def write_pictures(folder: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(80):
        path = folder / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (256, 256, 3), np.uint8)).save(path)


def hops(config: Any) -> list[CodeType]:
    """The functions that one batch calls, in the order of their first call."""
    with penstock.build_train_loader(config) as loader:
        batches = iter(loader)
        for _ in range(WARM):
            next(batches)
        called: dict[CodeType, None] = {}

        def note(frame: FrameType, event: str, _: object) -> None:
            code = frame.f_code
            # A generator expression or comprehension stands where it is read.
            if event == "call" and code.co_filename.startswith(OURS) and code.co_name[0] != "<":
                called.setdefault(code)

        sys.setprofile(note)
        try:
            next(batches)
        finally:
            sys.setprofile(None)
        batches.close()
    return list(called)


if __name__ == "__main__":
    main()
