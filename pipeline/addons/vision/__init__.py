"""Boxes and masks: datasets, transforms, models and objectives of detection and segmentation."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    callables=(
        *(
            Callables(
                f"penstock.addons.vision.{module}",
                "a torch.utils.data.Dataset",
                "torch.utils.data.Dataset",
            )
            for module in ("coco", "drawn_shapes", "image_masks")
        ),
        Callables("penstock.addons.vision.boxes", "a transform or a collate class"),
        Callables("penstock.addons.vision.mosaic", "a batch transform"),
        Callables("penstock.addons.vision.detection", "an objective"),
        Callables("penstock.addons.vision.segmentation", "an objective"),
        Callables("penstock.addons.vision.mean_average_precision", "a metric"),
        Callables("penstock.addons.vision.detectors", "a model", "torch.nn.Module"),
        Callables("penstock.addons.vision.segmenters", "a model", "torch.nn.Module"),
    ),
)
