"""Golden digests: configurations whose batches are recorded byte for byte in `golden.txt`.

    python -m tests.promises.golden > tests/promises/golden.txt    records all of them anew

The instruction sets are pinned, because the bytes of some batches depend on those of the processor.
The photographs and tables that some configurations read are written here by integers alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("golden.txt")
PINNED = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "NPY_DISABLE_CPU_FEATURES": "AVX512_SPR AVX512_ICL X86_V4",
    "OMP_NUM_THREADS": "1",
}
DIGEST = ("task=digest", "steps=3", "loader=debug")

DRAWN = (
    "sequences", "table", "table_regression", "forecasting", "multi_label", "two_views",
    "image_text", "segmentation", "detection", "video",
)  # fmt: skip
SAMPLERS = (
    "sampler=sequential", "sampler=random", "sampler=weighted", "sampler=subset",
    "sampler=repeated", "sampler=blocks", "sampler=curriculum sampler.column=label",
    "sampler=identity sampler.identities=3 sampler.samples=4",
)  # fmt: skip
SOURCE = "{_target_:penstock.datasets.sequences.SyntheticSequences,root:%s,count:60}"
MIXTURE = (
    "dataset=sequences ~dataset transform=none collate=pad sampler=mixture "
    "+dataset={_target_:penstock.addons.mixtures.mixture.Mixture,weights:{a:[[0,3],[1,1]],b:1},"
    f"sources:{{a:{SOURCE % 'a'},b:{SOURCE % 'b'}}}}}"
)
CONFIGURATIONS = (
    "",
    *(f"experiment={name} dataset.count=120" for name in DRAWN),
    *(f"dataset.count=120 {sampler} epoch=1" for sampler in SAMPLERS),
    "experiment=sequences dataset.count=120 sampler=bucket epoch=1",
    MIXTURE,
    "experiment=tiny_lm",
    "dataset.count=120 seed=7",
    "dataset.count=120 batch.tail=pad batch.size=50",
    "dataset.count=120 batch.tail=drop batch.size=50",
    "dataset=image_folder dataset.root=photos transform=images",
    "dataset=image_folder dataset.root=photos transform=images_fast",
    "dataset=image_folder dataset.root=photos transform=images_batch",
    "experiment=ants_bees dataset.root=photos",
    "experiment=face_landmarks dataset.root=faces",
    "experiment=sms_spam dataset.root=messages",
)


def write_data(folder: Path) -> str:
    """Write the data that the configurations read; returns a hash of its bytes."""
    for split, count in (("train", 20), ("val", 5)):
        for name in ("ant", "bee"):
            for number in range(count):
                path = folder / "photos" / split / name / f"{number:03}.jpg"
                _photo(f"{split} {name} {number}").save(_below(path), quality=90)
    lines = ["image_name," + ",".join(f"part_{part}_{axis}" for part in range(68) for axis in "xy")]
    for number in range(30):
        _photo(f"face {number}").save(_below(folder / "faces" / f"{number:03}.jpg"), quality=90)
        draw = random.Random(number)
        lines.append(f"{number:03}.jpg," + ",".join(str(draw.randrange(100)) for _ in range(136)))
    (folder / "faces" / "face_landmarks.csv").write_text("\n".join(lines) + "\n")
    draw = random.Random("messages")
    words = ["call", "me", "now", "win", "a", "free", "prize", "or", "see", "you", "at", "home"]
    messages = [
        f"{draw.choice(('ham', 'ham', 'spam'))}\t{' '.join(draw.choices(words, k=1 + n % 17))}\n"
        for n in range(200)
    ]
    _below(folder / "messages" / "SMSSpamCollection").write_text("".join(messages))
    content = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content.update(path.read_bytes())
    return content.hexdigest()


def _below(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _photo(name: str) -> Image.Image:
    """A slanted pattern in three colours with rectangles on it, and a size of its own."""
    draw = random.Random(name)
    width, height = draw.randrange(120, 260), draw.randrange(100, 220)
    ramp = bytes([*range(256), *reversed(range(256))]) * 4
    starts = [(draw.randrange(512), draw.randrange(1, 9)) for _ in range(3)]
    channels = [
        b"".join(ramp[(begin + slant * y) % 512 :][:width] for y in range(height))
        for begin, slant in starts
    ]
    image = Image.merge("RGB", [Image.frombytes("L", (width, height), c) for c in channels])
    for _ in range(6):
        x, y = draw.randrange(width - 20), draw.randrange(height - 20)
        colour = tuple(draw.randbytes(3))
        image.paste(colour, (x, y, x + draw.randrange(8, 80), y + draw.randrange(8, 80)))
    return image


class Program:
    """A process with the instruction sets pinned that runs one command line after the other.

    To start the program takes longer than to make three batches.
    """

    def __init__(self, folder: Path) -> None:
        self.environment = {**os.environ, **PINNED, "PENSTOCK_CACHE": str(folder / "cache")}
        self.environment["PYTHONPATH"] = str(ROOT)
        self.folder = folder
        self.data = write_data(folder)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.promises.golden", "serve"],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def digest(self, words: str) -> list[str]:
        """The lines that `task=digest` prints for these overrides."""
        print(json.dumps([*words.split(), *DIGEST]), file=self.process.stdin, flush=True)
        code, out, errors = json.loads(self.process.stdout.readline())
        assert code == 0, errors
        return out.splitlines()

    def digest_by_itself(self, words: str) -> list[str]:
        """The same from `python run.py` in a process of its own."""
        command = [sys.executable, str(ROOT / "run.py"), *words.split(), *DIGEST]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(600)
        self.process.stdout.close()


def serve() -> None:
    """Run the command lines of stdin, a JSON list each; answer with exit code, stdout, stderr."""
    from tests import port

    for line in sys.stdin:
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as errors,
        ):
            code = port.main(json.loads(line))
        print(json.dumps([code, out.getvalue(), errors.getvalue()]), flush=True)


def recorded() -> dict[str, list[str]]:
    """The lines of each configuration in `golden.txt`; below `data`, the hash of what they read."""
    first, *lines = RECORD.read_text().splitlines()
    found: dict[str, list[str]] = {"data": [first.removeprefix("data ")]}
    for line in lines:
        if line.startswith("> "):
            found[line.removeprefix("> ").strip()] = []
        elif line:
            list(found.values())[-1].append(line)
    return found


def record() -> None:
    """Print `golden.txt`."""
    with tempfile.TemporaryDirectory() as folder:
        program = Program(Path(folder))
        print("data", program.data)
        for words in CONFIGURATIONS:
            print(f"\n> {words}", *program.digest(words), sep="\n")
        program.close()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else record()
