"""The schema: what is wrong with plain values, and how it is said."""

import pytest

from penstock.config import parsing
from penstock.config.messages import describe
from penstock.config.schema import Config
from penstock.errors import ConfigError

PART = {"_target_": "a.b"}
del_ = object()
GOOD = {
    "seed": 0,
    "batch": {"size": 8, "tail": "keep", "val_size": None, "balance": None},
    "run_dir": "outputs/x",
    "cache_dir": "data/cache",
    "dataset": PART,
    "transform": {
        "train": {"flip": PART, "crop": None},
        "val": {},
        "train_batch": {},
        "val_batch": {},
        "views": 1,
        "batch_on": "auto",
    },
    "sampler": PART,
    "collate": PART,
    "loader": {
        "backend": "process",
        "num_workers": 2,
        "prefetch_factor": None,
        "persistent_workers": None,
        "pin_memory": None,
        "timeout": 0,
        "worker_init_fn": None,
        "multiprocessing_context": None,
        "in_order": True,
        "generator": None,
        "max_deaths": 3,
        "slow_memory": 0.25,
        "ray": {
            "address": None,
            "num_actors": "auto",
            "cpus_per_actor": 1.0,
            "resources": {},
            "runtime_env": {},
            "window": 1.0,
        },
    },
    "bad_samples": {"on_error": "raise", "budget": 0.01, "quarantine": None},
    "distributed": {
        "strategy": "none",
        "nproc": "auto",
        "backend": None,
        "timeout": 1800.0,
        "max_restarts": 0,
        "find_unused_parameters": False,
        "sync_batchnorm": False,
    },
    "model": PART,
    "objective": PART,
    "optimizer": PART,
    "scheduler": None,
    "trainer": {
        "max_epochs": 1,
        "max_steps": None,
        "accumulate": 1,
        "clip_norm": None,
        "precision": "fp32",
        "compile": False,
        "channels_last": False,
        "device": "auto",
        "log_every": 1,
        "val_every": 1,
        "monitor": None,
        "mode": "min",
        "patience": None,
        "checkpoint": {
            "every_epochs": 1,
            "every_steps": None,
            "every_minutes": None,
            "keep_last": 1,
            "background": True,
        },
        "baseline": True,
        "digest": False,
        "ledger": False,
        "report": True,
        "progress": "auto",
        "pictures": True,
        "ema": None,
        "limit_batches": {"train": None, "val": None},
        "overfit_batches": None,
        "skip": None,
        "fast_dev_run": False,
    },
    "tracker": PART,
    "resume": None,
    "resume_despite": [],
    "sweep": {
        "on_preempted": "stop",
        "on_failure": "continue",
        "retries": 0,
        "jobs": 1,
        "seeds": None,
        "optuna": None,
    },
    "task": "fit",
}


def changed(key, value):
    """GOOD with one value changed; `del` in place of a value takes it out."""
    tree = {**GOOD}
    node, (*path, name) = tree, key.split(".")
    for part in path:
        node[part] = {**node[part]}
        node = node[part]
    if value is del_:
        del node[name]
    else:
        node[name] = value
    return tree


def test_a_good_configuration_becomes_typed_and_comes_back_plain():
    config = parsing.parse(GOOD)
    assert config.batch.size == 8
    assert config.trainer.checkpoint.keep_last == 1
    assert config.loader.timeout == 0.0
    assert config.split == "train"
    plain = config.plain()
    for section, keys in (  # those that add-ons bring
        ("trainer", ("warm_start", "freeze", "recompute")),
        ("sweep", ("folds",)),
        ("distributed", ("lanes",)),
    ):
        for key in keys:
            plain[section].pop(key, None)
    assert {key: plain[key] for key in GOOD} == GOOD


def test_a_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        parsing.parse(GOOD).seed = 1


WRONG = [
    ("seed", -1, r"^seed: got -1, expected a whole number of at least 0$"),
    ("seed", "one", r"^seed: got 'one', expected a whole number"),
    ("seed", True, r"^seed: got true, expected a whole number"),
    ("batch.size", 0, r"^batch.size: got 0, expected a whole number of at least 1 or null$"),
    ("batch.size", 8.0, r"^batch.size: got 8.0, expected a whole number"),
    ("batch.tail", "kep", r"got 'kep', expected keep \| drop \| pad \(did you mean 'keep'\?\)"),
    ("batch.val_size", 0, r"expected a whole number of at least 1 or null"),
    ("batch.sise", 3, r"^batch.sise: unknown key 'sise' \(did you mean 'size'\?\); allowed: size"),
    ("batch.tail", del_, r"^batch.tail: is missing; expected keep \| drop \| pad$"),
    (
        "loader.num_workers",
        1.5,
        r"^loader.num_workers: got 1.5, expected a whole number of at "
        r"least 0 or auto$",
    ),
    ("loader.num_workers", -1, r"^loader.num_workers: got -1"),
    ("loader.num_workers", "atuo", r"did you mean 'auto'"),
    ("loader.prefetch_factor", 0, r"at least 1 or null$"),
    ("loader.timeout", -1, r"^loader.timeout: got -1, expected a number of at least 0 or null$"),
    ("loader.in_order", "yes", r"^loader.in_order: got 'yes', expected true or false$"),
    ("loader.pin_memory", 1, r"expected true or false or null$"),
    ("loader", 3, r"^loader: got 3, expected a mapping$"),
    ("trainer.clip_norm", 0, r"expected a number above 0 or null$"),
    ("trainer.clip_norm", "a", r"expected a number above 0 or null$"),
    ("trainer.checkpoint", "best", r"^trainer.checkpoint: got 'best', expected a mapping or null$"),
    ("trainer.checkpoint.keep_lats", 1, r"did you mean 'keep_last'"),
    ("trainer.precision", "fp61", r"fp32 \| bf16 \| fp16 \(did you mean 'fp16'\?\)"),
    ("transform.train.flip", 3, r"^transform.train.flip: got 3, expected a mapping with _target_$"),
    ("transform.test", {}, r"^transform.test: unknown key 'test'"),
    ("distributed.strategy", "dpp", r"expected none \| ddp \| fsdp \(did you mean 'ddp'\?\)"),
    ("task", "fti", r"^task: got 'fti', expected fit \| validate \| .*\(did you"),
    ("epoch", -1, r"^epoch: got -1"),
    ("steps", 0, r"^steps: got 0, expected a whole number of at least 1 or null$"),
    ("split", "test", r"^split: got 'test', expected train \| val \| both$"),
    ("modle", PART, r"^modle: unknown key 'modle' \(did you mean 'model'\?\)"),
]


@pytest.mark.parametrize(("key", "value", "message"), WRONG, ids=[key for key, _, _ in WRONG])
def test_what_is_wrong_is_named_with_what_is_allowed(key, value, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parsing.parse(changed(key, value))
    assert len(caught.value.problems) == 1


def test_all_problems_come_at_once():
    tree = changed("batch.size", 0) | {"seed": "x", "unknown": 1}
    with pytest.raises(ConfigError) as caught:
        parsing.parse(tree)
    assert sorted(p.key for p in caught.value.problems) == ["batch.size", "seed", "unknown"]


def test_the_rest_of_a_wrong_configuration_can_still_be_looked_at():
    config, problems = parsing.check(changed("loader.num_workers", 1.5))
    assert [p.key for p in problems] == ["loader.num_workers"]
    assert config.loader.backend == "process"
    assert config.trainer.checkpoint.keep_last == 1
    assert not hasattr(config.loader, "num_workers")


def test_long_values_are_shortened():
    with pytest.raises(ConfigError) as caught:
        parsing.parse(changed("batch.tail", "x" * 500))
    assert len(str(caught.value)) < 200


def test_every_key_of_the_schema_is_described():
    for name, field in Config.model_fields.items():
        assert describe(field.annotation, field.metadata), name
