"""A library with Albumentations' names that crops, where Albumentations itself is not installed.

It holds those who call it to the library's rules: what a `Compose` gets, it has parameters for.
"""

import numpy as np
import torch


class KeypointParams:
    def __init__(self, form, remove_invisible):
        assert (form, remove_invisible) == ("xy", False)


class BboxParams:
    def __init__(self, form, label_fields):
        assert (form, label_fields) == ("pascal_voc", ["rows"])


class Crop:
    """Left, top, right and bottom of the part that stays."""

    def __init__(self, *sides, tensors=False):
        self.sides, self.tensors = sides, tensors

    def picture(self, array):
        left, top, right, bottom = self.sides
        part = array[top:bottom, left:right]
        return torch.from_numpy(part.transpose(2, 0, 1).copy()) if self.tensors else part

    def boxes(self, boxes, rows):
        left, top, right, bottom = self.sides
        low, high = np.tile([left, top], 2), np.tile([right, bottom], 2)
        cut = np.clip(boxes, low, high) - low
        kept = (cut[:, 2] > cut[:, 0]) & (cut[:, 3] > cut[:, 1])
        return cut[kept], rows[kept]


class Compose:
    made = 0

    def __init__(self, transforms, keypoint_params=None, bbox_params=None):
        Compose.made += 1
        self.transforms = transforms
        self.takes = {"keypoints": keypoint_params, "bboxes": bbox_params}

    def set_random_state(self, *generators):
        self.generators = generators

    def __call__(self, **given):
        assert all((name in given) == (params is not None) for name, params in self.takes.items())
        (crop,) = self.transforms
        done = {"image": crop.picture(given["image"])}
        if "masks" in given:
            done["masks"] = [crop.picture(mask) for mask in given["masks"]]
        if "keypoints" in given:
            done["keypoints"] = given["keypoints"] - np.array(crop.sides[:2])
        if "bboxes" in given:
            done["bboxes"], done["rows"] = crop.boxes(given["bboxes"], given["rows"])
        return done
