"""What is not public in torchmetrics does what Penstock takes it for, as installed."""

import re
from pathlib import Path

import pytest
import torch
from torchmetrics import CatMetric, MeanMetric, MinMaxMetric

from penstock.distributed import metric_states

ROOT = Path(__file__).parents[2]


class Twice:
    """A group of two ranks that have counted the same."""

    alone = False

    def gather(self, value):
        return [value, value]


def test_ranks_are_added_up_and_not_gathered_again():
    mean, every = MeanMetric(), CatMetric()
    mean.update(torch.tensor([1.0, 2.0]))
    every.update(torch.arange(3.0))
    mean.compute()
    both = {"mean": mean, "every": every}
    metric_states.count_apart(both)
    metric_states.merge(both, Twice())
    assert (mean.update_count, float(mean.weight), float(mean.compute())) == (2, 4.0, 1.5)
    assert every.compute().tolist() == [0.0, 1.0, 2.0] * 2
    assert not any(one.sync_on_compute for one in (mean, every))


class Alone(Twice):
    alone = True


def test_nothing_counted_leaves_a_metric_as_it_is():
    mean = MeanMetric()
    mean.update(torch.tensor([1.0, 2.0]))
    metric_states.merge({"mean": mean}, Alone())  # nothing to add: it is not touched
    assert mean.update_count == 1
    empty = MeanMetric()
    metric_states.merge({"mean": empty}, Twice())
    assert empty.update_count == 0


def test_metrics_inside_of_a_metric_do_not_gather_either():
    inner = MeanMetric()
    metric_states.count_apart({"bounds": MinMaxMetric(inner)})
    assert not inner.sync_on_compute
    assert not inner._to_sync


@pytest.mark.parametrize("name", ["_computed", "_reductions", "_to_sync", "_update_count"])
def test_a_torchmetrics_that_lacks_a_name_is_reported(name):
    metric = MeanMetric()
    vars(metric).pop(name)
    with pytest.raises(ImportError, match=rf"torchmetrics [\d.]+ .*MeanMetric has no {name}\."):
        metric_states.merge({"mean": metric}, Twice())


def test_it_was_tested_with_the_version_that_is_pinned():
    (version,) = re.findall(r"torchmetrics (\d[\d.]*\d)", metric_states.__doc__)
    assert f"torchmetrics=={version}\n" in (ROOT / "constraints.txt").read_text()
