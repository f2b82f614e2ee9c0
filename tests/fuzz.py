"""Damaged JPEG files for the native decoder: whatever is in them, it must come back.

    make fuzz                                        100,000 files under AddressSanitizer
    python tests/fuzz.py --count 100000 --seed 0     the same

Builds the extension with AddressSanitizer and UndefinedBehaviorSanitizer into a temporary folder,
and runs it in a process of its own over files that were changed at random: bytes, lengths, sizes,
pieces cut out, put in twice or taken from another file. A report ends the process with an error.
The same seed gives the same files.
"""

from __future__ import annotations

import argparse
import array
import importlib.util
import io
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "pipeline" / "native"
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1"]
SOURCES = ("jpeg.c", "region.c", "rows.c", "resample.c", "resample_avx2.c")
SIZES = [(1, 1), (1, 40), (37, 1), (48, 33), (97, 61), (160, 120)]
WORDS = {0: "decoded", -1: "left to others", -2: "damaged"}


def originals() -> list[bytes]:
    """Small files of many kinds."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    found = []
    for number, (width, height) in enumerate(SIZES):
        small = generator.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
        picture = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
        exif = Image.Exif()
        exif[0x0112] = number % 8 + 1
        for mode, options in (
            ("RGB", {"subsampling": "4:2:0"}),
            ("RGB", {"subsampling": "4:4:4", "exif": exif}),
            ("RGB", {"progressive": True}),
            ("RGB", {"subsampling": "4:2:2", "quality": 30}),
            ("RGB", {"restart_marker_blocks": 2}),
            ("L", {}),
            ("L", {"progressive": True}),
            ("CMYK", {}),
        ):
            file = io.BytesIO()
            picture.convert(mode).save(file, "JPEG", **options)
            found.append(file.getvalue())
    return found


def damaged(draw: random.Random, files: list[bytes]) -> bytes:
    """One of the files, changed in one to four places."""
    content = bytearray(draw.choice(files))
    for _ in range(draw.choice((0, 1, 1, 2, 3, 4))):
        at = draw.randrange(len(content) + 1)
        kind = draw.randrange(8)
        if kind == 0:
            content[at : at + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            content[at : at + draw.randrange(1, 40)] = draw.randbytes(draw.randrange(40))
        elif kind == 2:
            del content[at:]
        elif kind == 3:
            end = at + draw.randrange(1, 300)
            content[at:at] = content[at:end]
        elif kind == 4:
            other = draw.choice(files)
            start = draw.randrange(len(other))
            content[at:] = other[start:]
        elif kind == 5:  # the header, where few bytes mean much
            place = draw.randrange(min(len(content), 700) + 1)
            content[place : place + 1] = bytes([draw.choice((0, 1, 2, 17, 34, 127, 255))])
        elif kind == 6:  # the length or the content of a part
            marker = content.find(b"\xff", draw.randrange(len(content) + 1))
            content[marker + 1 : marker + 4] = draw.randbytes(3)
        else:  # the size
            frame = max(content.find(b"\xff\xc0"), content.find(b"\xff\xc2"))
            content[frame + 5 : frame + 9] = bytes(draw.choice((0, 1, 2, 255)) for _ in range(4))
        if not content:
            break
    return bytes(content)


def arguments(draw: random.Random, content: bytes) -> tuple:
    """What to ask of the decoder: mostly what fits, sometimes nonsense."""
    frame = max(content.find(b"\xff\xc0"), content.find(b"\xff\xc2"))
    size = content[frame + 5 : frame + 9].ljust(4, b"\1")
    height, width = size[0] << 8 | size[1], size[2] << 8 | size[3]
    orientation = draw.choice((1, 1, 2, 3, 4, 5, 6, 7, 8))
    if orientation > 4:
        width, height = height, width
    left, top = draw.uniform(0, max(width - 1, 0)), draw.uniform(0, max(height - 1, 0))
    region = (
        left,
        top,
        draw.uniform(min(left + 1, width), width),
        draw.uniform(min(top + 1, height), height),
    )
    if draw.random() < 0.3:
        region = (0.0, 0.0, float(width), float(height))
    if draw.random() < 0.05:
        region = tuple(draw.choice((-1.0, 0.0, 1e300, float("nan"), 70000.0)) for _ in range(4))
    out = draw.choice((1, 2, 7, 24, 65)), draw.choice((1, 3, 16, 31, 64))
    if draw.random() < 0.02:
        out = draw.choice(((1, 65500), (3000, 400)))
    kind = draw.choice(("uint8", "float32", "channels last"))
    facts = [width, height, orientation, draw.random() < 0.5]
    if draw.random() < 0.02:
        facts[draw.randrange(3)] = draw.choice((0, 9, -1, 2**31, -(2**63), 2**63 - 1))
    normal = ((0.01, 0.02, 0.03), (-1.0, 0.0, 1.0))
    return (facts, region, draw.random() < 0.5, out, kind, draw.random() < 0.7, normal)


def shaped(kind: str, values: list | int, shape: list[int]) -> memoryview:
    """Numbers as a table, without numpy: sanitizers watch this process."""
    numbers = array.array(kind, bytes(values) if isinstance(values, int) else values)
    return memoryview(numbers).cast("B").cast(kind, shape)


def decode(jpeg, contents: list[bytes], asked: list[tuple]) -> tuple[memoryview, list[int]]:
    """Results of files that are asked for alike but for facts and region, and their outcomes."""
    rows = len(contents)
    _, _, inside, (height, width), kind, reduce, normal = asked[0]
    letter = "f" if kind == "float32" else "B"
    last = kind == "channels last"
    shape = [rows, height, width, 3] if last else [rows, 3, height, width]
    size = 3 * rows * height * width * (4 if letter == "f" else 1)
    target = shaped(letter, size, shape)
    facts = shaped("q", [int(fact) for one in asked for fact in one[0]], [rows, 4])
    regions = shaped("d", [side for one in asked for side in one[1]], [rows, 4])
    place, outcomes = shaped("q", 8, [1]), shaped("q", 8 * rows, [rows])
    jpeg.decode(contents, target, facts, regions, inside, last, reduce, normal, place, outcomes)
    assert place[0] == rows - 1
    return target, outcomes.tolist()


def run(jpeg, files: list[bytes], count: int, seed: int) -> Counter:
    """How often the decoder did what, over `count` damaged files, one to four in a call."""
    draw = random.Random(seed)
    done: Counter = Counter()
    while count > 0:
        contents = [damaged(draw, files) for _ in range(min(count, draw.choice((1, 1, 2, 4))))]
        _, outcomes = decode(jpeg, contents, [arguments(draw, content) for content in contents])
        for outcome in outcomes:
            done[WORDS.get(outcome, "decoded with warnings")] += 1
        count -= len(contents)
    return done


def load(path: str):
    """The extension module in a file."""
    spec = importlib.util.spec_from_file_location("jpeg", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(folder: Path) -> Path:
    """The extension with sanitizers."""
    path = folder / "jpeg.so"
    include = sysconfig.get_paths()["include"]
    sources = [str(NATIVE / name) for name in SOURCES]
    flags = [*SANITIZE, "-std=c11", "-ffp-contract=off", "-fPIC", "-shared", f"-I{include}"]
    command = ["gcc", *flags, *sources, "-o", str(path), "-ljpeg", "-lm"]
    subprocess.run(command, check=True)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        folder = Path(given.child)
        files = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]
        done = run(load(str(folder / "jpeg.so")), files, given.count, given.seed)
        print(f"{given.count} files, seed {given.seed}: {dict(sorted(done.items()))}")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        for number, content in enumerate(originals()):
            (folder / f"{number:03}.jpg").write_bytes(content)
        libraries = [
            subprocess.check_output(["gcc", f"-print-file-name={one}"], text=True).strip()
            for one in ("libasan.so", "libubsan.so")
        ]
        environment = os.environ | {
            "LD_PRELOAD": ":".join(libraries),
            "PYTHONMALLOC": "malloc",  # so that Python's own buffers are watched as well
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:halt_on_error=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        }
        command = [
            sys.executable,
            __file__,
            "--child",
            name,
            "--count",
            str(given.count),
            "--seed",
            str(given.seed),
        ]
        done = subprocess.run(command, env=environment, check=False)
    print("no report" if done.returncode == 0 else f"FAILED: exit code {done.returncode}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
