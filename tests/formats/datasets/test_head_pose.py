"""Head poses from landmarks."""

import numpy as np
import pandas as pd

from penstock.datasets.face_landmarks import POSES, head_poses
from penstock.datasets.reading.base import Shares
from penstock.datasets.synthetic_faces import SyntheticFaces


def face(nose, angle=0.0):
    """Jaw from 0 to 1 along x, the nose's tip at `nose`; turned in the plane by `angle`."""
    points = np.zeros((1, 68, 2))
    points[0, 16] = (1, 0)
    points[0, 30] = (nose, 0.4)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return points @ turn * 50 + 7


def test_the_nose_tells_the_pose_whatever_the_roll():
    for angle in (0, 0.5, -1.2):
        got = [POSES[int(head_poses(face(nose, angle))[0])] for nose in (0.5, 0.2, 0.9)]
        assert got == ["ahead", "left", "right"]


def test_drawn_faces_have_poses_to_balance_by(tmp_path):
    table = SyntheticFaces(str(tmp_path), count=60, size=32, shares=Shares(0)).metadata
    assert isinstance(table, pd.DataFrame)
    counts = table["pose"].value_counts()
    assert set(counts.index) == set(POSES)
    assert list(table["pose"]) == [POSES[label] for label in table["label"]]
