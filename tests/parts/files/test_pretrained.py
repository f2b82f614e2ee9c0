"""Weights of torchvision's are tensors, whatever lies in torch's cache."""

import os
import pickle
import re

import pytest
import torch
from torchvision import models

from penstock.config.targets import make
from penstock.errors import ConfigError, UnreachableError

WAYS = [
    {"_target_": "torchvision.models.resnet18", "weights": "DEFAULT"},
    {"_target_": "torchvision.models.resnet18", "weights": "IMAGENET1K_V1", "_partial_": True},
    {
        "_target_": "penstock.training.models.torchvision_model",
        "name": "resnet18",
        "num_outputs": 3,
        "weights": "DEFAULT",
    },
    {
        "_target_": "torchvision.models.detection.fasterrcnn_resnet50_fpn",
        "weights": None,
        "weights_backbone": "DEFAULT",
    },
]


class Hostile:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (self.canary,)


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Puts something in the place of the weights that are in torch's cache."""
    monkeypatch.setattr(torch.hub, "_hub_dir", None, raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    wanted = [*models.ResNet18_Weights, *models.ResNet50_Weights]

    def put(write):
        for name in {one.url.rpartition("/")[2] for one in wanted}:
            write(folder / name)

    return put


@pytest.mark.one_in(2)
@pytest.mark.parametrize("node", WAYS, ids=[way["_target_"].rpartition(".")[2] for way in WAYS])
@pytest.mark.parametrize("form", ["zip", "bare"])
def test_a_pickle_in_the_cache_is_not_run(node, form, cached, tmp_path):
    hostile = {"fc.weight": Hostile(str(tmp_path / "canary"))}
    cached(
        lambda path: (
            torch.save(hostile, path)
            if form == "zip"
            else path.write_bytes(pickle.dumps(hostile, 2))
        )
    )
    with pytest.raises(ConfigError, match=r"weights: .*\.pth holds more than tensors"):
        make(node, "model")()
    assert not (tmp_path / "canary").exists()


def test_weights_that_are_tensors_are_read(cached):
    state = models.resnet18(weights=None).state_dict()
    cached(lambda path: torch.save(state, path))
    model = make(WAYS[0], "model")
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("node", WAYS, ids=[way["_target_"].rpartition(".")[2] for way in WAYS])
def test_weights_that_cannot_be_fetched_are_one_message(node, cached, tmp_path, monkeypatch):
    """A closed port stands for the host that cannot be reached."""
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    # urllib keeps the proxies of its first request, for all tests of this process.
    monkeypatch.setattr("urllib.request._opener", None)
    with pytest.raises(UnreachableError) as caught:
        make(node, "model")()
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert re.match(
        r"the pretrained weights resnet\d+-\w+\.pth cannot be fetched \(.*Connection refused",
        message,
    )
    assert f"put it into {tmp_path / 'hub' / 'checkpoints'}" in message


def test_weights_that_are_cut_off_are_named(cached):
    cached(lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)))
    with pytest.raises(ConfigError, match=r"weights: .*\.pth .*is damaged .*delete it"):
        make(WAYS[0], "model")
