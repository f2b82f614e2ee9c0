"""The files of conf/, what a choice needs beside it, and the parts of a configuration."""

from pathlib import Path

import pytest

import penstock
from penstock.build.training import TrainingParts
from penstock.errors import ConfigError

OWN = ["dataset={_target_: tests.support.own_parts.Numbers}", "task=digest"]


def made(*words):
    """The parts of a configuration, each made as a fit makes it before it claims a folder."""
    parts = TrainingParts(penstock.compose(*words))
    for split in parts.data.splits:
        split.loader().close()
    if parts.config.task == "fit":
        parts.scheduler(parts.optimizer(parts.trained()), 100)
    return parts


def only(key, *words, own=True):
    """The one message of a configuration, which is about `key`."""
    with pytest.raises(ConfigError) as caught:
        made(*(OWN if own else []), *words)
    (problem,) = caught.value.problems
    assert problem.key == key, problem
    return problem.message


CONF = Path(__file__).parents[2] / "conf"


FILES = [path for path in sorted(CONF.glob("*/*.yaml")) if path.parent.name != "hydra"]


# What a choice cannot do without, beside its own keys that are ???.
NEEDS = {
    "dataset/delimited_stream": ["dataset.classes=[a,b]"],
    "dataset/indexed_tars": ["dataset.classes=[a,b]"],
    "dataset/tar_shards": ["dataset.classes=[a,b]"],
    "model/two_towers": ["transform=images_text"],
    "model/text_net": ["dataset=delimited_text", "dataset.root=x"],
    "objective/classification": ["dataset=sequences"],
    "objective/language_modeling": ["dataset=plain_text"],
    "objective/regression": ["dataset=arrays", "dataset.root=x"],
    "optimizer/several": ["scheduler=none"],
    "sampler/bucket": ["dataset=sequences"],
    "sampler/curriculum": ["dataset=sequences"],
    "sampler/identity": ["dataset=sequences"],
    "sampler/packed": ["dataset=sequences", "collate=packed"],
    "dataset/mixture": ["dataset.sources.photographs.root=x"],
    "sampler/mixture": ["dataset=mixture", "dataset.sources.photographs.root=x"],
    "sampler/stream": ["dataset=delimited_stream", "dataset.classes=[a,b]", "dataset.root=x"],
    "sampler/weighted": ["dataset=sequences"],
    "transform/images_batch": ["dataset=image_folder", "dataset.root=x"],
    "collate/single": ["batch.size=null"],
    "task/diff": ["runs=[a,b]"],
    "task/report": ["runs=[a,b]"],
    "model/audio_net": ["transform=audio"],
    "dataset/image_masks": ["dataset.classes=[a,b]"],
}
