"""Mean and standard deviation of the training images, computed once and kept as JSON.

Threads decode; sums are added in the order of the rows, so their number does not change the result.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from penstock.errors import DataError
from penstock.files.disk import prepare, write_atomically
from penstock.loading.encoded import EncodedImage
from penstock.loading.facts import Fields
from penstock.order.keys import begin_sample, sample_keys
from penstock.terminal import watched

_TOGETHER = 256  # images whose sums are computed before they are added
_NOISE = 1e-11  # relative deviation of float64 numbers that differ by little more than rounding
_HALF_A_LEVEL = 12**-0.5 / 255  # deviation that rounding to bytes gives, of 1


def scales(
    deviations: npt.ArrayLike, largest: npt.ArrayLike, noise: float = _NOISE
) -> npt.NDArray[np.float64]:
    """What to divide by: the deviations, and 1 where they are no more than rounding.

    A constant divided by its own rounding errors would be noise in training, and another value
    later any number of deviations away.

    Args:
        deviations: standard deviations, of any shape.
        largest: of the same shape, the largest absolute value of the numbers that they are of.
        noise: as a share of `largest`, what rounding explains.
    """
    deviations = np.asarray(deviations, np.float64)
    return np.where(deviations > noise * np.abs(largest), deviations, 1.0)


def statistics_of(
    dataset: Any,
    cache_dir: str | Path,
    fingerprint: str | None = None,
    names: Fields | None = None,
) -> dict[str, list[float]]:
    """Per-channel statistics of all images of `dataset`, scaled to [0, 1].

    Args:
        dataset: the training split, untransformed; its samples hold one uint8 [C, H, W] image.
        cache_dir: the result is kept in `statistics/<fingerprint>.json` there.
        fingerprint: of the data; None takes `data.fingerprint`. Without one, or if it is "", the
            result is not kept.
        names: for samples that are not dicts.

    Returns:
        {"mean": [C], "std": [C]}; every pixel has the same weight, so large images have more. The
        std of a constant channel is 1.

    Raises:
        DataError: a sample has no image, or one cannot be read.
        DiskError: the result cannot be written.
    """
    named = getattr(dataset, "fingerprint", None) if fingerprint is None else fingerprint
    path = Path(cache_dir).expanduser() / "statistics" / f"{named}.json"
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError):  # there is none, or a damaged one
        kept = _computed(dataset, names or Fields())
        if named:
            prepare(path.parent)
            write_atomically(path, f"{json.dumps(kept, indent=2)}\n".encode())
    return {"mean": kept["mean"], "std": scales(kept["std"], 1.0, _HALF_A_LEVEL).tolist()}


def _computed(dataset: Any, names: Fields) -> dict[str, list[float]]:
    def sums(row: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        begin_sample(int(sample_keys(0, 0, np.array([row]))[0]))  # as `Fetch` does in workers
        values = names.named(dataset[row]).values()
        decoded = (one.decode() if isinstance(one, EncodedImage) else one for one in values)
        images = [v for v in decoded if isinstance(v, (tv_tensors.Image, tv_tensors.Video))]
        if not images:
            raise DataError(f"sample {row} has no image to normalise by statistics of the dataset")
        # In units of bytes, as if `Normalize` had not brought them to [0, 1].
        unit = {torch.uint8: 1.0, torch.uint16: 1 / 257}.get(images[0].dtype, 255.0)
        pixels = images[0].as_subclass(torch.Tensor).movedim(-3, 0).flatten(1).double() * unit
        return pixels.shape[1], pixels.sum(1), (pixels**2).sum(1)

    rows, count, total, squares = range(len(dataset)), 0, torch.zeros(()), torch.zeros(())
    pieces = [rows[start : start + _TOGETHER] for start in rows[::_TOGETHER]]
    with ThreadPoolExecutor() as pool:
        # A piece at a time, as `map` would begin all rows at once and keep their sums.
        for piece in watched(pieces, len(pieces), "computing image statistics"):
            for image_count, image_total, image_squares in pool.map(sums, piece):
                count, total = count + image_count, total + image_total
                squares = squares + image_squares
    mean = total / count
    # Rounding may leave a constant channel a negative variance.
    deviation = (squares / count - mean**2).clamp(min=0).sqrt()
    return {"mean": (mean / 255).tolist(), "std": (deviation / 255).tolist()}
