"""A generator, a discriminator, and how far drawn pictures are from real ones."""

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance

from penstock import command
from penstock.addons.adversarial.metrics import FrechetDistance
from penstock.addons.adversarial.models import PictureGan
from penstock.addons.adversarial.objective import Gan
from penstock.errors import ConfigError
from penstock.loading.batch import Batch
from penstock.order.plan import Request


def batch(pictures):
    rows = np.arange(len(pictures))
    request = Request(0, 0, rows, rows, len(rows), total=len(rows))
    return Batch({"image": pictures}, request, rows)


class Reduced(nn.Module):
    """Pictures as the metric reduces them, for torchmetrics."""

    num_features = 48

    def forward(self, pictures):
        return nn.functional.adaptive_avg_pool2d(pictures.float(), 4).flatten(1)


def test_the_distance_is_that_of_torchmetrics():
    torch.manual_seed(0)
    drawn, real = torch.rand(90, 3, 16, 16), 0.6 * torch.rand(110, 3, 16, 16) + 0.2
    ours = FrechetDistance(side=4)
    ours.update(drawn[:40], real[:60])
    ours.update(drawn[40:], real[60:])
    theirs = FrechetInceptionDistance(
        Reduced(), normalize=True, input_img_size=(3, 16, 16)
    ).set_dtype(torch.float64)
    theirs.update(drawn, real=False)
    theirs.update(real, real=True)
    variance = Reduced()(real).double().var(0).sum()
    assert float(ours.compute() * variance) == pytest.approx(float(theirs.compute()), abs=1e-6)


def test_equal_pictures_have_no_distance():
    torch.manual_seed(0)
    pictures, metric = torch.rand(600, 3, 8, 8), FrechetDistance(side=2)
    metric.update(pictures, pictures)
    assert float(metric.compute()) == pytest.approx(0.0, abs=1e-6)


def test_each_part_learns_from_its_own_loss():
    torch.manual_seed(0)
    model, losses = PictureGan(16, noise=4, width=4), {}
    real = torch.rand(6, 3, 16, 16)
    named = Gan().step(model, batch(real), lambda loss, part: losses.update({part: loss}))
    assert [*losses] == [*named] == ["discriminator", "generator"]
    losses["discriminator"].mean().backward()
    assert all(weights.grad is None for weights in model.generator.parameters())
    assert any(weights.grad is not None for weights in model.discriminator.parameters())


def test_the_baseline_has_mean_and_deviation_of_each_pixel():
    pictures = torch.rand(400, 3, 2, 2, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.4
    drawn = Gan().baseline([batch(pictures[:200]), batch(pictures[200:])]).drawn(4000)
    torch.testing.assert_close(drawn.mean(0), pictures.mean(0), atol=0.01, rtol=0)
    torch.testing.assert_close(drawn.std(0), pictures.std(0), atol=0.01, rtol=0)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"allowed: 16, 32, 64"):
        PictureGan(48)
    with pytest.raises(ConfigError, match=r"transform=pixels"):
        Gan().outputs(PictureGan(16), batch(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)))
    with pytest.raises(ConfigError, match=r"draws \[3, 16, 16\], and pictures are \[3, 32, 32\]"):
        Gan().step(PictureGan(16), batch(torch.zeros(2, 3, 32, 32)), None)


@pytest.mark.thorough
def test_a_resumed_run_is_the_whole_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["experiment=gan", "dataset.root=drawn", "dataset.count=24", "batch.size=8"]
    words += ["model.size=16", "transform.train.resize.size=[16,16]", "model.width=8"]
    words += ["tracker=none", "trainer.progress=none", "trainer.baseline=false"]
    words += ["trainer.pictures=false", "trainer.report=false", "trainer.device=cpu"]
    words += ["loader.num_workers=0", "trainer.max_epochs=2"]
    for more in (
        "run_dir=whole",
        "run_dir=part trainer.max_steps=4",
        "resume=part trainer.max_steps=null",
    ):
        steps = "trainer.checkpoint.every_steps=1"
        assert command.main([*words, steps, *more.split()]) == 0, capsys.readouterr().err
    ledgers = [(tmp_path / name / "ledger.jsonl").read_text() for name in ("whole", "part")]
    assert ledgers[0] == ledgers[1]
    assert len(ledgers[0].splitlines()) == 6
