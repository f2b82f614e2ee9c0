"""A face in three dimensions: 68 landmarks of the iBUG scheme, an identity, an expression, a pose.

Units: half the width of the face is 1; x to the right of the picture, y down, z towards the viewer,
and the centre of the head at the origin. The projection is orthographic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
Plane = npt.NDArray[np.float32]

# Rows of the outline from the ear down to the chin: half width, height, and the depth of the
# row's centre. The front of all rows lies at _FRONT.
_JAW_X = np.array([1.0, 0.985, 0.955, 0.89, 0.77, 0.60, 0.40, 0.20, 0.0])
_JAW_Y = np.array([-0.30, 0.02, 0.33, 0.62, 0.87, 1.07, 1.21, 1.30, 1.33])
_JAW_Z = np.array([-0.25, -0.22, -0.15, -0.05, 0.08, 0.22, 0.36, 0.48, 0.60])
_FRONT = 0.6  # the chin, which is a point, has no depth

# How far each row drops when the mouth opens.
_DROP = np.array([0.0, 0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0, 1.0])


@dataclass(frozen=True)
class Pose:
    """The place of the head in the picture.

    Attributes:
        rotation: float64[3, 3], from the head's axes to the picture's.
        scale: pixels a unit.
        origin: float64[2], pixels; the centre of the head.
    """

    rotation: Points
    scale: float
    origin: Points

    def project(self, points: Points) -> Points:
        """Points of the head, [n, 3], to pixels, [n, 2]."""
        return points @ self.rotation[:2].T * self.scale + self.origin

    @classmethod
    def drawn(cls, random: np.random.Generator, shape: FaceShape, size: int) -> Pose:
        """A random pose with all landmarks of `shape` in a picture of `size` pixels."""
        angles = np.radians(random.uniform([-38, -18, -25], [38, 18, 25]))
        rotation = cls.turned(*angles.tolist())
        marks = shape.landmarks(cls(rotation, 1.0, np.zeros(2)))
        low, high = marks.min(0), marks.max(0)
        scale = float(random.uniform(0.48, 0.80) * size / (high - low).max())
        margin = 0.03 * size
        origin = random.uniform(margin - low * scale, size - 1 - margin - high * scale)
        return cls(rotation, scale, origin)

    @staticmethod
    def turned(yaw: float, pitch: float, roll: float) -> Points:
        """The rotation of a head turned to the right, then nodding down, then tilted (radians)."""
        (sy, sp, sr), (cy, cp, cr) = np.sin([yaw, pitch, roll]), np.cos([yaw, pitch, roll])
        about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
        about_x = np.array([[1, 0, 0], [0, cp, sp], [0, -sp, cp]])
        about_z = np.array([[cr, -sr, 0], [sr, cr, 0], [0, 0, 1]])
        return np.asarray(about_z @ about_x @ about_y, dtype=np.float64)


@dataclass(frozen=True)
class FaceShape:
    """One face: its proportions (1 is the mean) and its expression."""

    length: float = 1.0
    jaw_width: float = 1.0
    eye_width: float = 1.0
    eye_distance: float = 1.0
    brow_height: float = 1.0
    nose_length: float = 1.0
    nose_width: float = 1.0
    mouth_width: float = 1.0
    lips: float = 1.0
    mouth_open: float = 0.0  # 0 closed, 1 wide open
    smile: float = 0.0  # -1 sad, 1 broad
    brow_raise: float = 0.0  # -1 frowning, 1 raised
    eyes_open: float = 1.0  # 0 closed

    @classmethod
    def drawn(cls, random: np.random.Generator) -> FaceShape:
        """Random: proportions near the mean, any expression."""
        near = dict.fromkeys(("length", "eye_distance"), 0.05)
        near |= dict.fromkeys(("jaw_width", "eye_width", "mouth_width", "nose_length"), 0.09)
        near |= {"brow_height": 0.12, "nose_width": 0.14, "lips": 0.2}
        traits = {name: float(1 + spread * random.uniform(-1, 1)) for name, spread in near.items()}
        closed = random.random() < 0.07
        return cls(
            **traits,
            mouth_open=float(max(0.0, random.uniform(-0.8, 1.0))),
            smile=float(random.uniform(-0.4, 1.0)),
            brow_raise=float(random.uniform(-0.8, 1.0)),
            eyes_open=float(random.uniform(0.0, 0.1) if closed else random.uniform(0.55, 1.3)),
        )

    def landmarks(self, pose: Pose) -> Points:
        """The 68 landmarks in pixels, [68, 2]."""
        features = [self.brows(), self.nose(), self.eyes(), self.mouth()]
        return np.concatenate([self.jaw(pose), pose.project(np.concatenate(features))])

    def jaw(self, pose: Pose) -> Points:
        """Landmarks 0 to 16 in pixels, [17, 2], on the visible edge of the face.

        Each row of the jaw is half an ellipse on the head, and its landmark the point of it that is
        outermost in the picture.
        """
        # A row is (x cos t, y, z + depth sin t), with the ear at t = 0. On the side that the head
        # turns to, its outermost point has tan t = tan(yaw) depth / x; on the other side, t = 0.
        x, y, z = self._jaw_rows()
        depth = _FRONT - z
        across, ahead = pose.rotation[2, 2], -pose.rotation[2, 0]  # cos and sin of yaw, scaled
        left = np.arctan2(np.maximum(-ahead * depth, 0.0), np.maximum(across * x, 1e-9))
        right = np.arctan2(np.maximum(ahead * depth, 0.0), np.maximum(across * x, 1e-9))
        points_left = np.stack([-x * np.cos(left), y, z + depth * np.sin(left)], axis=1)
        points_right = np.stack([x * np.cos(right), y, z + depth * np.sin(right)], axis=1)
        return pose.project(np.concatenate([points_left, points_right[-2::-1]]))

    def _jaw_rows(self) -> tuple[Points, Points, Points]:
        below = np.clip((_JAW_Y + 0.30) / 1.63, 0.0, 1.0)
        x = _JAW_X * (1.0 + (self.jaw_width - 1.0) * below * 1.3)
        y = -0.30 + (_JAW_Y + 0.30) * self.length + 0.24 * self.mouth_open * _DROP
        return x, y, _JAW_Z

    def brows(self) -> Points:
        """Landmarks 17 to 26, [10, 3]."""
        t = np.linspace(0.0, 1.0, 5)  # from the temple to the nose
        lift = 0.13 * self.brow_raise
        x = -(0.83 - 0.63 * t)
        y = -0.53 * self.brow_height - 0.13 * np.sin(np.pi * (0.15 + 0.7 * t)) - lift * (0.4 + t)
        z = 0.20 + 0.50 * np.sqrt(t)
        return _mirrored(np.stack([x, y, z], axis=1))

    def nose(self) -> Points:
        """Landmarks 27 to 35, [9, 3]: four down the bridge, five along the base."""
        tip = -0.27 + 0.57 * self.nose_length
        t = np.linspace(0.0, 1.0, 4)
        bridge = np.stack([0 * t, -0.27 + (tip + 0.27) * t, 0.66 + 0.36 * t**1.3], axis=1)
        t = np.linspace(-1.0, 1.0, 5)
        width = 0.25 * self.nose_width
        base = np.stack([width * t, tip + 0.10 + 0.07 * (1 - t**2), 0.86 - 0.24 * t**2], axis=1)
        return np.concatenate([bridge, base])

    def eyes(self) -> Points:
        """Landmarks 36 to 47, [12, 3]: each from its left corner over the upper lid."""
        centre, half = 0.45 * self.eye_distance, 0.215 * self.eye_width
        upper, lower = 0.115 * self.eyes_open, 0.015 + 0.055 * self.eyes_open
        left = np.array(
            [
                [-half, 0.0, -0.12],
                [-0.38 * half, -upper, 0.01],
                [0.38 * half, -upper, 0.03],
                [half, 0.02, 0.02],
                [0.36 * half, lower, 0.02],
                [-0.36 * half, lower, 0.0],
            ]
        ) + [-centre, -0.27, 0.50]
        mirrored = left * [-1, 1, 1]
        return np.concatenate([left, mirrored[[3, 2, 1, 0, 5, 4]]])

    def mouth(self) -> Points:
        """Landmarks 48 to 67, [20, 3]: the outer edge of the lips, then the inner one."""
        half = 0.37 * self.mouth_width * (1 + 0.22 * self.smile - 0.12 * self.mouth_open)
        level = -0.27 + (0.77 + 0.27) * self.length
        top, bottom = 0.10 * self.lips, 0.14 * self.lips
        gap_up, gap_down = 0.05 * self.mouth_open, 0.33 * self.mouth_open + 0.004
        corner = -0.14 * self.smile + 0.10 * self.mouth_open
        t = np.array([-1, -0.62, -0.24, 0, 0.24, 0.62, 1])
        bow = np.array([0.0, 0.72, 1.05, 0.92, 1.05, 0.72, 0.0])  # Cupid's
        upper = np.stack([half * t, level - (top + gap_up) * bow + corner * t**2], axis=1)
        t = np.array([0.62, 0.24, 0, -0.24, -0.62])
        fall = np.array([0.74, 1.0, 1.05, 1.0, 0.74])
        lower = np.stack([half * t, level + (bottom + gap_down) * fall + corner * t**2], axis=1)
        t = np.array([-0.86, -0.3, 0, 0.3, 0.86])
        inner_top = np.stack([half * t, level - gap_up * (1 - t**2) + corner * t**2], axis=1)
        t = np.array([0.3, 0.0, -0.3])
        inner_low = np.stack([half * t, level + gap_down * (1 - t**2) + corner * t**2], axis=1)
        flat = np.concatenate([upper, lower, inner_top, inner_low])
        depth = 0.74 - 1.1 * flat[:, :1] ** 2 - 0.12 * self.mouth_open * (flat[:, 1:] - level)
        return np.concatenate([flat, depth], axis=1)


def _mirrored(left: Points) -> Points:
    """Points of the left side and then, from the inside out, those of the right side."""
    return np.concatenate([left, (left * [-1, 1, 1])[::-1]])
