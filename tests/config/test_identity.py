"""What every key changes is said once, beside it in the schema, and everybody asks there."""

import pytest
import yaml

import penstock
from penstock.config import identity
from penstock.config.identity import Known, between, differing, effect_of, recorded
from penstock.config.schema import Changes
from penstock.runs.left_out import COLUMNS
from penstock.runs.record import RunRecord
from penstock.runs.resumption import fingerprint, is_harmless
from tests.config.test_conf import FILES

NOTHING, RESULTS, WEIGHTS, BATCHES = Changes


def test_every_key_of_the_schema_says_what_it_changes():
    """A section without fields, such as a part, says it for what is below it."""
    assert len(identity.fields()) > 120
    assert "trainer.checkpoint.keep_last" in identity.fields()
    for key, field in identity.fields().items():
        assert field.effect is not None, f"{key} needs an Effect in pipeline/config/schema.py"
    asked = {field.effect.asks for field in identity.fields().values()}
    asked |= {
        one.asks for field in identity.fields().values() for one in field.effect.below.values()
    }
    assert asked - {""} == set(identity.QUESTIONS)


def test_no_question_finds_more_than_the_careful_answer():
    runs = [
        Known(config, data, device, alone, decoder, left_out)
        for config in (
            {},
            {"trainer.patience": "3"},
            {"bad_samples.on_error": "skip"},
            {"dataset.packed": "auto", "transform.train_batch.mix._target_": "x"},
        )
        for data in (None, {}, {"train": "ab", "val": "cd"}, {"train": "ab", "val": "ef"})
        for device, alone in ((None, None), ("cpu", True), ("cuda", False))
        for decoder, left_out in ((False, None), (True, set()), (False, {("train", 1)}))
    ]
    for key in (*identity.fields(), "dataset.packed", "dataset.facts", "objective.metrics.x"):
        for first in runs:
            for second in runs[::7]:
                assert between(key, first, second)[0] <= effect_of(key).changes


def test_every_key_of_every_option_is_known():
    for path in FILES:
        text = path.read_text()
        tree = {name: value for name, value in yaml.safe_load(text).items() if name != "defaults"}
        whole = "# @package _global_" in text
        keys = [key for key, _ in identity.leaves(tree if whole else {path.parent.name: tree})]
        assert keys, path
        for key in keys:
            assert effect_of(key).why != "unknown to this version", (path, key)


def test_a_key_of_another_version_is_not_called_harmless():
    run = Known({})
    for key in ("trainer.of_later", "later", "transform.of_later.x"):
        assert between(key, run, run) == (BATCHES, "unknown to this version")
    assert effect_of("trainer").changes == effect_of("batch").changes == BATCHES, "of its keys"


def test_arguments_of_parts_have_the_effect_of_their_section():
    assert effect_of("sampler.order._target_").changes == BATCHES
    assert effect_of("optimizer.of_somebody").changes == WEIGHTS
    assert effect_of("dataset.own_argument").asks == "data"
    assert effect_of("dataset.fields").changes == BATCHES
    assert effect_of("objective.metrics.nme._target_").asks == "validation"


def record(tmp_path, config=None, **manifest):
    data = {"fingerprint": "sizes", "train": "ab" * 16, "val": "cd" * 16}
    known = {"device": "cpu", "data": data, "sessions": [{"world": 1}], **manifest}
    return RunRecord(tmp_path, config or {}, known)


def asked(key, first, second):
    return between(key, first.known, second.known)[0]


def left_out(folder, *splits):
    folder.mkdir(exist_ok=True)
    lines = [",".join(COLUMNS), *(f"{split},0,a.jpg,0,0,0,broken,x" for split in splits)]
    (folder / "quarantine.csv").write_text("\n".join([*lines, ""]))


def test_arguments_of_the_dataset_follow_its_fingerprint(tmp_path):
    same = record(tmp_path)
    data = dict(same.manifest["data"])
    other = record(tmp_path, data={**data, "train": "ef" * 16})
    counted = record(tmp_path, data={**data, "train": "1000"})
    validated = record(tmp_path, data={**data, "val": "ef" * 16})
    stopped = record(tmp_path, {"trainer": {"patience": 2}}, data={**data, "val": "ef" * 16})
    otherwise = record(tmp_path, data={**data, "fingerprint": "content"})
    odd = record(tmp_path, data=["x"])
    assert asked("dataset.root", same, same) == NOTHING
    assert asked("dataset.root", same, other) == BATCHES
    assert asked("dataset.root", counted, counted) == BATCHES
    assert asked("dataset.root", same, validated) == RESULTS
    assert asked("dataset.root", same, stopped) == WEIGHTS
    assert asked("dataset.root", same, otherwise) == BATCHES
    assert asked("dataset.root", odd, odd) == BATCHES
    assert asked("dataset.fingerprint", same, otherwise) == NOTHING
    assert asked("dataset.facts.num_classes", same, same) == WEIGHTS
    assert asked("pack.size", same, other) == NOTHING
    packed = record(tmp_path, {"dataset": {"packed": "auto"}}, data={**data, "train": "ef" * 16})
    assert asked("pack.size", same, packed) == BATCHES


@pytest.mark.parametrize(
    ("scheduler", "found"),
    [
        (None, RESULTS),
        ("torch.optim.lr_scheduler.OneCycleLR", RESULTS),
        ("torch.optim.lr_scheduler.ReduceLROnPlateau", WEIGHTS),
        ("mine.Schedule", WEIGHTS),
    ],
)
def test_validation_counts_where_it_steers(scheduler, found, tmp_path):
    node = None if scheduler is None else {"_target_": scheduler}
    run = record(tmp_path, {"scheduler": node, "trainer": {"patience": None}})
    for key in (
        "batch.val_size",
        "transform.val.resize.size",
        "trainer.monitor",
        "objective.metrics.nme._target_",
    ):
        assert asked(key, run, run) == found


def test_what_the_runs_say_decides_for_machines(tmp_path):
    here, there = record(tmp_path), record(tmp_path, device="cuda")
    assert asked("trainer.device", here, here) == NOTHING
    assert asked("trainer.device", here, there) == WEIGHTS
    mixing = record(tmp_path, {"transform": {"train_batch": {"mix": {"x": 1}}}}, device="cuda")
    assert asked("trainer.device", here, mixing) == BATCHES
    assert asked("transform.batch_on", here, here) == NOTHING
    assert asked("transform.batch_on", there, there) == RESULTS
    assert asked("transform.batch_on", mixing, mixing) == BATCHES
    assert asked("distributed.strategy", here, here) == NOTHING
    two = record(tmp_path, sessions=[{"world": 2}])
    assert asked("distributed.nproc", here, two) == WEIGHTS
    assert asked("distributed.timeout", here, two) == NOTHING


@pytest.mark.parametrize("splits", [("val",), ("val", "train")])
def test_and_for_samples_that_were_left_out(splits, tmp_path):
    skips = {"bad_samples": {"on_error": "skip"}}
    here, other = record(tmp_path / "a", skips), record(tmp_path / "b", skips)
    assert asked("limits.pixels", here, other) == NOTHING, "none was"
    left_out(tmp_path / "a", *splits)
    here = record(tmp_path / "a", skips)
    for key in ("limits.pixels", "bad_samples.on_error", "bad_samples.quarantine"):
        assert asked(key, here, other) == (BATCHES if "train" in splits else RESULTS)
    assert asked("limits.pixels", here, here) == NOTHING
    assert asked("bad_samples.on_error", here, here) >= RESULTS
    (tmp_path / "a" / "quarantine.csv").write_text("x\n")
    assert asked("limits.pixels", record(tmp_path / "a", skips), other) == BATCHES
    assert asked("bad_samples.budget", here, here) == NOTHING


def continued(*now, before=(), data="ab" * 16):
    """The keys for which a run is refused that would continue another one."""
    words = ["trainer.device=cpu"]
    saved, own = (
        fingerprint(penstock.compose(*words, *more), {"dataset": one}, 10)
        for more, one in ((before, "ab" * 16), (now, data))
    )
    return differing(saved, own)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("before", "now", "key"),
    [
        ([], ["bad_samples.on_error=skip"], None),  # so far nothing was left out: else it had ended
        (["bad_samples.on_error=skip"], [], "bad_samples.on_error"),
        (
            ["bad_samples.on_error=skip"],
            ["bad_samples.on_error=substitute"],
            "bad_samples.on_error",
        ),
        ([], ["limits.pixels=9"], None),
        (
            ["bad_samples.on_error=skip"],
            ["bad_samples.on_error=skip", "limits.pixels=9"],
            "limits.pixels",
        ),
        ([], ["bad_samples.on_error=skip", "limits.pixels=9"], "limits.pixels"),
        ([], ["loader.in_order=false"], "loader.in_order"),
        ([], ["loader.worker_init_fn=penstock.order.seeding.seed"], "loader.worker_init_fn"),
        ([], ["loader.num_workers=7", "trainer.log_every=7", "tracker=none"], None),
        ([], ["trainer.max_epochs=7", "trainer.compile=true", "distributed=ddp"], None),
        ([], ["trainer.val_every=2"], None),
        (
            ["trainer.patience=3"],
            ["trainer.patience=3", "trainer.val_every=2"],
            "trainer.val_every",
        ),
        ([], ["trainer.mode=max"], "trainer.mode"),
        ([], ["trainer.limit_batches.train=3"], "trainer.limit_batches.train"),
        ([], ["trainer.ema=0.9"], "trainer.ema"),
        ([], ["transform.train.flip.p=0.1"], "transform.train.flip.p"),
        ([], ["sampler=sequential"], "sampler._target_"),
        ([], ["+dataset.fields=[a]"], "dataset.fields"),
        ([], ["dataset.seed=4"], None),
    ],  # for which the fingerprint of the data stands
)
def test_what_a_run_that_is_resumed_may_change(before, now, key, monkeypatch):
    monkeypatch.setattr("penstock.config.preflight.raise_if", lambda problems: None)
    found = continued(*now, before=before)
    assert found == ([] if key is None else [key])


def test_facts_of_the_data_are_always_compared():
    assert continued(data="cd" * 16) == ["dataset"]
    own = {"seed": "0", "dataset.weights.a": "[1]", "decoder": "native", "lengths": "bytes"}
    assert differing({"seed": "0"}, own) == ["dataset.weights.a", "decoder", "lengths"]


def test_a_checkpoint_of_before_a_key_was_recorded():
    own = recorded(penstock.compose("trainer.patience=2"))
    for key in ("trainer.val_every", "batch.val_size", "loader.in_order"):
        saved = {name: value for name, value in own.items() if name != key}
        assert differing(saved, own) == [], "not known, or at its default"
        assert differing(saved, {**own, "loader.in_order": "False"}) == ["loader.in_order"]
    # Null steps were written down once.
    assert differing({**own, "transform.train_batch": "{}"}, own) == []
    mixed = {**own, "transform.train_batch.mix.alpha": "1"}
    assert differing({**own, "transform.train_batch": "{}"}, mixed) == [
        "transform.train_batch",
        "transform.train_batch.mix.alpha",
    ]
    assert differing(own, {**own, "optimizer.momentum": "0.9"}) == ["optimizer.momentum"]


@pytest.mark.parametrize(
    ("line", "harmless"),
    [
        ("loader.num_workers=3", True),
        ("loader=threads", True),
        ("loader=fast", True),
        ("loader=of_somebody", False),
        ("loader={in_order: false}", False),
        ("loader.in_order=false", False),
        ("+loader.worker_init_fn=a.b", False),
        ("loader.ray.window=2", True),
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
        ("limits=default", True),
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
