"""What every key changes is said once, beside it in the schema, and an identity follows from it."""

import pytest
import yaml

import penstock
from penstock.config.identity import effect_of, effects, leaves
from penstock.config.schema import Effect
from penstock.order.address import Address
from penstock.runs.resume import differences, fingerprint, is_harmless
from tests.support.shipped import FILES

NOTHING, ROUNDING, RESULTS, VALIDATION, WEIGHTS, TRAINING, BATCHES, DATA = Effect


def test_every_key_of_every_option_is_known():
    assert "distributed.nproc" in effects()
    for path in FILES:
        text = path.read_text()
        tree = {name: value for name, value in yaml.safe_load(text).items() if name != "defaults"}
        whole = "# @package _global_" in text
        keys = [key for key, _ in leaves(tree if whole else {path.parent.name: tree})]
        assert keys, path
        for key in keys:
            assert any(f"{key}.".startswith(f"{name}.") for name in effects()), (path, key)


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        *[(key, BATCHES) for key in ("later", "transform.of_later.x")],
        *[(key, TRAINING) for key in ("trainer.of_later", "trainer", "batch", "sampler.order.x")],
        ("optimizer.of_somebody", WEIGHTS),
        ("objective.metrics.nme._target_", WEIGHTS),
        ("dataset.own_argument", DATA),
        ("transform.val.resize.size", VALIDATION),
        *[(key, ROUNDING) for key in ("distributed.nproc", "trainer.device", "trainer.compile")],
        *[(key, NOTHING) for key in ("run_dir", "loader.num_workers", "trainer.progress")],
    ],
)
def test_arguments_of_parts_have_the_effect_of_their_section(key, changes):
    """And a key of another version is not called harmless."""
    assert effect_of(key) == changes


def continued(*now, before=(), data="ab" * 16):
    """The keys for which a run is refused that would continue another one."""
    words = ["trainer.device=cpu"]
    saved, own = (
        fingerprint(penstock.compose(*words, *more), {"dataset": one}, 10)
        for more, one in ((before, "ab" * 16), (now, data))
    )
    return [problem.key for problem in differences(saved, own, Address(0, 0), [])]


PLATEAU = ["scheduler={_target_: torch.optim.lr_scheduler.ReduceLROnPlateau}"]
UNSAVED = ["trainer.checkpoint=null"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("before", "now", "key"),
    [
        ([], ["bad_samples.on_error=skip"], "bad_samples.on_error"),
        ([], ["limits.pixels=9"], "limits.pixels"),
        (UNSAVED, [*UNSAVED, "loader.in_order=false"], "loader.in_order"),
        ([], ["loader.worker_init_fn=penstock.order.seeding.seed"], "loader.worker_init_fn"),
        ([], ["loader.num_workers=7", "trainer.log_every=7", "tracker=none"], None),
        ([], ["trainer.max_epochs=7", "trainer.compile=true", "distributed=ddp"], None),
        ([], ["trainer.val_every=2", "batch.val_size=3"], None),
        (
            ["trainer.patience=3"],
            ["trainer.patience=3", "trainer.val_every=2"],
            "trainer.val_every",
        ),
        (PLATEAU, [*PLATEAU, "batch.val_size=3"], "batch.val_size"),
        ([], ["trainer.mode=max"], "trainer.mode"),
        ([], ["trainer.limit_batches.train=3"], "trainer.limit_batches.train"),
        ([], ["trainer.ema=0.9"], "trainer.ema"),
        ([], ["transform.train.flip.p=0.1"], "transform.train.flip.p"),
        ([], ["+optimizer.momentum=0.9"], "optimizer.momentum"),
        ([], ["sampler=sequential"], "sampler._target_"),
        ([], ["data.fields=[a]"], "dataset.fields"),
        ([], ["dataset.seed=4"], None),  # for which the fingerprint of the data stands
    ],
)
def test_what_a_run_that_is_resumed_may_change(before, now, key, monkeypatch):
    monkeypatch.setattr("penstock.config.compose.refuse", lambda problems: None)
    found = continued(*now, before=before)
    assert found == ([] if key is None else [key])


def test_steps_in_another_order_are_other_batches():
    steps = [f"+transform.train.{name}={{_target_: torch.nn.ReLU}}" for name in "ab"]
    assert continued(*reversed(steps), before=steps) == ["transform.train"]


def test_facts_of_the_data_are_always_compared():
    assert continued(data="cd" * 16) == ["dataset"]
    own = {"seed": "0", "dataset.weights.a": "[1]", "decoder": "native", "lengths": "bytes"}
    found = differences({"seed": "0"}, own, Address(0, 0), [])
    assert [one.key for one in found] == ["dataset.weights.a", "decoder", "lengths"]


@pytest.mark.parametrize(
    ("line", "harmless"),
    [
        ("loader.num_workers=3", True),
        ("loader=fast", True),
        ("loader=threads", True),
        ("loader={in_order: false}", False),
        ("loader.in_order=false", False),
        ("+loader.worker_init_fn=a.b", False),
        ("loader.ray.cpus_per_actor=2", True),
        ("loader/x=2", False),
        ("tracker=none", True),
        ("tracker=[tensorboard,mlflow]", True),
        ("+tracker.csv.x=1", True),
        ("trainer.report=false", True),
        ("trainer.checkpoint.keep_last=3", True),
        ("trainer=quick", False),
        ("trainer=default", False),
        ("trainer.val_every=2", False),
        ("trainer.compile=true", False),
        ("limits.pixels=3", False),
        ("limits=default", False),
        ("bad_samples.budget=3", True),
        ("batch.val_size=2", False),
        ("task=lr_find", False),
        ("cache_dir=x", True),
        ("seed=3", False),
        ("experiment=mine", False),
        ("hydra.job.x=1", False),
        ("~model.width", False),
    ],
)
def test_what_may_differ_between_two_commands_of_a_sweep(line, harmless):
    assert is_harmless(line) == harmless
