"""COCO's mean average precision, by torchmetrics and faster-coco-eval.

Importing it needs faster-coco-eval (the extra `detection`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import faster_coco_eval  # noqa: F401  (else torchmetrics says it at the first validation)
import numpy as np
from torch import Tensor
from torchmetrics.detection import mean_ap

Shown = Literal[
    "map", "map_50", "map_75", "map_small", "map_medium", "map_large",
    "mar_1", "mar_10", "mar_100", "mar_small", "mar_medium", "mar_large",
]  # fmt: skip


class MeanAveragePrecision(mean_ap.MeanAveragePrecision):
    """torchmetrics' metric with the values that `shown` names; -1 stands for "no such objects".

    Args:
        shown: of those that torchmetrics gives.
        iou_type: "bbox" or "segm".
    """

    full_state_update = False

    def __init__(
        self,
        shown: Sequence[Shown] = ("map", "map_50", "map_75", "mar_100"),
        iou_type: Literal["bbox", "segm"] = "bbox",
    ) -> None:
        # COCO's own thresholds; torchmetrics' are rounded to 32 bits, which moves a few matches.
        super().__init__(
            iou_type=iou_type,
            iou_thresholds=np.linspace(0.5, 0.95, 10).tolist(),
            rec_thresholds=np.linspace(0.0, 1.0, 101).tolist(),
            backend="faster_coco_eval",
        )
        self.warn_on_many_detections = False
        self.shown = tuple(shown)

    def compute(self) -> dict[str, Tensor]:
        """Each value that is shown, float32[]."""
        values = super().compute()
        return {name: values[name] for name in self.shown}
