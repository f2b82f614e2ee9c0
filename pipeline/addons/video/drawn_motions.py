"""Short drawn videos of a shape that moves, in MP4: data without a download.

    still, straight, circling, growing, shrinking, turning

No frame alone tells which; and neither a mirrored nor a cropped clip belongs to another class. The
first use writes them into a folder of `root` that is named by its arguments; later uses, of any run
of this user, read it. Cost: 20 ms and 10 kB a video of 64 px and 48 frames, once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np

from penstock.addons.video.clips import Frames
from penstock.datasets.files import generated_data
from penstock.datasets.image_folder import ImageFolder
from penstock.datasets.reading.base import Shares, Split
from penstock.files.limits import DEFAULT, Count, Limits, Seed
from penstock.order.keys import hash64
from penstock.terminal import watched

VERSION = 1  # raise it when the drawings change
MOTIONS = ("still", "straight", "circling", "growing", "shrinking", "turning")
FRAMES = 48  # of a video


class DrawnMotions(ImageFolder):
    """A triangle, square or pentagon of any colour that moves in one of six ways, with noise.

    Samples as in `ImageFolder`, to be read by `DecodeClip`. Video `i` is a function of (seed, i,
    size), so a larger `count` begins with the same videos; its class is `i` modulo 6.

    Args:
        root: folder that the data is written to, in one subfolder for each set of arguments; None:
            in the user's cache (see `penstock.datasets.files.generated_data`).
        count: of videos of all splits.
        pixels: height and width.
        seed: other videos for another seed.
        split, shares, lazy, limits: as in `ImageFolder`.

    Raises:
        DataError: the data cannot be written.
    """

    def __init__(
        self,
        root: str | None = None,
        split: Split = "train",
        count: Count = 600,
        pixels: Count = 64,
        seed: Seed = 0,
        shares: Shares = Shares(),
        lazy: bool = False,
        limits: Limits = DEFAULT,
    ) -> None:
        with generated_data(
            root,
            "drawn_motions",
            f"{count}x{pixels}-seed{seed}-v{VERSION}",
            lambda folder: _write(folder, count, pixels, seed),
        ) as made:
            super().__init__(
                made,
                split,
                extensions=[".mp4"],
                shares=shares,
                lazy=lazy,
                limits=limits,
            )


def _write(folder: Path, count: int, size: int, seed: int) -> None:
    for number in watched(range(count), count, "drawing videos"):
        motion = MOTIONS[number % len(MOTIONS)]
        path = folder / motion / f"video_{number:06d}.mp4"
        path.parent.mkdir(exist_ok=True)
        # A key for each video, so that it does not depend on those before it.
        random = np.random.default_rng(hash64(seed, "motion", number))
        write_video(path, video(motion, size, random), key_frames=12)


def video(motion: str, size: int, random: np.random.Generator) -> Frames:
    """The frames of a video, uint8 [FRAMES, size, size, 3]."""
    time = np.linspace(0, 1, FRAMES)[:, None]  # [FRAMES, 1], as are the others that change
    centre, radius = random.uniform(0.35, 0.65, (1, 2)), random.uniform(0.13, 0.2, (1, 1))
    angle = random.uniform(0, 2 * np.pi)
    if motion == "straight":
        way = random.uniform(0, 2 * np.pi)
        reach = random.uniform(0.35, 0.5) * (time - 0.5) * [[np.cos(way), np.sin(way)]]
        centre = 0.5 + (centre - 0.5) * 0.3 + reach
    elif motion == "circling":
        turn = (
            random.choice([-1, 1]) * random.uniform(1.2, 2.0) * 2 * np.pi * time
            + random.uniform(0, 2 * np.pi)  # where it begins
        )
        around = random.uniform(0.13, 0.2) * np.hstack([np.cos(turn), np.sin(turn)])
        centre = 0.5 + (centre - 0.5) * 0.3 + around
    elif motion in ("growing", "shrinking"):
        step = 1 if motion == "growing" else -1
        radius = np.geomspace(0.08, random.uniform(0.26, 0.34), FRAMES)[::step, None]
    elif motion == "turning":
        angle = angle + random.choice([-1, 1]) * random.uniform(0.7, 1.2) * 2 * np.pi * time
    # The order of draws is part of VERSION.
    sides = int(random.choice((3, 4, 5)))
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
    path: Path, frames: Frames, key_frames: int, codec: str = "mpeg4", rate: int = 24
) -> None:
    """Write frames, uint8 [T, H, W, 3], with a key frame in so many at most."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(
            codec,
            rate=rate,
            height=frames.shape[1],
            width=frames.shape[2],
            pix_fmt="yuv420p",
            gop_size=key_frames,
            bit_rate=rate * frames[0].size,
        )
        # Threads would divide the frames otherwise, and the bytes would depend on the cores.
        stream.codec_context.thread_count = 1
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
