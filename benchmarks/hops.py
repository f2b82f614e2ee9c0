"""How many functions of ours a run and a batch pass through.

    PYTHONPATH=. python benchmarks/hops.py [--list]

Distinct functions of `pipeline/`, `datasets/` and `run.py`, and their files:

- before the first optimizer step of `python run.py loader.num_workers=0`, imports included;
- of those, the ones that carry an override of the sampler: among their arguments is its text, or a
  mapping with its key;
- between asking the loader for its third batch and having it, without workers: of samples made one
  by one (the default recipe), and of JPEG files decoded a batch at a time.
"""

from __future__ import annotations

import argparse
import inspect
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from PIL import Image

import penstock

WARM = 2  # batches before the one that counts
ROOT = Path(penstock.__file__).resolve().parent.parent
OURS = tuple(f"{ROOT}/{name}" for name in ("pipeline/", "penstock/", "datasets/", "run.py"))
OVERRIDE = "sampler.replacement"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the functions, in order of use")
    parser.add_argument("--start", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.start:
        start(args.start, args.list)
    words = [sys.executable, __file__, *(["--list"] if args.list else [])]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        penstock.build_train_loader(penstock.compose(*faces_in(other))).close()  # draws them
        subprocess.run([*words, "--start", other], cwd=ROOT, check=True)
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
            show(name, called, args.list)


def show(name: str, called: Iterable[CodeType], listed: bool) -> None:
    lines = [(file_of(code), code.co_firstlineno, code.co_qualname) for code in called]
    print(f"{name:18} {len(set(lines))} functions in {len({file for file, *_ in lines})} files")
    for file, line, function in lines if listed else ():
        print(f"    {file}:{line} {function}")


def file_of(code: CodeType) -> Path:
    return Path(code.co_filename).resolve().relative_to(ROOT)


def is_ours(code: CodeType) -> bool:
    """Whether it is a function of ours; a comprehension stands where it is read."""
    return code.co_filename.startswith(OURS) and code.co_name[0] != "<"


def start(folder: str, listed: bool) -> None:
    """Run until the first optimizer step, show what was called, and end this process."""
    called: dict[CodeType, None] = {}
    carrying: dict[CodeType, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not is_ours(code):
            return
        called.setdefault(code)
        if code not in carrying:
            arguments = inspect.getargvalues(frame)
            values = [arguments.locals[name] for name in arguments.args]
            if any(carries(value) for value in (*values, arguments.locals.get(arguments.varargs))):
                carrying.setdefault(code)
        if code.co_qualname == "TrainStep.update":
            sys.setprofile(None)
            show("start", called, listed)
            show("override", carrying, listed)
            sys.stdout.flush()
            os._exit(0)

    chosen = ["loader.num_workers=0", "sampler=weighted", f"{OVERRIDE}=false"]
    sys.argv = [
        "run.py",
        *chosen,
        *faces_in(folder),
        "trainer.max_steps=2",
        f"run_dir={folder}/run",
    ]
    for name in [name for name in sys.modules if name.partition(".")[0] == "penstock"]:
        del sys.modules[name]
    sys.setprofile(note)
    runpy.run_path(str(ROOT / "run.py"), run_name="__main__")


def faces_in(folder: str) -> list[str]:
    return [f"dataset.root={folder}/drawn", "dataset.count=64"]


def carries(value: Any, depth: int = 3) -> bool:
    """Whether the override stands in it, as text or as a key, in containers this deep at most."""
    if isinstance(value, str):
        return OVERRIDE in value
    if isinstance(value, Mapping):
        if type(value).__module__.startswith("omegaconf"):
            return False  # to look into one costs more than the run
        if "replacement" in value:
            return True
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return depth > 0 and any(carries(item, depth - 1) for item in value)


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
            if event == "call" and is_ours(frame.f_code):
                called.setdefault(frame.f_code)

        sys.setprofile(note)
        try:
            next(batches)
        finally:
            sys.setprofile(None)
        batches.close()
    return list(called)


if __name__ == "__main__":
    main()
