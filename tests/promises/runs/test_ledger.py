import json

import pytest

from penstock.distributed.group import Group
from penstock.files.disk import DiskError, cut
from penstock.order.samplers import Random
from penstock.tasks.observers import Ledger
from penstock.training.meter import Meter, Step
from tests.support.toy import loader


def written(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def ledger_of(path, batches, every=3):
    """The lines of a ledger to which a meter's readings went."""
    ledger, epoch_metrics = Ledger(path), Meter(Group())
    for number, batch in enumerate(batches, 1):
        epoch_metrics.add(batch, batch["label"].float() / 7)
        if number % every == 0:
            ledger.on_steps(epoch_metrics.read())
    ledger.on_steps(epoch_metrics.read())
    return written(path)


def test_a_line_a_batch_with_its_address_and_samples(tmp_path):
    lines = ledger_of(tmp_path / "ledger.jsonl", loader(size=16).epoch(1))
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 0), (1, 1), (1, 2)]
    assert [line["samples"] for line in lines] == [16, 16, 8]


@pytest.mark.parametrize("loss", [0.1, 1 / 3, 2.0**-1060, 0.0, 1e300])
def test_losses_are_exact(tmp_path, loss):
    Ledger(tmp_path / "a").on_steps([Step(0, 0, loss, 1, 255)])
    (line,) = written(tmp_path / "a")
    assert float.fromhex(line["loss"]) == loss
    assert line["order"] == "00000000000000ff"


def test_the_order_says_which_samples_at_which_address(tmp_path):
    first = ledger_of(tmp_path / "a", loader().epoch(0))
    assert first == ledger_of(tmp_path / "b", loader().epoch(0))
    assert first == ledger_of(tmp_path / "c", loader().epoch(0), every=1)
    orders = [line["order"] for line in first]
    assert len(set(orders)) == len(orders)
    other = ledger_of(tmp_path / "d", loader(sampler=Random(40, 1)).epoch(0))
    assert not set(orders) & {line["order"] for line in other}
    later = ledger_of(tmp_path / "e", loader().epoch(1))
    assert not set(orders) & {line["order"] for line in later}


def test_the_order_is_pinned(tmp_path):
    lines = ledger_of(tmp_path / "a", loader().epoch(0))
    assert [line["order"] for line in lines[:2]] == ["6bd6f7fe84595720", "f1ff3b2932f03801"]


def test_a_ledger_that_was_cut_continues_as_if_undisturbed(tmp_path):
    whole = ledger_of(tmp_path / "a", loader().epoch(0))
    path = tmp_path / "b"
    ledger_of(path, loader().epoch(0))
    cut(path, lambda line: line["step"] < 2)
    assert ledger_of(path, loader().epoch(0, 2)) == whole


def test_without_a_place_to_write_it_is_reported(tmp_path):

    with pytest.raises(DiskError, match=r"absent/ledger.jsonl cannot be written"):
        Ledger(tmp_path / "absent" / "ledger.jsonl").on_steps([Step(0, 0, 0.0, 1, 0)])
