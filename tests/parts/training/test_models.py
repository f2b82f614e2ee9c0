import pytest
import torch
from torchvision import models as torchvision_models

from penstock.errors import ConfigError
from penstock.training.models import (
    LandmarkNet,
    SequenceNet,
    torchvision_model,
)


def test_landmark_net_gives_float32_under_autocast():
    net = LandmarkNet(5, width=4)
    with torch.autocast("cpu", torch.bfloat16):
        assert net(torch.randn(2, 3, 32, 32)).dtype == torch.float32


@pytest.mark.parametrize("bidirectional", [True, False])
def test_sequence_net_ignores_padding_and_order(bidirectional):
    torch.manual_seed(0)
    net = SequenceNet(3, 2, hidden=4, layers=2, bidirectional=bidirectional, dropout=0.5).eval()
    sequence = torch.randn(3, 6, 3)
    lengths = torch.tensor([2, 6, 4])
    expected = torch.cat(
        [net(sequence[i : i + 1, :n], lengths[i : i + 1]) for i, n in enumerate(lengths.tolist())]
    )
    sequence[0, 2:] = torch.nan
    torch.testing.assert_close(net(sequence, lengths), expected)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(net(sequence[order], lengths[order]), expected[order])


def test_torchvision_models_by_name():
    net = torchvision_model("mobilenet_v3_small", num_outputs=5)
    assert net.eval()(torch.randn(1, 3, 64, 64)).shape == (1, 5)


def test_auxiliary_outputs_are_left_out():
    net = torchvision_model("googlenet", num_outputs=5).train()
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 5)


@pytest.mark.parametrize("name", ["shufflenet_v2_x0_5", "squeezenet1_1"])
def test_weights_stay_but_for_the_last_layer(name, monkeypatch):
    whole = torchvision_models.get_model(name, weights=None)
    state = whole.state_dict()
    weights = torchvision_models.get_model_weights(name)
    monkeypatch.setattr(weights, "get_state_dict", lambda *_, **__: state)
    net = torchvision_model(name, 4, "DEFAULT")
    after = net.state_dict()
    kept = [k for k in state if after[k].shape == state[k].shape and after[k].equal(state[k])]
    changed = set(state) - set(kept)
    assert {key.rpartition(".")[0] for key in changed} == (
        {"fc"} if name == "shufflenet_v2_x0_5" else {"classifier.1"}
    )
    assert net.eval()(torch.randn(1, 3, 64, 64)).shape == (1, 4)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"model.name: 'resnet8' .*\(did you mean 'resnet\d+'\?"):
        torchvision_model("resnet8", 2)
    with pytest.raises(ConfigError, match="no torchvision classifier"):
        torchvision_model("fasterrcnn_resnet50_fpn", 2)
    with pytest.raises(ConfigError, match=r"model.weights: resnet18 has no .*IMAGENET1K_V1"):
        torchvision_model("resnet18", 2, "IMAGENET1K_V9")
