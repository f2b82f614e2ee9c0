"""Left at any step and gone on with, a fit ends with the weights of one that was left alone."""

from dataclasses import replace

import pytest
import torch

from tests.support.resuming import OPTIMIZERS, SAMPLERS, SCHEDULERS, STREAMS, Case, ManyRows

CASES = {
    **{f"sampler {name}": Case(name) for name in SAMPLERS},
    **{f"stream {name}": Case(stream=name) for name in STREAMS},
    "stream shuffled": Case(stream="sharded", buffer=7),
    "packed": Case(packed={}),
    "packed, cut and padded": Case(packed={"split": "tail"}, pad_to=16),
    "many rows at once": Case(dataset=ManyRows),
    **{f"optimizer {name}": Case(optimizer=name) for name in OPTIMIZERS},
    **{f"scheduler {name}": Case(scheduler=name) for name in SCHEDULERS},
    "gradients added up": Case(options={"accumulate": 3, "clip_norm": 0.1}),
    "scheduled by epochs": Case(scheduler="cosine", options={"schedule": "epoch"}),
    "validated now and then": Case(options={"val_every": 2}),
    "a mean of the weights": Case(options={"ema": 0.7, "accumulate": 2}),
    "by steps": Case(options={"max_steps": 8}),
}
LOADINGS = [
    {},
    {"backend": "process", "num_workers": 2},
    {},
    {"backend": "process", "num_workers": 3, "prefetch_factor": 4},
]


def same(found, undisturbed):
    weights, steps, records, result = found
    assert torch.equal(weights, undisturbed[0]), "the weights differ"
    assert steps == undisturbed[1].steps, "the steps differ"
    assert records == undisturbed[1].records, "the records differ"
    assert result.order == undisturbed[2].order
    assert (result.best is None) == (undisturbed[2].best is None)
    assert result.reason == undisturbed[2].reason


# Those that are like another one but in name; `make stress` takes them, too.
RARE = {
    "sampler subset",
    "sampler torch's random",
    "stream plain",
    "scheduler none",
    "optimizer adam, amsgrad",
    "optimizer rmsprop",
    "optimizer adagrad",
    "optimizer nadam",
    "optimizer asgd",
}


def every_step():
    """Every third step by default, beginning with another one in each case; `make stress`: all."""
    for number, name in enumerate(CASES):
        for third in range(3):
            rare = name in RARE or third != number % 3
            yield pytest.param(name, third, marks=[pytest.mark.stress] * rare)


@pytest.mark.one_in(11)
@pytest.mark.parametrize(("name", "third"), list(every_step()))
def test_left_at_every_step(name, third, tmp_path):
    case = CASES[name]
    if "schedule" not in name:  # what follows from epochs or their losses takes three of them
        case = replace(case, options={"max_epochs": 2, **case.options})
    undisturbed = case.fit(tmp_path / "whole")
    asked = undisturbed[1].asked  # at steps and at the batches of validations
    for stop in range(1 + third, asked + 1, 3):
        loading = {} if case.stream == "drawing" else LOADINGS[stop % len(LOADINGS)]
        same(case.going_on(tmp_path / str(stop), [stop], [{}, loading]), undisturbed)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stops", [[1, 1, 1], [2, 1], [1, 2, 1], [6, 1, 6, 1], [1] * 30])
def test_left_again_and_again(stops, tmp_path):
    case = Case(optimizer="sgd", scheduler="one cycle")
    same(case.going_on(tmp_path / "left", stops, LOADINGS), case.fit(tmp_path / "whole"))
