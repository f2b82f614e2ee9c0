"""Two views of a sample, and pictures with captions."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import penstock
from penstock import command
from penstock.addons.pairs import (
    ImageEncoder,
    ImageText,
    Retrieval,
    TwoViews,
    nt_xent,
)
from penstock.addons.reports.run_page import read
from penstock.build.data import DataParts
from penstock.errors import ConfigError
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from tests.support import warm
from tests.support.program import ROOT

SMALL = ["dataset.count=24", "dataset.size=32", "batch.size=8", "trainer.device=cpu"]
QUIET = ["tracker=none", "trainer.progress=none", "trainer.pictures=false", "trainer.report=false"]


@pytest.fixture(autouse=True)
def drawn(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.getbasetemp() / "drawn"))


def batch(**fields):
    rows = np.arange(len(next(iter(fields.values()))))
    return Batch(fields, Request(0, 0, rows, rows, len(rows), total=len(rows)), rows)


def test_nt_xent_is_that_of_its_definition():
    views = normalize(torch.arange(24.0).reshape(2, 4, 3).sin(), dim=-1)
    rows, losses = views.flatten(0, 1), []
    for own in range(8):
        likeness = [math.exp(float(rows[own] @ rows[other]) / 0.5) for other in range(8)]
        losses.append(-math.log(likeness[(own + 4) % 8] / (sum(likeness) - likeness[own])))
    each = nt_xent(views[:, 1:3], views, torch.tensor([1, 2]), 0.5)
    expected = [(losses[own] + losses[own + 4]) / 2 for own in (1, 2)]
    assert each.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_loss_of_captions_is_that_of_both_directions():
    class Places(nn.Module):
        def forward(self, image, tokens, lengths):
            return image, tokens

        def factor(self):
            return torch.tensor(5.0)

    pictures, texts = torch.arange(24.0).reshape(2, 4, 3).cos()
    data = batch(image=pictures, tokens=texts, tokens_lengths=torch.ones(4))
    likeness = 5.0 * normalize(pictures) @ normalize(texts).T
    expected = -(likeness.log_softmax(0).diag() + likeness.log_softmax(1).diag()) / 2
    torch.testing.assert_close(ImageText({}, [*data]).loss(Places(), data), expected)


def test_retrieval_counts_over_all_rows():
    first = torch.eye(4)
    second = torch.tensor([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0.1, 0], [0, 0, 0, 1]])
    metric = Retrieval([1, 2])
    metric.update(first[:3], second[:3])
    metric.update(first[3:], second[3:])
    values = metric.compute()
    assert values["top1"] == pytest.approx(0.5)
    assert values["top2"] == pytest.approx(
        10 / 12
    )  # the second is one of three that are alike: a third


def test_a_model_that_gives_all_one_place_has_chance():
    metric = Retrieval([1, 5])
    metric.update(torch.ones(20, 3), torch.ones(20, 3))
    assert metric.compute() == {"top1": pytest.approx(1 / 20), "top5": pytest.approx(5 / 20)}
    assert TwoViews({"view": metric}).comparisons(None, range(20)) == {
        "chance": {"view/top1": 1 / 20, "view/top5": 5 / 20}
    }


def test_views_follow_from_the_address_of_a_sample():
    words = ["experiment=two_views", *SMALL]
    whole = DataParts(penstock.compose(*words)).train
    half = DataParts(penstock.compose(*words, "batch.size=4")).train
    first, second = (split.fetch()(split.plan.request(0, 0)) for split in (whole, half))
    assert [*first] == ["image", "label", "image_2"]
    for name in ("image", "image_2"):
        assert torch.equal(first[name][:4], second[name])
    assert not torch.equal(first["image"], first["image_2"])
    plain = DataParts(penstock.compose(*words, "transform.views=1")).train
    alone = plain.fetch()(plain.plan.request(0, 0))
    assert torch.equal(alone["image"], first["image"])


def test_views_are_drawn_where_crops_come_before_decoding():
    words = ["experiment=two_views", "transform=images_fast", "transform.train.decode.size=32"]
    split = DataParts(penstock.compose(*words, "transform.views=2", *SMALL)).train
    made = split.fetch()(split.plan.request(0, 0))
    assert [*made] == ["image", "label", "image_2"]
    assert made["image"].dtype == torch.float32
    assert made["image_2"].shape == (8, 3, 32, 32)
    assert not torch.equal(made["image"], made["image_2"])


def test_what_makes_no_views_is_refused():
    step = "+transform.train_batch.flip._target_=penstock.transforms.batch_geometry.HorizontalFlip"
    with pytest.raises(ConfigError, match=r"flip: does the same to all views"):
        penstock.compose("experiment=two_views", step)
    with pytest.raises(
        ConfigError, match=r"no second view of 'image' of the same shape; set transform.views=2"
    ):
        TwoViews().loss(ImageEncoder(), batch(image=torch.zeros(2, 3, 32, 32)))


def test_a_report_has_the_losses_of_the_validation_and_the_nearest_captions(
    tmp_path, capsys, reports
):
    """Of a loss over pairs: a batch of the rows that are shown would give others."""
    words = ["experiment=image_text", *SMALL, "batch.val_size=3", "loader=debug", "tracker=none"]
    words += ["dataset.count=60", "trainer.max_steps=1", f"run_dir={tmp_path / 'run'}"]
    assert command.main(words) == 0, capsys.readouterr().err
    shown = read(tmp_path / "run")["predictions"]
    best, worst = (
        [one["loss"] for one in shown if one["group"] == group] for group in ("best", "worst")
    )
    assert len(best) == len(worst) == 4
    assert best == sorted(best)
    assert worst == sorted(worst, reverse=True)
    assert best[-1] < worst[-1]
    for one in shown:
        assert one["wrong"] == (one["predicted"] != f"nearest of these: {one['truth']}")


def test_two_ranks_have_the_losses_of_one(tmp_path, capsys):
    words = ["experiment=two_views", *SMALL, *QUIET, "trainer.max_steps=3", "loader.num_workers=0"]
    # What is not compared.
    words += ["data.validate=false", "trainer.monitor=null", "trainer.checkpoint=null"]
    # Adam would make much of gradients that are rounded to almost nothing.
    words += ["optimizer=sgd"]
    assert command.main([*words, f"run_dir={tmp_path}/one"]) == 0, capsys.readouterr().err
    words += ["distributed=ddp", "distributed.nproc=2", f"run_dir={tmp_path}/two"]
    done = warm.run(
        [sys.executable, "run.py", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    one, two = (
        [float.fromhex(json.loads(line)["loss"]) for line in path.read_text().splitlines()]
        for path in (tmp_path / "one/ledger.jsonl", tmp_path / "two/ledger.jsonl")
    )
    assert len(one) == 3  # of 8, 8 and 3 samples
    assert one == pytest.approx(two, abs=1e-6)
