"""Which states of a checkpoint a run takes for its own, and what is said of the others."""

import copy

import pytest
import torch
from torch import nn

from penstock.files.plain_json import JsonError
from penstock.runs import run_state


def network():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def parts():
    """A model, its optimizer after a step, and the state of both."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(4, 2)).square().sum().backward()
    optimizer.step()
    state = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()}
    return model, optimizer, copy.deepcopy(state)


def group(**values):
    return lambda state: state["optimizer"]["param_groups"][0].update(values)


def moments(**values):
    return lambda state: state["optimizer"]["state"][0].update(values)


def weights(**values):
    return lambda state: state["model"].update(
        {name.replace("__", "."): value for name, value in values.items()}
    )


def averaged(state):
    state["averaged"] = dict(state["model"])


def averaged_otherwise(state):
    averaged(state)
    state["averaged"].pop("0.bias")


def averaged_of_another_shape(state):
    averaged(state)
    state["averaged"]["0.bias"] = torch.ones(4)


COUNTED = "1.num_batches_tracked"
CHANGES = {
    "nothing": (lambda state: None, None),
    "averaged": (averaged, None),
    "averaged otherwise": (averaged_otherwise, "its averaged weights are those of another model"),
    "averaged shape": (
        averaged_of_another_shape,
        r"averaged/0\.bias is torch\.float32\[4\], and this run's is torch\.float32\[3\]",
    ),
    "averaged, no mapping": (lambda state: state.update(averaged=3), "is"),
    "a weight too many": (
        weights(x=torch.ones(1)),
        "its model has missing or unexpected keys: x$",
    ),
    "many weights too many": (
        lambda state: state["model"].update({f"w{n}": 0 for n in range(7)}),
        "unexpected keys: w0, w1, w2, w3, w4$",
    ),
    "a long name": (
        lambda state: state["model"].update({"w" * 300: 0}),
        f"unexpected keys: {'w' * 200}$",
    ),
    "a shape": (weights(**{"0__bias": torch.ones(4)}), r"model/0\.bias is torch\.float32\[4\]"),
    "a type": (
        weights(**{"0__bias": torch.ones(3, dtype=torch.int64)}),
        r"torch\.int64\[3\], and this run's is torch\.float32\[3\]",
    ),
    "less precise": (weights(**{"0__bias": torch.ones(3).bfloat16()}), None),
    "no tensor": (weights(**{"0__bias": 3}), r"model/0\.bias is .*, and must be a tensor"),
    "a count": (lambda state: state["model"].update({COUNTED: torch.tensor(1.0)}), COUNTED),
    "moments of another shape": (
        moments(exp_avg=torch.ones(2)),
        r"optimizer/state/0/exp_avg is torch\.float32\[2\]",
    ),
    "whole moments": (moments(exp_avg=torch.ones(3, 2, dtype=torch.int64)), None),
    "no moments": (moments(exp_avg=None), None),
    "other values": (moments(own=3), None),
    "moments of nothing": (
        lambda state: state["optimizer"]["state"].update({4: {}}),
        "optimizer/state has 4, and there are 4 weights",
    ),
    "moments before": (
        lambda state: state["optimizer"]["state"].update({-1: {}}),
        "optimizer/state has -1",
    ),
    "moments of a name": (
        lambda state: state["optimizer"]["state"].update({"0": {}}),
        "optimizer/state has '0'",
    ),
    "no groups": (
        lambda state: state["optimizer"].update(param_groups={}),
        "optimizer/param_groups is not a list of 1 groups",
    ),
    "another group": (
        lambda state: state["optimizer"]["param_groups"].append({}),
        "optimizer/param_groups is not a list of 1 groups",
    ),
    "a group of fewer weights": (group(params=[0]), "has groups of other weights"),
    "a group of no list": (group(params=(0, 1, 2, 3)), "has groups of other weights"),
    "a rate": (group(lr=1), None),
    "a rate in words": (group(lr="x"), "optimizer/param_groups has 'x' as lr"),
    "a truth value": (group(lr=True), "has True as lr"),
    "a tensor": (group(lr=torch.tensor(0.1)), "as lr"),
    "a list of betas": (group(betas=[0.9, 0.99]), None),
    "one beta": (group(betas=0.9), "has 0.9 as betas"),
    "unset here": (group(foreach=True), None),
    "unset there": (group(lr=None), None),
    "a key of another version": (group(own="x"), None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_state_is_compared_with_the_model_and_its_optimizer(name):
    change, wrong = CHANGES[name]
    model, optimizer, state = parts()
    change(state)
    if wrong is None:
        run_state.check_fit(state, model, optimizer)
    else:
        with pytest.raises(JsonError, match=wrong):
            run_state.check_fit(state, model, optimizer)


def test_a_lazy_weight_takes_any_shape():
    model, own = nn.LazyLinear(3), nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"model": dict(own.state_dict()), "optimizer": optimizer.state_dict()}
    run_state.check_fit(state, model, optimizer)


def test_wrong_values_are_counted_or_named(monkeypatch):
    with pytest.raises(JsonError, match="loader is missing: Field required"):
        run_state.check({})
    with pytest.raises(JsonError, match="loader/epoch is missing"):
        run_state.check({"loader": {"step": 3}})
    wanted = len(run_state._State.model_fields)
    monkeypatch.setattr(run_state, "_MOST_FACTS", wanted)
    with pytest.raises(JsonError, match="loader is missing"):
        run_state.check({})
    monkeypatch.setattr(run_state, "_MOST_FACTS", wanted - 1)
    with pytest.raises(JsonError, match=f"it has {wanted} wrong values"):
        run_state.check({})


def test_a_long_name_is_shown_in_part():
    state = {
        "loader": {"epoch": 0, "step": 0},
        "batches": 0,
        "updates": 0,
        "model": {},
        "optimizer": {},
        "metrics": {"m" * 300: "x"},
    }
    with pytest.raises(JsonError) as found:
        run_state.check(state)
    assert str(found.value).startswith(
        f"metrics/{'m' * 192} is 'x': Input should be a valid number"
    )
