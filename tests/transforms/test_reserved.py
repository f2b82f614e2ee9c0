"""The memory that transforms reserve before they take it: not a byte less, and not one more."""

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from penstock.errors import DataError
from penstock.files.batch_bytes import BatchTooLargeError, bounded
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.order.randomness import KeyedRandom
from penstock.transforms.audio import Gain, LogMel, MaskFeatures, Noise, PadOrCrop, Standardize
from penstock.transforms.batch_colors import BatchNormalize
from penstock.transforms.image import Normalize
from penstock.transforms.mixing import MixUp
from penstock.transforms.resampling import resample
from penstock.transforms.text import Tokenize

LONG = (1 << 16) + 1  # characters


def audio(frames, channels=2, rate=100):
    return {"audio": torch.ones(channels, frames), "rate": rate}


def batch(rows=4):
    places = np.arange(rows)
    fields = {
        "image": torch.zeros(rows, 3, 2, 5, dtype=torch.uint8),
        "label": torch.arange(rows) % 2,
    }
    return Batch(fields, Request(0, 0, places, places, rows), places, kinds={"image": "image"})


def applied(step):
    return step(batch(), KeyedRandom.of(0, 0, np.arange(4), "x"))


FEATURES = {"features": torch.rand(3, 5)}
PICTURE = {"image": tv_tensors.Image(torch.zeros(3, 4, 5, dtype=torch.uint8))}


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: PadOrCrop(1.0)(audio(60)), 4 * 2 * 100),
        (lambda: PadOrCrop(1.0)(audio(100)), 0),
        (lambda: PadOrCrop(1.0)(audio(140)), 0),
        (lambda: Gain()(audio(60)), 480),
        (lambda: Noise()(audio(60)), 480 + 2 * 480),
        (
            lambda: LogMel(8000, n_fft=64, hop=16, n_mels=4)(audio(100, 1, 8000)),
            4 * 7 * 4 + 4 * (100 + 4 * 7 * 64),
        ),
        (  # so long that its spectrum is made in pieces
            lambda: LogMel(8000, n_fft=4, hop=1, n_mels=1, f_min=0)(audio(3000, 1, 8000)),
            4 * 3001 + 4 * (3000 + 4 * 2048 * 4),
        ),
        (lambda: Standardize()(FEATURES), 270),
        (lambda: MaskFeatures()(FEATURES), 60),
        (lambda: Normalize()(PICTURE), 8 * 60),
        (lambda: applied(BatchNormalize()), 4 * 4 * 30),
        (lambda: applied(MixUp(7)), 12 * 4 * 7),
        (lambda: Tokenize(kind="bytes")({"text": "a" * (LONG - 1)}), 0),
        (lambda: Tokenize(kind="bytes")({"text": "a" * LONG}), (8 + 1 + 10) * LONG),
        (lambda: Tokenize(kind="bytes")({"text": "é" * LONG}), (4 * 8 + 4 + 4 * 10) * LONG),
        (lambda: Tokenize(kind="words")({"text": "a" * LONG}), (8 + 1 + 36) * LONG),
        (
            lambda: Tokenize(kind="words", max_length=10)({"text": "é" * LONG}),
            8 * 10 + 4 * LONG + 36 * 10,
        ),
        # A filter is made; its stretches take more; without stretches, and the same for longer.
        (lambda: resample(torch.ones(1, 10), 8000, 16000), 4 * 20 + 64 * 2 * 70),
        (lambda: resample(torch.ones(2, 1000), 8000, 16000), 50048),
        (lambda: resample(torch.ones(2, 1000), 48000, 8000), 29824),
        (lambda: resample(torch.ones(2, 1000), 8001, 8000), 4 * 2000 + 64 * 8000 * 70),
        (
            lambda: resample(torch.ones(2, 40000), 8001, 8000),
            4 * 2 * 39996 + 4 * 70 * (2 * 2 * 39996 + 39996),
        ),
    ],
)
def test_as_many_bytes_as_are_taken(make, size):
    with bounded(size):
        make()
    if size:
        with bounded(size - 1), pytest.raises(BatchTooLargeError, match="would take"):
            make()


def test_a_filter_that_would_be_too_large_is_refused():
    with bounded(1000), pytest.raises(BatchTooLargeError, match="to make a filter for audio"):
        resample(torch.ones(1, 10), 119_838, 119_837)
    with pytest.raises(
        DataError,
        match="audio at 119839 Hz cannot be resampled to 119838 Hz: their ratio is 119838 / 119839",
    ):
        resample(torch.ones(1, 10), 119_839, 119_838)
