"""Contradictions, rule by rule: what lies at a border is allowed, what lies beyond is refused."""

import pytest

from penstock.config import contradictions
from penstock.order.samplers import Random, Sequential
from penstock.order.streams import StreamOrder
from tests.config.unchecked import (
    DDP,
    FSDP,
    NUMBERS,
    ONECYCLE,
    PLATEAU,
    STREAM,
    UNSPLIT,
    WORKERS,
    holds,
    messages,
)
from tests.own_parts import Numbers, Stream, Unsplit

pytestmark = pytest.mark.usefixtures("alone")

OF_WORKERS = {
    "loader.prefetch_factor": 2,
    "loader.persistent_workers": True,
    "loader.timeout": 5,
    "loader.worker_init_fn": "a.b",
    "loader.multiprocessing_context": "spawn",
}


@pytest.mark.parametrize(
    ("rule", "values", "problems"),
    [
        (contradictions.no_workers, {**WORKERS, **OF_WORKERS}, []),
        (contradictions.no_workers, {"loader.backend": "main"}, []),
        (
            contradictions.no_workers,
            {"loader.backend": "main", "loader.num_workers": 2, **OF_WORKERS},
            [(key, "needs workers, but loader.backend=main; set ") for key in OF_WORKERS],
        ),
        (
            contradictions.no_workers,
            {"loader.backend": "auto", "loader.num_workers": 0, **OF_WORKERS},
            [(key, "needs workers, but loader.num_workers=0; set ") for key in OF_WORKERS],
        ),
        (
            contradictions.threads,
            {"loader.backend": "thread", "loader.num_workers": 2, **OF_WORKERS},
            [
                (key, "is for processes, but loader.backend=thread")
                for key in (
                    "loader.worker_init_fn",
                    "loader.multiprocessing_context",
                    "loader.persistent_workers",
                )
            ],
        ),
        (
            contradictions.threads,
            {"loader.backend": "thread", "loader.num_workers": 0, **OF_WORKERS},
            [],
        ),
        (contradictions.threads, {**WORKERS, **OF_WORKERS}, []),
        (contradictions.unordered, {**WORKERS, "loader.in_order": False}, ["loader.in_order"]),
        (contradictions.unordered, {**WORKERS, "loader.in_order": True}, []),
        (contradictions.unordered, {"loader.num_workers": 0, "loader.in_order": False}, []),
        (contradictions.unordered, {**WORKERS, "loader.in_order": False, "task": "digest"}, []),
        (
            contradictions.unordered,
            {**WORKERS, "loader.in_order": False, "trainer.checkpoint": None},
            [],
        ),
        (contradictions.both_splits, {"split": "both", "task": "check"}, []),
        (contradictions.both_splits, {"split": "both", "task": "pack"}, []),
        (
            contradictions.both_splits,
            {"split": "both", "task": "digest"},
            [("split", "task=digest")],
        ),
        (contradictions.both_splits, {"split": "train", "task": "digest"}, []),
        *(
            (
                contradictions.bad_samples,
                {"bad_samples.on_error": error, "bad_samples.budget": budget},
                found,
            )
            for error, budget, found in (
                ("raise", 0, []),
                ("raise", 0.01, []),
                ("raise", 1, ["bad_samples.budget"]),
                ("skip", 1, []),
            )
        ),
        (
            contradictions.bad_samples,
            {"bad_samples.quarantine": "no/such.csv"},
            [("bad_samples.quarantine", "there is no file 'no/such.csv'")],
        ),
        (contradictions.bad_samples, {"bad_samples.quarantine": __file__}, []),
        (contradictions.device, {"trainer.precision": "fp16"}, ["trainer.precision"]),
        (contradictions.device, {"trainer.precision": "fp16", "task": "digest"}, []),
        (
            contradictions.device,
            {"trainer.precision": "fp16", "task": "validate"},
            ["trainer.precision"],
        ),
        (contradictions.device, {"trainer.precision": "bf16"}, []),
        (contradictions.skipped_ranges, {"trainer.skip": ["a"]}, ["trainer.skip"]),
        (contradictions.skipped_ranges, {}, []),
    ],
)
def test_options_of_loaders_tasks_and_devices(rule, values, problems):
    holds(messages(rule, values), *problems)


NONE = {"dataset": {**NUMBERS, "val": None}}


@pytest.mark.parametrize(
    ("values", "problems"),
    [
        ({"split": "val", "trainer.monitor": "nme"}, []),
        ({**NONE, "trainer.monitor": None, "scheduler": None}, []),
        ({**NONE, "split": "val", "trainer.monitor": None}, ["split"]),
        ({**NONE, "split": "val", "trainer.monitor": "nme", "task": "digest"}, ["split"]),
        ({**NONE, "trainer.monitor": "nme"}, [("trainer.monitor", "nme, but there is no valid")]),
        ({**NONE, "trainer.monitor": None, "trainer.patience": 1}, ["trainer.patience"]),
        ({**NONE, "trainer.monitor": None, "scheduler": PLATEAU}, ["scheduler"]),
        ({**NONE, "trainer.monitor": None, "scheduler": ONECYCLE}, []),
    ],
)
def test_keys_that_ask_for_a_validation(values, problems):
    holds(messages(contradictions.no_validation, values), *problems)


@pytest.mark.parametrize(
    ("node", "problems"),
    [
        (None, []),
        ({"warmup": 0}, []),
        ({"warmup": 0.5}, []),
        ({"warmup": 1}, []),
        ({"warmup": 3.0, "interval": "epoch"}, []),
        ({"warmup": 1.5}, [("scheduler.warmup", "1.5 is neither a share below 1 nor a whole")]),
        ({"warmup": -0.1}, [("scheduler.warmup", "got -0.1, expected a share")]),
        ({"warmup": True}, [("scheduler.warmup", "got True")]),
        ({"warmup": "1"}, [("scheduler.warmup", "got '1'")]),
        ({"interval": "epochs"}, [("scheduler.interval", "(did you mean 'epoch'?)")]),
        ({**ONECYCLE, "warmup": 0}, []),
        ({**ONECYCLE, "warmup": 1}, [("scheduler.warmup", "OneCycleLR has a warm-up of its own")]),
        ({**PLATEAU, "warmup": 1}, [("scheduler.warmup", "follows a metric and not the step")]),
        (PLATEAU, []),
    ],
)
def test_warm_ups_and_intervals(node, problems):
    holds(messages(contradictions.schedule, {"scheduler": node}), *problems)


ACCURACY = {
    "metrics": {"accuracy": {"_target_": "penstock.training.metrics.Accuracy"}, "off": None}
}


class OwnLoss:
    def loss(self):
        """Measures what it likes."""


@pytest.mark.parametrize(
    ("name", "mode", "more", "problems"),
    [
        ("loss", "min", {}, []),
        ("loss", "max", {}, [("trainer.mode", "of loss, less is better: trainer.mode=min")]),
        ("val/loss", "min", {}, []),
        ("loss/train", "min", {}, []),
        ("off", "min", {}, [("trainer.monitor", "measures no 'off'; it has loss, accuracy")]),
        ("los", "min", {}, [("trainer.monitor", "(did you mean 'loss'?)")]),
        ("los", "min", {"task": "digest"}, []),
        (None, "min", {}, []),
    ],
)
def test_metrics_that_are_monitored(name, mode, more, problems):
    values = {"trainer.monitor": name, "trainer.mode": mode, "objective": ACCURACY, **more}
    holds(messages(contradictions.monitor, values), *problems)
    own = messages(contradictions.monitor, values, {"objective": OwnLoss})
    assert [text for text in own if text.startswith("trainer.monitor")] == []


@pytest.mark.parametrize(
    ("values", "size", "problems"),
    [
        ({"distributed.strategy": "none"}, 1, []),
        (
            {"distributed.strategy": "none"},
            2,
            [("distributed.strategy", "but 2 processes were st")],
        ),
        (DDP, 2, []),
        ({"distributed.strategy": "none", "batch.size": None}, 1, []),
        ({**DDP, "batch.size": None}, 2, ["batch.size"]),
        ({**DDP, "trainer.precision": "fp16", "trainer.ema": 0.9}, 1, []),
        ({**FSDP, "trainer.precision": "bf16"}, 1, []),
        ({**FSDP, "trainer.precision": "fp16"}, 1, ["trainer.precision"]),
        ({**FSDP, "trainer.ema": 0.9}, 1, ["trainer.ema"]),
        ({**DDP, **WORKERS, "loader.in_order": False}, 1, [("loader.in_order", "distributed=ddp")]),
        ({**DDP, "loader.num_workers": 0, "loader.in_order": False}, 1, []),
    ],
)
def test_options_of_ranks(values, size, problems, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(size))
    holds(messages(contradictions.ranks, values), *problems)


@pytest.mark.parametrize(
    ("dataset", "sampler", "in_order", "problems"),
    [
        (Numbers, Random, True, []),
        (Numbers, Random, False, []),
        (Numbers, None, True, []),
        (Numbers, StreamOrder, True, [("sampler", "Numbers has rows that can be chosen")]),
        (Stream, StreamOrder, True, []),
        (Stream, Sequential, True, []),
        (Stream, None, True, []),
        (Stream, Random, True, [("sampler", "Random chooses rows, but Stream is a stream")]),
        (Stream, StreamOrder, False, [("loader.in_order", "Stream is a stream, whose end")]),
        (lambda size: None, StreamOrder, True, []),
    ],
)
def test_orders_of_streams(dataset, sampler, in_order, problems):
    values = {"dataset": NUMBERS, "loader.in_order": in_order}
    holds(
        messages(contradictions.streams, values, {"dataset": dataset, "sampler": sampler}),
        *problems,
    )
    two = {**values, "dataset": {"val": NUMBERS}}
    assert messages(contradictions.streams, two, {"dataset.val": dataset, "sampler": sampler}) == []


@pytest.mark.parametrize(
    ("dataset", "part", "task", "refused"),
    [
        (UNSPLIT, Unsplit, "fit", True),
        (UNSPLIT, Unsplit, "validate", True),
        (UNSPLIT, Unsplit, "digest", False),
        (UNSPLIT, None, "fit", False),
        (NUMBERS, Numbers, "fit", False),
        ({**UNSPLIT, "split": {"val": 0.2}}, Unsplit, "fit", False),
        ({**UNSPLIT, "val": None}, Unsplit, "fit", False),
        ({"train": UNSPLIT, "val": NUMBERS}, Unsplit, "fit", False),
        (STREAM, lambda **anything: None, "fit", False),
    ],
)
def test_data_that_training_and_validation_would_share(dataset, part, task, refused):
    found = messages(
        contradictions.same_data_twice, {"dataset": dataset, "task": task}, {"dataset": part}
    )
    holds(found, *([("dataset", "Unsplit takes no argument `split`")] if refused else []))
