"""Boxes and masks: datasets, transforms, models and objectives of detection and segmentation."""
