"""The look of a drawn face apart from its shape: colours, hair and light."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Colour = tuple[int, int, int]

_SKIN = [
    (255, 224, 200),
    (241, 200, 168),
    (226, 176, 140),
    (198, 142, 104),
    (156, 104, 72),
    (112, 72, 50),
    (84, 54, 40),
]
_HAIR = [
    (28, 22, 20),
    (58, 38, 26),
    (98, 64, 38),
    (150, 104, 56),
    (206, 168, 104),
    (150, 62, 30),
    (120, 116, 114),
    (212, 208, 204),
]
_IRIS = [(74, 48, 28), (54, 36, 24), (96, 112, 60), (70, 110, 150), (100, 126, 140)]


@dataclass(frozen=True)
class Look:
    """One person under one light.

    Attributes:
        light: float64[3], unit vector towards the light, in the picture's axes.
        contrast: how far the side that looks away from the light darkens, 0 to 1.
        hairline: height of the hair on the forehead, in units of the head.
        hair_length: how far the hair falls beside the face; below -0.5 it is short.
    """

    skin: Colour
    hair: Colour
    iris: Colour
    lips: Colour
    clothes: Colour
    light: npt.NDArray[np.float64]
    contrast: float
    brightness: float
    bald: bool
    hairline: float
    hair_length: float
    parting: float
    beard: float
    glasses: bool
    gaze: tuple[float, float]
    teeth: bool

    @classmethod
    def drawn(cls, random: np.random.Generator) -> Look:
        """A random person under a random light."""
        tone = float(random.uniform(0, len(_SKIN) - 1))  # between two neighbours of the scale
        skin = mixed(_SKIN[int(tone)], _SKIN[int(tone) + 1], tone % 1)
        skin = _jittered(skin, random, 6)
        long_hair = random.random() < 0.45
        bald = not long_hair and random.random() < 0.15
        light = random.uniform([-1, -0.9, 0.45], [1, 0.3, 1])
        lips = mixed(skin, (176, 44, 58), float(random.uniform(0.25, 0.7 if long_hair else 0.4)))
        return cls(
            skin=skin,
            hair=_jittered(_HAIR[random.integers(len(_HAIR))], random, 12),
            iris=_jittered(_IRIS[random.integers(len(_IRIS))], random, 10),
            lips=lips,
            clothes=muted(random),
            light=light / np.linalg.norm(light),
            contrast=float(random.uniform(0.25, 0.8)),
            brightness=float(random.uniform(0.8, 1.15)),
            bald=bool(bald),
            hairline=float(random.uniform(-1.12, -0.88)),
            hair_length=float(
                random.uniform(0.6, 2.0) if long_hair else random.uniform(-0.9, -0.5)
            ),
            parting=float(random.uniform(-0.7, 0.7)),
            beard=0.0 if long_hair else float(max(0.0, random.uniform(-1.4, 0.95))),
            glasses=bool(random.random() < 0.16),
            gaze=(float(random.uniform(-0.4, 0.4)), float(random.uniform(-0.25, 0.25))),
            teeth=bool(random.random() < 0.75),
        )


def shade(colour: Colour, factor: float) -> Colour:
    """A lighter (factor above 1) or darker colour."""
    red, green, blue = (min(255, max(0, round(part * factor))) for part in colour)
    return red, green, blue


def mixed(first: Colour, second: Colour, share: float) -> Colour:
    """`first` with a share of `second`."""
    pairs = zip(first, second, strict=True)
    red, green, blue = (round(a + (b - a) * share) for a, b in pairs)
    return red, green, blue


def _jittered(colour: Colour, random: np.random.Generator, spread: int) -> Colour:
    red, green, blue = np.clip(colour + random.integers(-spread, spread + 1, 3), 0, 255).tolist()
    return red, green, blue


def muted(random: np.random.Generator) -> Colour:
    """Any colour, most often one near grey."""
    grey = int(random.integers(20, 236))
    red, green, blue = random.integers(10, 246, 3).tolist()
    return mixed((red, green, blue), (grey, grey, grey), float(random.uniform(0.2, 0.95)))
