"""COCO's mean average precision, by torchmetrics and faster-coco-eval."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import numpy as np
from torch import Tensor
from torchmetrics import detection

from penstock.errors import ConfigError, Problem

SHOWN = ("map", "map_50", "map_75", "mar_100")


class MeanAveragePrecision(detection.MeanAveragePrecision):
    """torchmetrics' metric with the values that `shown` names; -1 stands for "no such objects".

    Args:
        shown: of those that torchmetrics gives: map, map_50, map_75, map_small, map_medium,
            map_large, mar_1, mar_10, mar_100, and so on.
        iou_type: "bbox" or "segm".

    Raises:
        ConfigError: faster-coco-eval is not installed.
    """

    full_state_update = False

    def __init__(self, shown: Sequence[str] = SHOWN, iou_type: str = "bbox") -> None:
        if importlib.util.find_spec("faster_coco_eval") is None:
            reason = "needs faster-coco-eval: pip install 'penstock-loader[detection]'"
            raise ConfigError(Problem("objective.metrics.map", reason))
        # COCO's own thresholds; torchmetrics' are rounded to 32 bits, which moves a few matches.
        super().__init__(
            iou_type=iou_type,  # type: ignore[arg-type]
            iou_thresholds=np.linspace(0.5, 0.95, 10).tolist(),
            rec_thresholds=np.linspace(0.0, 1.0, 101).tolist(),
            backend="faster_coco_eval",
        )
        self.warn_on_many_detections = False
        self.shown = tuple(shown)

    def compute(self) -> dict[str, Tensor]:
        """Each value that is shown, float32[]."""
        values = super().compute()
        unknown = [name for name in self.shown if name not in values]
        if unknown:
            allowed = ", ".join(name for name, value in values.items() if value.ndim == 0)
            reason = f"{unknown[0]!r} is no value of it; allowed: {allowed}"
            raise ConfigError(Problem("objective.metrics.map.shown", reason))
        return {name: values[name] for name in self.shown}
