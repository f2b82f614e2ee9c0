"""A small folder of images with landmarks, written by tests."""

import csv

import numpy as np
from PIL import Image


def write_faces(folder, count=10, landmarks=68, order=None, seed=0):
    """Write `count` JPEGs (30 x 40 and up) and face_landmarks.csv, its rows in `order`."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    header = ["image_name", *(f"part_{part}_{axis}" for part in range(landmarks) for axis in "xy")]
    rows = []
    for number in range(count):
        pixels = random.integers(0, 256, (30 + number, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.jpg")
        rows.append([f"{number:02d}.jpg", *(100 * number + part for part in range(2 * landmarks))])
    write_csv(folder, [header, *(rows if order is None else [rows[place] for place in order])])
    return folder


def read_csv(folder):
    """The rows of face_landmarks.csv, header first, as lists of strings."""
    with (folder / "face_landmarks.csv").open(newline="") as file:
        return list(csv.reader(file))


def write_csv(folder, rows):
    """Write face_landmarks.csv anew."""
    with (folder / "face_landmarks.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
