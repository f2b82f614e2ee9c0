"""Plain values to parts: what is called, with what, and what the build puts in."""

import functools

import pytest
import torch
from torchvision.transforms import v2

import penstock
from penstock.build.training import TrainingParts
from penstock.config.targets import make
from penstock.errors import ConfigError
from penstock.order.samplers import Bucket, Random, Sequential, Weighted
from penstock.order.torch_samplers import TorchBatches, TorchOrder
from penstock.training.step import Optimizers, warmup_steps
from tests.support import own_parts
from tests.support.shipped import OWN

HOLDER = "tests.support.own_parts.Holder"


@pytest.fixture(autouse=True)
def trusting(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def parts(*overrides):
    return TrainingParts(penstock.compose(*OWN, "transform=none", *overrides))


# -- make ------------------------------------------------------------------------------------------


def test_nodes_are_built_inside_out_from_plain_values():
    node = {
        "_target_": HOLDER,
        "_args_": [1, {"_target_": "torch.nn.ReLU"}],
        "inner": {"a": [{"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3}]},
        "flag": None,
        **(names := {name: name for name in ("name", "key", "function", "node", "supply")}),
    }
    built = make(node, "model")
    assert built.args[0] == 1
    assert isinstance(built.args[1], torch.nn.ReLU)
    assert type(built.inner) is dict
    assert type(built.inner["a"]) is list
    assert built.inner["a"][0].weight.shape == (3, 2)
    assert built.kwargs == {"flag": None, **names}
    assert "_target_" in node["_args_"][1], "the configuration itself is left as it is"


def test_names_of_dtypes_become_dtypes():
    step = make({"_target_": "torchvision.transforms.v2.ToDtype", "dtype": "torch.float16"}, "t")
    assert isinstance(step, v2.ToDtype)
    assert step.dtype is torch.float16


def test_a_partial_is_a_plain_one():
    add = make({"_target_": "tests.support.own_parts.add", "_partial_": True, "amount": 5}, "t")
    assert type(add) is functools.partial
    assert add.func is own_parts.add
    assert add({"x": 1}) == {"x": 6}
    inner = make({"_target_": HOLDER, "inner": {"_target_": HOLDER, "_partial_": True}}, "m").inner
    assert type(inner) is functools.partial


def test_arguments_are_supplied_where_they_are_taken_and_not_given():
    supply = {"size": 7, "scale": 2.0, "nothing": 1}
    built = make({"_target_": "tests.support.own_parts.Numbers", "scale": 3.0}, "dataset", supply)
    assert (built.size, built.scale) == (7, 3.0)
    built = make(
        {"_target_": "tests.support.own_parts.Numbers", "_args_": ["", "val", 4]}, "d", supply
    )
    assert (built.size, built.split) == (4, "val")


def test_a_library_part_that_refuses_its_arguments_is_named():
    node = {"_target_": "torch.optim.SGD", "params": [], "lr": 0.1}
    with pytest.raises(
        ConfigError, match=r"^optimizer: torch.optim.SGD raises ValueError: .*empty"
    ):
        make(node, "optimizer")


def test_a_persons_own_code_keeps_its_error():
    with pytest.raises(TypeError, match="a mistake of its own") as caught:
        make({"_target_": "tests.support.own_parts.Broken"}, "model.inner")
    assert "while building model.inner" in caught.value.__notes__[0]


def test_a_parts_own_complaint_gets_the_key_of_this_configuration():
    node = {"_target_": "penstock.order.samplers.Subset", "length": 3, "seed": 0, "fraction": 2.0}
    with pytest.raises(
        ConfigError, match=r"^sampler.fraction: .*fraction=2.0 choose none of 3 rows"
    ):
        make(node, "sampler")


# -- parts -----------------------------------------------------------------------------------------


def test_a_dataset_gets_its_split_and_is_made_once():
    run = parts("+dataset.size=6")
    assert run.data.train.dataset.split == "train"
    assert run.data.val.dataset.split == "val"
    assert run.data.train.dataset is run.data.train.dataset


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        (["sampler=random"], Random),
        (["sampler=weighted"], Weighted),
        (["sampler=bucket"], Bucket),
        (["sampler._target_=tests.support.own_parts.sequential"], Sequential),
        (["sampler._target_=torch.utils.data.RandomSampler"], TorchOrder),
        (["sampler._target_=torch.utils.data.SequentialSampler"], TorchOrder),
        (["sampler._target_=tests.support.own_parts.Backwards"], TorchOrder),
        (
            (
                "sampler._target_=torch.utils.data.BatchSampler +sampler.drop_last=true "
                "+sampler.sampler={_target_:torch.utils.data.RandomSampler}"
            ).split(),
            TorchBatches,
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value.__name__,
)
def test_samplers_of_every_kind_see_each_row(overrides, kind):
    plan = parts("batch.size=4", *overrides).data.train.plan
    assert isinstance(plan.sampler, kind)
    assert len(plan) == 3 or kind is Bucket
    if kind is not Weighted:
        rows = [row for step in range(len(plan)) for row in plan.request(0, step).indices]
        assert sorted(rows) == list(range(12))


def test_a_column_that_only_the_data_can_tell(monkeypatch):
    monkeypatch.delattr(own_parts.Numbers, "columns")
    with pytest.raises(ConfigError, match=r"^sampler.column: .*no column 'labl'; it has columns"):
        _ = parts("sampler=weighted", "sampler.column=labl").data.train.plan


def test_validation_sees_every_row_once_in_order():
    plan = parts("sampler=weighted", "batch.tail=drop", "batch.val_size=5").data.val.plan
    requests = [plan.request(0, step) for step in range(len(plan))]
    assert [row for request in requests for row in request.indices] == list(range(12))
    assert [len(request) for request in requests] == [5, 5, 2]


def test_training_alone_reads_a_stream_in_the_order_of_its_sampler():
    stream = ["dataset._target_=tests.support.own_parts.Stream", "sampler=stream", "seed=3"]
    data = parts(*stream, "sampler.buffer=4", "sampler.steps=5").data
    orders = {
        name: (order.seed, order.buffer, order.shuffle_shards, order.steps)
        for name, order in (("train", data.train.plan.sampler), ("val", data.val.plan.sampler))
    }
    assert orders == {"train": (3, 4, True, 5), "val": (3, 0, False, None)}


def test_loaders_for_a_notebook():
    config = penstock.compose(*OWN, "transform=none", "loader=debug", "batch.size=4")
    assert sum(len(batch["x"]) for batch in penstock.build_train_loader(config)) == 12
    (first, *_) = penstock.build_val_loader(config)
    assert first["x"].flatten().tolist() == [0, 1, 2, 3]


def test_loader_options(monkeypatch):
    assert parts("loader=fast").data.train.loader_options().num_workers >= 1
    options = parts("loader.num_workers=0", "loader.pin_memory=false").data.train.loader_options()
    assert (options.persistent_workers, options.pin_memory) == (False, False)
    assert parts("loader.num_workers=1").data.train.loader_options().persistent_workers
    assert (
        not parts("loader.persistent_workers=false").data.train.loader_options().persistent_workers
    )
    function = "loader.worker_init_fn=tests.support.own_parts.start_worker"
    assert parts(function).data.train.loader_options().worker_init_fn is own_parts.start_worker


def test_a_fingerprint_tells_what_addresses_depend_on():
    base = parts().data.train.fingerprint
    assert parts("loader=threads", "trainer.max_epochs=1").data.train.fingerprint == base
    for change in ("seed=1", "batch.size=4", "batch.tail=drop", "sampler=weighted"):
        assert parts(change).data.train.fingerprint != base
    assert parts("+dataset.size=6").data.train.fingerprint["dataset"] == "numbers-6"


def test_models_learn_facts_from_the_data_and_their_weights_from_the_seed():
    state = torch.random.get_rng_state()
    model = parts("model=linear").model()
    assert (model.in_features, model.out_features) == (1, 2)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(model.weight, parts("model=linear").model().weight)
    assert not torch.equal(model.weight, parts("model=linear", "seed=1").model().weight)
    assert parts("model=linear", "+model.out_features=9").model().out_features == 9


def test_a_fact_that_the_data_does_not_tell(monkeypatch):
    monkeypatch.setattr(own_parts.Numbers, "facts", property(lambda self: {"num_classes": 2}))
    told = (
        r"needs num_landmarks, which Numbers does not tell \(its facts: num_classes, num_outputs\)"
    )
    with pytest.raises(ConfigError, match=rf"{told}; set it: \+data.facts.num_l"):
        parts().model()
    one = {"num_classes": 1}  # a fact that is told, and of which torchmetrics makes nothing
    monkeypatch.setattr(own_parts.Numbers, "facts", property(lambda self: one))
    with pytest.raises(ConfigError, match=r"accuracy: .*; Numbers has one class"):
        parts("objective=classification", "objective.inputs=[x]").objective()


def test_objectives_and_their_metrics_learn_facts():
    objective = parts("objective=classification", "objective.inputs=[x]").objective()
    assert objective.own.num_classes == 2
    assert objective.own.names == ["even", "odd"]
    assert objective.metrics["recall"].num_classes == 2
    without = parts(
        "objective=classification", "objective.inputs=[x]", "objective.metrics.recall=null"
    )
    assert "recall" not in without.objective().metrics


class Counted(torch.optim.SGD):
    """It wants to know the number of its steps."""

    def __init__(self, params, total_steps):
        super().__init__(params, lr=0.1)
        self.total_steps = total_steps


@pytest.mark.parametrize("count", [None, 9])
def test_each_part_of_a_model_may_have_its_optimizer(count):
    run = parts()
    node = {"_target_": f"{__name__}.Counted"}
    sgd = {"_target_": "torch.optim.SGD", "lr": 0.5}
    model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Linear(2, 3))
    given = [] if count is None else [count]
    for several in ({"0": node, "1": sgd}, node):
        run.config = run.config.model_copy(update={"optimizer": several})
        made = run.optimizer(model, *given)
        if several is not node:
            assert isinstance(made, Optimizers)
            assert made.by_name["1"].param_groups[0]["lr"] == 0.5
            assert made.by_name["1"].param_groups[0]["params"] == list(model[1].parameters())
            made = made.by_name["0"]
        assert made.total_steps == (count or 0)
    run.config = run.config.model_copy(update={"optimizer": {"0": sgd, "x": sgd}})
    for wrong, known in ((model, "0, 1"), (torch.nn.ReLU(), "no parts")):
        name = "x" if known == "0, 1" else "0"
        message = f"^optimizer.{name}: is no part of {type(wrong).__name__}, which has {known}$"
        with pytest.raises(ConfigError, match=message):
            run.optimizer(wrong)


# -- schedules -------------------------------------------------------------------------------------


def rates(run, steps):
    optimizer = run.optimizer(run.model())
    scheduler = run.scheduler(optimizer, steps)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_a_cosine_after_its_warm_up():
    seen = rates(parts("model=linear", "scheduler=cosine", "schedule.warmup=0.1"), 100)
    assert seen[0] == pytest.approx(0.005 * 0.01)
    assert seen[:10] == sorted(seen[:10])
    assert seen[10] == pytest.approx(0.005)
    assert seen[10:] == sorted(seen[10:], reverse=True)
    assert seen[-1] < 0.005 * 0.001


def test_schedules_that_need_the_number_of_steps():
    seen = rates(parts("model=linear", "scheduler=onecycle"), 50)
    assert max(seen) == pytest.approx(0.005, rel=0.01)
    assert seen[-1] < 1e-4
    seen = rates(parts("model=linear", "scheduler=constant", "schedule.warmup=5"), 20)
    assert seen[5:] == pytest.approx([0.005] * 15)
    run = parts("model=linear", "scheduler=constant")
    node = {name: value for name, value in run.config.scheduler.items() if name != "warmup"}
    run.config = run.config.model_copy(update={"scheduler": node})
    assert rates(run, 3) == pytest.approx([0.005] * 3)
    run = parts("scheduler=none", "model=linear")
    assert run.scheduler(run.optimizer(run.model()), 10) is None


def test_warm_up_in_steps_or_as_a_share():
    assert warmup_steps(0, 100) == 0
    assert warmup_steps(0.05, 100) == 5
    assert warmup_steps(7, 100) == 7
    with pytest.raises(ConfigError, match=r"^schedule.warmup: 100 of 100 steps leave none"):
        warmup_steps(100, 100)
