"""The head as an ellipsoid: its hair, its light, its outline."""

from __future__ import annotations

import numpy as np

from pipeline.datasets.drawn_faces.look import Look
from pipeline.datasets.drawn_faces.shape import Plane, Points, Pose

_CENTRE = np.array([0.0, -0.06, -0.16])
_RADII = np.array([1.06, 1.46, 1.06])


class Head:
    """The head as an ellipsoid, seen through the centre of each pixel."""

    def __init__(self, size: int, pose: Pose) -> None:
        across, down = (
            (np.arange(size, dtype=np.float32) - np.float32(centre)) / np.float32(pose.scale)
            for centre in pose.origin
        )
        # A pixel sees the points (x, y, z) of the picture for all z; in the head's axes, and with
        # the ellipsoid scaled to a ball, these are start + z * ahead.
        radii = _RADII.astype(np.float32)[:, None, None]
        to_ball = (pose.rotation / _RADII).astype(np.float32)[:, :, None, None]
        centre = _CENTRE.astype(np.float32)[:, None, None] / radii
        start = to_ball[0] * across[None, None, :] + to_ball[1] * down[None, :, None] - centre
        ahead = to_ball[2]
        a, b = float((ahead * ahead).sum()), (start * ahead).sum(0)
        inside = b * b - a * ((start * start).sum(0) - 1)
        ball = start + (np.sqrt(np.maximum(inside, 0)) - b) / a * ahead
        self._point: Plane = ball * radii  # [3, H, W], from the ellipsoid's centre
        normal = ball / radii
        normal /= np.sqrt((normal * normal).sum(0)) + 1e-6
        self._normal: Plane = normal  # [3, H, W], in the head's axes
        # Approximate distance of a pixel to the outline, in units; it softens the edge.
        edge = inside / np.sqrt(np.maximum(b * b + a, 1e-6))
        self._cover: Plane = np.clip(0.5 + edge * np.float32(pose.scale * 0.6), 0, 1)
        self._pose = pose

    def hair(self, look: Look, random: np.random.Generator) -> Plane:
        """The share of each pixel that hair covers, 0 to 1: float32[H, W]."""
        if look.bald:
            return np.zeros_like(self._cover)
        x, y, z = self._point
        around = np.arctan2(np.abs(x), np.maximum(z, 1e-3) + 0.05)  # 0 at the front
        waves = 0.05 * np.sin(around * random.uniform(3, 9) + random.uniform(0, 6))
        fall = 0.85 if look.hair_length < -0.5 else 1.5
        line = look.hairline + 0.10 * look.parting * x + waves + fall * (around / 1.5) ** 3
        covered = np.clip((line - y) * (self._pose.scale * 0.7), 0, 1)
        return (covered * self._cover).astype(np.float32)

    def hair_colour(self, look: Look, random: np.random.Generator) -> Plane:
        """The colour of hair in each pixel, with strands: float32[H, W, 3]."""
        x, y, _ = self._point
        angle = np.arctan2(y + 1.6, x - 0.6 * look.parting)
        strands = np.sin(angle * random.uniform(25, 45)) + np.sin(angle * random.uniform(60, 90))
        shine = 1.0 + 0.09 * strands + 0.35 * np.maximum(self._towards(look.light) - 0.75, 0)
        return (shine[..., None] * np.array(look.hair)).astype(np.float32)

    def light(self, look: Look) -> Plane:
        """The brightness of each pixel, float32[H, W]; 1, which is neutral, beside the head."""
        towards = np.maximum(self._towards(look.light), -0.2)
        lit = look.brightness * (1 + look.contrast * (towards - 0.7))
        return (1 + self._cover * (lit - 1)).astype(np.float32)

    def _towards(self, light: Points) -> Plane:
        """The cosine between the surface and a light in the picture's axes."""
        x, y, z = (self._pose.rotation.T @ light).astype(np.float32)
        return np.asarray(x * self._normal[0] + y * self._normal[1] + z * self._normal[2])


def head_outline(pose: Pose, enlarged: float) -> Points:
    """The outline of the head's ellipsoid in pixels, [n, 2]."""
    axes = pose.rotation[:2] * _RADII * enlarged * [0.97, 0.9, 0.97]
    # Its shadow is the ellipse of which axes @ axes.T is the matrix.
    half = np.linalg.cholesky(axes @ axes.T)
    t = np.linspace(0, 2 * np.pi, 64)
    centre = pose.project(_CENTRE[None] - [0, 0.08, 0])
    return np.asarray(np.stack([np.cos(t), np.sin(t)], axis=1) @ half.T * pose.scale + centre)
