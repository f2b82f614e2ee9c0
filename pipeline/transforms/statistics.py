"""Mean and standard deviation of the training images, computed once and kept as JSON.

Threads decode; sums are added in the order of the rows, so their number does not change the result.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from penstock.errors import DataError
from penstock.files.disk import prepare, write_atomically
from penstock.files.encoded import EncodedImage
from penstock.loading.fields import Fields
from penstock.order.keys import begin_sample, sample_keys
from penstock.terminal import watched

log = logging.getLogger(__name__)

Sums = tuple[int, torch.Tensor, torch.Tensor]
_AHEAD = 4  # images in flight per thread
_NOISE = (
    1e-11  # relative deviation of float64 numbers that differ by rounding alone, or little more
)
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
        DataError: there are no images, one cannot be read, or the kept file is damaged.
        DiskError: the result cannot be written.
    """
    folder = Path(cache_dir).expanduser() / "statistics"
    named = getattr(dataset, "fingerprint", None) if fingerprint is None else fingerprint
    path = folder / f"{named}.json"
    if named and os.path.lexists(path):
        return _usable(_kept(path))
    log.info("computing image statistics of %d training samples", len(dataset))
    result = _computed(dataset, names or Fields())
    if named:
        prepare(folder)
        write_atomically(path, (json.dumps(result, indent=2) + "\n").encode())
    return _usable(result)


def _usable(found: dict[str, list[float]]) -> dict[str, list[float]]:
    """The statistics with scales instead of deviations; says which channels are constant."""
    usable = scales(found["std"], 1.0, _HALF_A_LEVEL).tolist()
    for channel, (mean, old, new) in enumerate(
        zip(found["mean"], found["std"], usable, strict=True)
    ):
        if old != new:
            log.warning(
                "channel %d of the training images is constant, %.4g of 1, so statistics=dataset "
                "does not scale it",
                channel,
                mean,
            )
    return {**found, "std": usable}


def _kept(path: Path) -> dict[str, list[float]]:
    """The statistics in a file."""
    try:
        kept = json.loads(path.read_bytes())
        numbers = {key: [float(value) for value in kept[key]] for key in ("mean", "std")}
        if len(numbers["mean"]) == len(numbers["std"]) and np.isfinite([*numbers.values()]).all():
            return numbers
        reason: object = "it has not as many finite means as deviations"
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = getattr(error, "strerror", None) or error
    raise DataError(f"{path} is damaged: {reason}. Delete it to compute it again")


def _computed(dataset: Any, names: Fields) -> dict[str, list[float]]:
    pixels, total, squares = 0, torch.zeros(()), torch.zeros(())
    total_rows = len(dataset)
    shown = watched(_sums(dataset, names), total_rows, "computing image statistics")
    for count, sums, square_sums in shown:
        pixels, total, squares = pixels + count, total + sums, squares + square_sums
    if not pixels:
        raise DataError("there are no training samples to compute image statistics from")
    mean = total / pixels
    variance = (squares / pixels - mean**2).clamp(min=0)
    return {"mean": (mean / 255).tolist(), "std": (variance.sqrt() / 255).tolist()}


def _sums(dataset: Any, names: Fields) -> Iterator[Sums]:
    """Sums of each image in the order of rows, a few images ahead."""
    threads = os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[Sums]] = deque()
        for row in range(len(dataset)):
            pending.append(pool.submit(_image_sums, dataset, row, names))
            if len(pending) > threads * _AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _image_sums(dataset: Any, row: int, names: Fields) -> Sums:
    begin_sample(int(sample_keys(0, 0, np.array([row]))[0]))  # as `Fetch` does in workers
    return _sums_of(names.named(dataset[row]), f"sample {row} ")


def _sums_of(sample: Any, who: str) -> Sums:
    decoded = (v.decode() if isinstance(v, EncodedImage) else v for v in sample.values())
    images = [v for v in decoded if isinstance(v, (tv_tensors.Image, tv_tensors.Video))]
    if not images:
        raise DataError(f"{who}has no image to normalise by statistics of the dataset")
    # In units of bytes, as if `Normalize` had not brought them to [0, 1].
    unit = {torch.uint8: 1.0, torch.uint16: 1 / 257}.get(images[0].dtype, 255.0)
    values = images[0].as_subclass(torch.Tensor).movedim(-3, 0).flatten(1).double() * unit
    return values.shape[1], values.sum(1), (values**2).sum(1)
