"""Draws one face as a picture whose landmarks are known exactly.

A background with clutter; the person as filled shapes, from the projected landmarks themselves,
three times as large as the picture and then averaged down; soft shadows and blush; hair and light
from the head's ellipsoid; white balance, noise and blur. Points are float64[n, 2] in pixels of the
picture; pixel (0, 0) has its centre at (0, 0). Cost: 7 ms for 128 px on one core.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from penstock.datasets.drawn_faces.look import Colour, Look, mixed, muted, shade
from penstock.datasets.drawn_faces.shape import FaceShape, Plane, Points, Pose

FINE = 3  # the scale at which shapes are drawn
_CENTRE = np.array([0.0, -0.06, -0.16])  # of the head, an ellipsoid
_RADII = np.array([1.06, 1.46, 1.06])
_TURN = np.linspace(0, 2 * np.pi, 20, endpoint=False)
_CIRCLE = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=1)


class Canvas:
    """A picture on which shapes are drawn enlarged, to be averaged down."""

    def __init__(self, picture: Image.Image, size: int) -> None:
        self.image = picture.resize((size * FINE, size * FINE), Image.Resampling.NEAREST)
        self._draw = ImageDraw.Draw(self.image)

    def fill(self, points: Points, colour: Colour) -> None:
        """A filled polygon."""
        self._draw.polygon(enlarged(points), fill=colour)

    def line(self, points: Points, colour: Colour, width: float) -> None:
        """A line of `width` pixels of the final picture."""
        pixels = max(1, round(width * FINE))
        self._draw.line(enlarged(points), fill=colour, width=pixels, joint="curve")

    def within(self, masks: Sequence[Points], layer: Image.Image) -> None:
        """Paste `layer` where the polygons `masks` are."""
        mask = Image.new("1", self.image.size)
        draw = ImageDraw.Draw(mask)
        for points in masks:
            draw.polygon(enlarged(points), fill=1)
        self.image.paste(layer, (0, 0), mask)

    def averaged(self) -> Plane:
        """The final picture, float32[H, W, 3]."""
        return np.asarray(self.image.reduce(FINE), np.float32).copy()


def enlarged(points: Points) -> list[float]:
    """Points on the enlarged picture, as x, y, x, y ... for Pillow."""
    # The centre of pixel p lies at 3 p + 1 among the fine ones; Pillow truncates the coordinates of
    # corners, so a half is added to round them.
    fine: list[float] = (points * FINE + (FINE - 1) / 2 + 0.5).ravel().tolist()
    return fine


def smooth(points: Points, closed: bool = False, steps: int = 5) -> Points:
    """A Catmull-Rom curve through `points` [n, 2], with `steps` pieces between two of them."""
    if closed:
        before, start, end, after = (np.roll(points, shift, 0) for shift in (1, 0, -1, -2))
    else:
        padded = np.concatenate([points[:1], points, points[-1:]])
        before, start, end, after = padded[:-3], padded[1:-2], padded[2:-1], padded[3:]
    t = (np.arange(steps) / steps)[:, None, None]
    curve = 0.5 * (
        2 * start
        + (end - before) * t
        + (2 * before - 5 * start + 4 * end - after) * t**2
        + (3 * start - before - 3 * end + after) * t**3
    )
    flat = curve.transpose(1, 0, 2).reshape(-1, 2)
    return np.asarray(flat if closed else np.concatenate([flat, points[-1:]]), np.float64)


def disc(centre: Points, across: float, down: float) -> Points:
    """An ellipse around `centre` [2] with these half axes."""
    return np.asarray(_CIRCLE * (across, down) + centre)


def draw_face(
    size: int, shape: FaceShape, look: Look, pose: Pose, random: np.random.Generator
) -> Image.Image:
    """The picture of a face: RGB, `size` x `size`."""
    marks = shape.landmarks(pose)
    canvas = Canvas(background(size, random), size)
    head = Head(size, pose)
    _draw_person(canvas, look, pose, marks)
    picture = canvas.averaged()
    _shade_softly(picture, pose, marks)
    hair = head.hair(look, random)
    picture += hair[..., None] * (head.hair_colour(look, random) - picture)
    picture *= head.light(look)[..., None]
    return _photographed(picture, random)


def background(size: int, random: np.random.Generator) -> Image.Image:
    """A gradient, soft blobs and some sharp shapes: RGB, `size` x `size`."""
    corners = np.array([muted(random) for _ in range(4)], np.uint8)
    soft = Image.fromarray(corners.reshape(2, 2, 3)).resize((64, 64), Image.Resampling.BILINEAR)
    draw = ImageDraw.Draw(soft)
    for _ in range(random.integers(2, 9)):
        _draw_clutter(draw, 64, random)
    soft = soft.filter(ImageFilter.GaussianBlur(float(random.uniform(0.5, 4))))
    picture = soft.resize((size, size), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    for _ in range(random.integers(0, 4)):
        _draw_clutter(draw, size, random)
    return picture


def _draw_clutter(draw: ImageDraw.ImageDraw, size: int, random: np.random.Generator) -> None:
    colour = muted(random)
    x, y = random.uniform(-0.1, 1.1, 2) * size
    width, height = random.uniform(0.06, 0.4, 2) * size
    kind = random.integers(4)
    if kind < 2:
        box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        (draw.ellipse if kind == 0 else draw.rectangle)(box, fill=colour)
    elif kind == 2:
        corners = random.uniform(-0.3, 0.3, (3, 2)) * size + [x, y]
        draw.polygon(corners.ravel().tolist(), fill=colour)
    else:
        end = random.uniform(-0.2, 1.2, 2) * size
        draw.line([x, y, *end.tolist()], fill=colour, width=max(1, int(width / 6)))


def _draw_person(canvas: Canvas, look: Look, pose: Pose, marks: Points) -> None:
    _draw_body(canvas, look, pose)
    for side in (-1.0, 1.0):
        _draw_ear(canvas, look, pose, side)
    canvas.fill(head_outline(pose, 0.985), look.skin)
    jaw = smooth(marks[:17])
    forehead = pose.project(np.array([[0.86, -1.0, 0.1], [0.0, -1.3, 0.3], [-0.86, -1.0, 0.1]]))
    canvas.fill(np.concatenate([jaw, forehead]), look.skin)
    if look.beard > 0.15:
        _draw_beard(canvas, look, pose, marks)
    _draw_nose(canvas, look, pose, marks)
    _draw_eyes(canvas, look, pose, marks)
    _draw_brows(canvas, look, pose, marks)
    _draw_mouth(canvas, look, pose, marks)
    if look.glasses:
        _draw_glasses(canvas, pose)


def _draw_body(canvas: Canvas, look: Look, pose: Pose) -> None:
    # The shoulders follow a part of the head's turn only.
    upright = np.eye(3) * 0.65 + pose.rotation * 0.35
    body = Pose(upright, pose.scale, pose.origin)
    if look.hair_length > -0.5:
        t = np.linspace(0, 2 * np.pi, 40)
        low = look.hair_length
        x, y = 1.22 * np.sin(t), (low - 1.5) / 2 + (low + 1.6) / 2 * np.cos(t)
        canvas.fill(body.project(np.stack([x, y, 0 * t - 0.3], axis=1)), shade(look.hair, 0.72))
    neck = np.array([[-0.58, 0.4, -0.35], [-0.58, 1.7, -0.35], [-0.75, 2.3, -0.35]])
    neck = np.concatenate([neck, (neck * [-1, 1, 1])[::-1]])
    shoulders = np.array(
        [
            [-2.6, 6, -0.35],
            [-2.3, 2.5, -0.35],
            [-1.6, 2.0, -0.35],
            [-0.7, 1.82, -0.35],
            [0, 2.25, -0.35],
        ]
    )
    shoulders = np.concatenate([shoulders, (shoulders * [-1, 1, 1])[-2::-1]])
    canvas.fill(body.project(neck), shade(look.skin, 0.78))
    canvas.fill(smooth(body.project(shoulders)), look.clothes)


def _draw_ear(canvas: Canvas, look: Look, pose: Pose, side: float) -> None:
    t = np.linspace(0, 2 * np.pi, 24)
    ring = np.stack(
        [side * (1.08 - 0.12 * np.sin(t)), -0.1 + 0.29 * np.cos(t), -0.28 + 0.14 * np.sin(t)],
        axis=1,
    )
    outline = pose.project(ring)
    canvas.fill(outline, shade(look.skin, 0.9))
    canvas.fill(outline.mean(0) + (outline - outline.mean(0)) * 0.55, shade(look.skin, 0.74))


def _draw_beard(canvas: Canvas, look: Look, pose: Pose, marks: Points) -> None:
    # Fair hair on darker skin would look like paint.
    fair = sum(look.hair) > 0.8 * sum(look.skin)
    colour = mixed(look.skin, shade(look.skin, 0.5) if fair else look.hair, look.beard)
    chin = marks[2:15]
    cheeks = pose.project(np.array([[0.6, 0.7, 0.42], [-0.6, 0.7, 0.42]]))
    below_nose = marks[[35, 33, 31]] + (marks[51] - marks[33]) * 0.35
    canvas.fill(smooth(np.concatenate([chin, cheeks[:1], below_nose, cheeks[1:]])), colour)


def _draw_nose(canvas: Canvas, look: Look, pose: Pose, marks: Points) -> None:
    unit = pose.scale
    edge = marks[31] if look.light[0] > 0 else marks[35]  # of the side away from the light
    bridge = marks[27] + (marks[28] - marks[27]) * 0.3
    canvas.fill(np.stack([bridge, marks[30], edge]), shade(look.skin, 0.88))
    canvas.fill(smooth(marks[[31, 32, 33, 34, 35, 30]], closed=True), shade(look.skin, 0.95))
    canvas.line(smooth(marks[31:36]), shade(look.skin, 0.72), 0.05 * unit)
    for first, second in ((31, 33), (33, 35)):
        nostril = (marks[first] + marks[second]) / 2
        canvas.fill(disc(nostril, 0.055 * unit, 0.035 * unit), shade(look.skin, 0.4))
    canvas.fill(disc(marks[30], 0.07 * unit, 0.06 * unit), shade(look.skin, 1.12))


def _draw_eyes(canvas: Canvas, look: Look, pose: Pose, marks: Points) -> None:
    unit = pose.scale
    eyes = [marks[36:42], marks[42:48]]
    layer = Image.new("RGB", canvas.image.size, (240, 238, 234))
    draw = ImageDraw.Draw(layer)
    for eye in eyes:
        width = (eye[3] - eye[0]) / 2
        centre = (eye[0] + eye[3]) / 2 + width * look.gaze[0] - [0, 0.03 * unit]
        centre = centre + [0, look.gaze[1] * 0.1 * unit]
        for radius, colour in ((0.115, shade(look.iris, 0.6)), (0.1, look.iris), (0.05, (8, 8, 8))):
            draw.polygon(enlarged(disc(centre, radius * unit, radius * unit)), fill=colour)
        glint = centre + [0.04 * unit * np.sign(look.light[0]), -0.035 * unit]
        draw.polygon(enlarged(disc(glint, 0.025 * unit, 0.025 * unit)), fill=(250, 250, 250))
    canvas.within([smooth(eye, closed=True) for eye in eyes], layer)
    for eye in eyes:
        canvas.line(smooth(eye[[0, 5, 4, 3]]), shade(look.skin, 0.6), 0.02 * unit)
        canvas.line(smooth(eye[:4]), shade(look.skin, 0.25), 0.045 * unit)
        crease = smooth(eye[:4] - [0, 0.075 * unit])
        canvas.line(crease, shade(look.skin, 0.8), 0.02 * unit)


def _draw_brows(canvas: Canvas, look: Look, pose: Pose, marks: Points) -> None:
    colour = shade(look.hair, 0.75)
    for brow in (marks[17:22], marks[26:21:-1]):
        line = smooth(brow)
        along = np.gradient(line, axis=0)
        across = np.stack([-along[:, 1], along[:, 0]], axis=1)
        across /= np.linalg.norm(across, axis=1, keepdims=True) + 1e-9
        half = 0.055 * pose.scale * np.sin(np.pi * np.linspace(0.12, 0.75, len(line)))[:, None]
        canvas.fill(np.concatenate([line + across * half, (line - across * half)[::-1]]), colour)


def _draw_mouth(canvas: Canvas, look: Look, pose: Pose, marks: Points) -> None:
    unit = pose.scale
    outer, inner = marks[48:60], marks[60:68]
    canvas.fill(smooth(outer, closed=True), look.lips)
    upper = np.concatenate([smooth(outer[:7]), smooth(inner[:5])[::-1]])
    canvas.fill(upper, shade(look.lips, 0.82))
    layer = Image.new("RGB", canvas.image.size, (70, 22, 26))
    draw = ImageDraw.Draw(layer)
    if look.teeth:
        down = (inner[6] - inner[2]) / (np.linalg.norm(inner[6] - inner[2]) + 1e-9)
        band = np.concatenate([inner[:5] - down * unit, (inner[:5] + down * 0.11 * unit)[::-1]])
        draw.polygon(enlarged(band), fill=(238, 234, 224))
    tongue = inner[6] + (inner[2] - inner[6]) * 0.12
    draw.polygon(enlarged(disc(tongue, 0.2 * unit, 0.1 * unit)), fill=(176, 74, 78))
    canvas.within([smooth(inner, closed=True)], layer)
    canvas.line(smooth(inner[:5]), shade(look.lips, 0.5), 0.025 * unit)
    canvas.fill(disc((outer[9] + inner[6]) / 2, 0.1 * unit, 0.022 * unit), shade(look.lips, 1.18))


def _draw_glasses(canvas: Canvas, pose: Pose) -> None:
    t = np.linspace(0, 2 * np.pi, 33)
    x, y = np.cos(t), np.sin(t)
    x, y = np.sign(x) * np.abs(x) ** 0.7 * 0.31, np.sign(y) * np.abs(y) ** 0.7 * 0.24
    dark, width = (30, 28, 30), 0.045 * pose.scale
    for side in (-1.0, 1.0):
        rim = np.stack([side * 0.45 + x, -0.25 + y, 0.68 - 0.25 * np.abs(side * 0.45 + x)], axis=1)
        canvas.line(pose.project(rim), dark, width)
        temple = np.array([[side * 0.76, -0.3, 0.49], [side * 1.03, -0.3, 0.0]])
        canvas.line(pose.project(temple), dark, width)
    canvas.line(pose.project(np.array([[-0.14, -0.28, 0.68], [0.14, -0.28, 0.68]])), dark, width)


def _shade_softly(picture: Plane, pose: Pose, marks: Points) -> None:
    """Darken sockets, the side of the nose, below the lips and the jaw, and redden the cheeks."""
    unit, size = pose.scale, picture.shape[0]
    shadow, blush = Image.new("L", (size, size)), Image.new("L", (size, size))
    dark, red = ImageDraw.Draw(shadow), ImageDraw.Draw(blush)
    for eye, brow in ((marks[36:42], marks[17:22]), (marks[42:48], marks[22:27])):
        middle = eye.mean(0) * 0.7 + brow.mean(0) * 0.3
        _ellipse(dark, middle, 0.27 * unit, 0.15 * unit, 52)
    below_lips = marks[57] + (marks[8] - marks[57]) * 0.25
    _ellipse(dark, below_lips, 0.2 * unit, 0.05 * unit, 70)
    _ellipse(dark, marks[33] + [0, 0.08 * unit], 0.16 * unit, 0.05 * unit, 60)
    dark.line(marks[3:14].ravel().tolist(), fill=80, width=max(1, round(0.12 * unit)))
    for side in (-1.0, 1.0):
        cheek = pose.project(np.array([[side * 0.58, 0.32, 0.5]]))[0]
        _ellipse(red, cheek, 0.24 * unit, 0.18 * unit, 60)
    blur = ImageFilter.GaussianBlur(float(0.1 * unit))
    darkening = 1.0 - np.asarray(shadow.filter(blur), np.float32) / 255
    redness = np.asarray(blush.filter(blur), np.float32)[..., None] / 255
    picture *= darkening[..., None]
    picture *= 1 + redness * np.array([0.15, -0.35, -0.3], np.float32)


def _ellipse(
    draw: ImageDraw.ImageDraw, centre: Points, across: float, down: float, value: int
) -> None:
    draw.polygon(disc(centre, across, down).ravel().tolist(), fill=value)


def _photographed(picture: Plane, random: np.random.Generator) -> Image.Image:
    picture *= random.uniform(0.92, 1.08, 3).astype(np.float32)
    noise = random.standard_normal(picture.shape, dtype=np.float32)
    picture += noise * np.float32(random.uniform(1.0, 5.0))
    image = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
    return image.filter(ImageFilter.GaussianBlur(float(random.uniform(0.0, 0.8))))


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
