"""Short drawn videos of a shape that moves, in MP4: data without a download.

    still, straight, circling, growing, shrinking, turning

No frame alone tells which; and neither a mirrored nor a cropped clip belongs to another class. The
first use writes them into a folder of `root` that is named by its arguments; later uses, of any run
of this user, read it. Cost: 20 ms and 10 kB a video of 64 px and 48 frames, once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import av
import numpy as np
import numpy.typing as npt
from pydantic import Field

from penstock.addons.video.clips import VideoClips
from penstock.datasets.files import generated_data
from penstock.datasets.reading.base import Split
from penstock.files.limits import DEFAULT, Count, Fraction, Limits, Seed
from penstock.order.keys import hash64
from penstock.terminal import watched

VERSION = 1  # raise it when the drawings change
MOTIONS = ("still", "straight", "circling", "growing", "shrinking", "turning")
FRAMES = 48  # of a video
_KEY_FRAMES = 12  # one in so many
_SIDES = (3, 4, 5)

Pixels = npt.NDArray[np.uint8]


class DrawnMotions(VideoClips):
    """A triangle, square or pentagon of any colour that moves in one of six ways, with noise.

    Samples as in `VideoClips`. Video `i` is a function of (seed, i, size), so a larger `count`
    begins with the same videos; its class is `i` modulo 6.

    Args:
        root: folder that the data is written to, in one subfolder for each set of arguments; None:
            in the user's cache (see `penstock.datasets.files.generated_data`).
        count: of videos of all splits, 6 or more.
        pixels: height and width, 32 to 256, even.
        seed: other videos for another seed.
        split, frames, stride, size, val_fraction, split_seed, limits, test_fraction:
            as in `VideoClips`.

    Raises:
        DataError: the data cannot be written.
    """

    def __init__(
        self,
        root: str | None = None,
        split: Split = "train",
        count: Annotated[int, Field(ge=len(MOTIONS))] = 600,
        pixels: Annotated[int, Field(ge=32, le=256, multiple_of=2)] = 64,
        seed: Seed = 0,
        frames: Count = 8,
        stride: Count = 3,
        size: Count | None = None,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        name = f"{count}x{pixels}-seed{seed}-v{VERSION}"
        with generated_data(
            root, "drawn_motions", name, lambda folder: _write(folder, name, count, pixels, seed)
        ) as made:
            super().__init__(
                made,
                split,
                frames=frames,
                stride=stride,
                size=size,
                val_fraction=val_fraction,
                split_seed=split_seed,
                limits=limits,
                test_fraction=test_fraction,
            )


def _write(folder: Path, name: str, count: int, size: int, seed: int) -> None:
    for motion in MOTIONS:
        (folder / motion).mkdir()
    for number in watched(range(count), count, "drawing videos"):
        motion = MOTIONS[number % len(MOTIONS)]
        random = np.random.default_rng(hash64(seed, "motion", number))
        path = folder / motion / f"video_{number:06d}.mp4"
        write_video(path, list(video(motion, size, random)), _KEY_FRAMES)


def video(motion: str, size: int, random: np.random.Generator) -> Pixels:
    """The frames of a video, uint8 [FRAMES, size, size, 3]."""
    time = np.linspace(0, 1, FRAMES)[:, None]  # [FRAMES, 1], as are the others that change
    centre, radius = random.uniform(0.35, 0.65, (1, 2)), random.uniform(0.13, 0.2, (1, 1))
    angle = random.uniform(0, 2 * np.pi)
    if motion == "straight":
        way = random.uniform(0, 2 * np.pi)
        reach = random.uniform(0.35, 0.5) * (time - 0.5)
        centre = 0.5 + (centre - 0.5) * 0.3 + reach * [[np.cos(way), np.sin(way)]]
    elif motion == "circling":
        turn = random.choice([-1, 1]) * random.uniform(1.2, 2.0) * 2 * np.pi * time
        turn += random.uniform(0, 2 * np.pi)
        around = random.uniform(0.13, 0.2)
        centre = 0.5 + (centre - 0.5) * 0.3 + around * np.hstack([np.cos(turn), np.sin(turn)])
    elif motion in ("growing", "shrinking"):
        sizes = np.geomspace(0.08, random.uniform(0.26, 0.34), FRAMES)[:, None]
        radius = sizes if motion == "growing" else sizes[::-1]
    elif motion == "turning":
        angle = angle + random.choice([-1, 1]) * random.uniform(0.7, 1.2) * 2 * np.pi * time
    # The order of draws is part of VERSION.
    sides = int(random.choice(_SIDES))
    ground = random.uniform(40, 200, 3)
    color = (ground + random.choice([-1, 1], 3) * random.uniform(70, 110, 3)) % 256
    across = (np.arange(size) + 0.5) / size
    x, y = across - centre[:, :1], across - centre[:, 1:]
    inside = np.ones((FRAMES, size, size), np.bool_)
    for side in range(sides):
        facing = angle + side * (2 * np.pi / sides)
        inner = radius * np.cos(np.pi / sides) - y * np.sin(facing)
        inside &= (x * np.cos(facing))[:, None, :] <= inner[:, :, None]
    noise = random.normal(0, 6, (size, size, 3))  # of a camera at rest
    shades = [(shade + noise).round().clip(0, 255).astype(np.uint8) for shade in (color, ground)]
    return np.where(inside[..., None], *shades)


def write_video(
    path: Path, frames: list[Pixels], key_frames: int, codec: str = "mpeg4", rate: int = 24
) -> None:
    """Write frames, uint8 [H, W, 3] each, with a key frame in so many at most."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.gop_size = "yuv420p", key_frames
        stream.bit_rate = rate * frames[0].size
        # Threads would divide the frames otherwise, and the bytes would depend on the cores.
        stream.codec_context.thread_count = 1
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
