"""Orders of splits as the build makes them, and the columns and costs by which they choose."""

import pytest

from penstock.build import sampling
from penstock.errors import ConfigError
from penstock.order.samplers import Random, Sequential
from tests.config.test_build_data import TOLD, parts
from tests.config.unchecked import RANDOM, STREAM, changed

pytestmark = pytest.mark.usefixtures("alone")

WEIGHTED = {"_target_": "penstock.order.samplers.Weighted"}
BUCKET = {"_target_": "penstock.order.samplers.Bucket"}
REPEATED = {"_target_": "penstock.order.composed.Repeated", "times": 2}
TOKENIZE = {"_target_": "penstock.transforms.text.Tokenize"}


def test_orders_of_splits():
    data = parts()
    assert isinstance(data.train.plan.sampler, Random)
    assert isinstance(data.val.plan.sampler, Sequential)
    assert (data.train.plan.tail, data.val.plan.tail) == (data.config.batch.tail, "keep")
    dropping = parts(**{"batch.tail": "drop", "batch.size": 3})
    assert (len(dropping.train.plan), len(dropping.val.plan)) == (2, 3)
    with pytest.raises(ConfigError, match="Told has no rows for the train split"):
        _ = parts(dataset={**TOLD, "size": 0}).train.plan
    assert parts(dataset=STREAM).val.plan.tail == "keep"


@pytest.mark.parametrize(
    ("node", "columns"),
    [
        (RANDOM, set()),
        ({**WEIGHTED, "weights": "w", "column": "c"}, {"w", "c"}),
        ({**WEIGHTED, "weights": [1, 2], "column": "c"}, {"c"}),
        ({**BUCKET, "column": "n"}, {"n"}),
        (BUCKET, {"length"}),
        ({**REPEATED, "order": {**WEIGHTED, "weights": "w", "column": None}}, {"w"}),
        ({**REPEATED, "order": None}, set()),
    ],
)
def test_columns_that_are_read(node, columns):
    assert sampling._columns_read(node) == columns


def test_lengths_in_tokens():
    data = parts(**{"transform.train": {"tokens": TOKENIZE}})
    steps = data.train.transform.steps
    assert sampling.lengths_told(changed({"sampler": RANDOM}), steps) == {}
    assert sampling.lengths_told(changed({"sampler": BUCKET}), {}) == {}
    told = sampling.lengths_told(changed({"sampler": BUCKET}), steps)
    assert told == {"lengths": steps["tokens"].counting}


def test_orders_inside():
    inside = parts(sampler={**REPEATED, "order": RANDOM}).train.plan.sampler
    assert isinstance(inside.order, Random)
    with pytest.raises(ConfigError, match=r"sampler\.order: Bucket forms batches of its own"):
        _ = parts(sampler={**REPEATED, "order": {**BUCKET, "column": "cost"}}).train.plan
