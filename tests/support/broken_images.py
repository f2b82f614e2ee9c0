"""Folders of small JPEGs, and ways in which such files really break."""

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cat")


def write_images(root, count=36, size=24):
    """`count` noisy JPEGs in three classes; returns their paths in the order of ImageFolder."""
    noise = np.random.default_rng(0)
    for number in range(count):
        path = root / CLASSES[number % 3] / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = noise.integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, quality=90)
    return sorted(root.rglob("*.jpg"))


def cut(path):
    """The second half never came."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def zero_tail(path):
    """The second half was never written to the disk: it is zeros."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


def empty(path):
    path.write_bytes(b"")


def text(path):
    path.write_text("<!doctype html><p>404 not found")


def zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


WAYS = (cut, zero_tail, empty, text)


def damage(paths, rows):
    """Break the files at `rows`, each in another way."""
    for number, row in enumerate(rows):
        WAYS[number % len(WAYS)](paths[row])
