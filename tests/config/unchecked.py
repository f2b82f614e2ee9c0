"""Configurations with values that nothing has checked, for rules that are called one by one."""

import functools

import penstock

NUMBERS = {"_target_": "tests.own_parts.Numbers", "size": 4}
RANDOM = {"_target_": "penstock.order.samplers.Random"}
STREAM = {"_target_": "tests.own_parts.Stream"}
UNSPLIT = {"_target_": "tests.own_parts.Unsplit", "size": 4}
MIX = {"_target_": "penstock.transforms.mixing.MixUp"}
NORMALIZE = {"_target_": "penstock.transforms.image.Normalize"}
OTHER = {"_target_": "penstock.transforms.batch_colors.BatchNormalize"}
COLORS = {"_target_": "penstock.transforms.batch_colors.ColorJitter"}
PLATEAU = {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau"}
ONECYCLE = {"_target_": "torch.optim.lr_scheduler.OneCycleLR"}
BY_BUCKET = {"_target_": "penstock.order.samplers.Bucket"}
WORKERS = {"loader.backend": "process", "loader.num_workers": 2}
DDP, FSDP = {"distributed.strategy": "ddp"}, {"distributed.strategy": "fsdp"}
NO_STEPS = {f"transform.{name}": {} for name in ("train", "val", "train_batch", "val_batch")}


@functools.cache
def composed():
    return penstock.compose("trainer.device=cpu")


def changed(values):
    """The default configuration with other values, by full key, that nothing has checked."""
    config = composed().model_copy(deep=True)
    for key, value in values.items():
        *path, name = key.split(".")
        section = config
        for part in path:
            section = getattr(section, part)
        vars(section)[name] = value
    return config


def messages(rule, values, parts=None):
    return list(rule(changed(values), parts or {}))


def holds(found, *starts):
    assert len(found) == len(starts), found
    for message, start in zip(found, starts, strict=True):
        key, *words = start if isinstance(start, tuple) else (start,)
        assert message.startswith(f"{key}: "), message
        assert all(word in message for word in words), message
