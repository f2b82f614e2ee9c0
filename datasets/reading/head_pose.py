"""Which way a head is turned, read off its 68 landmarks.

The tip of the nose is projected onto the line between the ends of the jaw: in the middle third of
it, the head looks ahead. Coarse, but a column to balance a sampler by, for nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

POSES = ("ahead", "left", "right")  # as seen in the image
_JAW_LEFT, _JAW_RIGHT, _NOSE_TIP = 0, 16, 30
_MIDDLE = (0.4, 0.6)


def head_poses(landmarks: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Pose of each face as a number in POSES: int64[N], from float[N, 68, 2]."""
    start, nose = landmarks[:, _JAW_LEFT], landmarks[:, _NOSE_TIP]
    jaw = landmarks[:, _JAW_RIGHT] - start
    length = np.maximum((jaw**2).sum(axis=1), 1e-9)
    place = ((nose - start) * jaw).sum(axis=1) / length
    return np.where(place < _MIDDLE[0], 1, np.where(place > _MIDDLE[1], 2, 0)).astype(np.int64)
